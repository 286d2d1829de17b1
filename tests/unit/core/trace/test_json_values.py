"""Strict copies of JSON, and conversion of any value to JSON."""

import json
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.json_values import MAX_DEPTH, MAX_VALUES, as_json, copy_object

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


class Size(IntEnum):
    BIG = 2


class Tier(StrEnum):
    SMALL = "small"


@given(st.dictionaries(st.text(), JSON))
def test_a_copy_equals_its_original(values: dict[str, Any]) -> None:
    """A copy of any JSON object serializes to the same text."""
    assert json.dumps(copy_object(values)) == json.dumps(values)


def test_a_copy_shares_no_container() -> None:
    """A copy shares no list or dict with its original, at any depth."""
    values: dict[str, Any] = {"a": [{"b": [1]}]}
    copied: Any = copy_object(values)
    values["a"][0]["b"].append(2)

    assert copied == {"a": [{"b": [1]}]}


def test_what_json_would_coerce_becomes_plain() -> None:
    """Tuples become lists, and enum members become their plain values."""
    copied = copy_object({"pair": (1, 2), "size": Size.BIG, "tier": Tier.SMALL})

    assert copied == {"pair": [1, 2], "size": 2, "tier": "small"}
    assert [type(value) for value in copied.values()] == [list, int, str]


def deep(levels: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for _ in range(levels):
        values = {"in": values}
    return values


@pytest.mark.req("001/snapshot")
@pytest.mark.parametrize(
    "bad",
    [
        {"key": {1, 2}},
        {"key": [object()]},
        {"key": b"bytes"},
        {"key": Decimal(1)},
        {"key": float("nan")},
        {"key": {"in": float("inf")}},
        {"key": {3: "number as key"}},
        {None: "no key"},
        deep(MAX_DEPTH + 1),
    ],
)
def test_metadata_that_is_not_json_is_refused(
    graph: ExecutionGraph, root: str, bad: dict[str, Any]
) -> None:
    """Metadata that is not JSON is rejected before the graph changes."""
    with pytest.raises(ValueError):  # noqa: PT011
        graph.begin_node(root, "llm", "plan", metadata=bad)
    with pytest.raises(ValueError):  # noqa: PT011
        ExecutionGraph().create_root("run", bad)

    assert graph.revision == 1


def test_an_endless_structure_is_refused() -> None:
    """A cyclic value is rejected with an error, not a stack overflow."""
    endless: dict[str, Any] = {}
    endless["self"] = [endless]

    with pytest.raises(ValueError, match="nested deeper"):
        copy_object(endless)
    assert copy_object(deep(MAX_DEPTH)) == deep(MAX_DEPTH)


def test_a_refusal_does_not_repeat_the_value() -> None:
    """The error names the key but not the value, which may be a secret."""
    with pytest.raises(ValueError, match="'token' is not a JSON value but bytes") as refusal:
        copy_object({"token": b"hunter2"})

    assert "hunter2" not in str(refusal.value)


class Hostile:
    """An object that raises on every access."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        raise RuntimeError("iter")


class HostileDict(dict[str, Any]):
    """A dict whose overridden methods raise."""

    def items(self) -> Any:
        raise RuntimeError("items")

    def __iter__(self) -> Any:
        raise RuntimeError("iter")

    def __len__(self) -> int:
        raise RuntimeError("len")


Point = namedtuple("Point", "x y")

HALF_PAST = datetime(2025, 1, 2, 3, 30, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.req("000/O2")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (1.5, 1.5),
        ("é", "é"),
        (float("nan"), None),
        (float("-inf"), None),
        (Decimal("0.25"), 0.25),
        (Decimal("Infinity"), None),
        (Decimal("sNaN"), None),
        (Decimal("1e999"), None),
        (Tier.SMALL, "small"),
        (Size.BIG, 2),
        (HALF_PAST, "2025-01-02T02:30:00Z"),
        (date(2025, 1, 2), "2025-01-02"),
        ((1, [2, {3}], frozenset({4})), [1, [2, [3]], [4]]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (
            {1: "a", None: "b", False: "c", 2.5: "d"},
            {"1": "a", "null": "b", "false": "c", "2.5": "d"},
        ),
        ({Tier.SMALL: 1, (1, 2): 2}, {"small": 1, "<tuple>": 2}),
        (b"secret", {"type": "bytes"}),
        (object(), {"type": "object"}),
        (Hostile, {"type": "type"}),
        (Hostile(), {"type": "Hostile"}),
        (HostileDict(a=[Hostile()]), {"a": [{"type": "Hostile"}]}),
        (2**5000, {"type": "int"}),
        ("a\ud800b", "a?b"),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), {"type": "datetime"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_value_has_a_form_in_json(value: object, shown: object) -> None:
    """Every value converts to JSON without running its own code."""
    found = as_json(value)

    assert found == shown
    assert type(found) is type(shown)
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


def test_the_instant_is_what_counts_and_not_its_zone() -> None:
    """Datetimes are converted to UTC with microseconds."""
    assert as_json(datetime(2025, 1, 2, 0, 0, 0, 5, UTC)) == "2025-01-02T00:00:00.000005Z"


def test_json_of_a_value_shares_nothing_mutable_with_it() -> None:
    """Later changes of a value do not change its JSON form."""
    inner = [1]
    found = as_json({"a": inner})
    inner.append(2)

    assert found == {"a": [1]}


@pytest.mark.req("000/O2")
def test_what_contains_itself_ends() -> None:
    """A cyclic reference is replaced by its type; a repeated list is not a cycle."""
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    twice = [1]

    assert as_json(cycle) == [1, {"again": {"type": "list"}}]
    assert as_json([twice, twice]) == [[1], [1]]


def test_depth_is_bounded() -> None:
    """A value is converted down to the maximum depth."""
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    found, depth = as_json(deep), 0
    while isinstance(found, list):
        found, depth = found[0], depth + 1

    assert (found, depth) == ({"type": "list"}, MAX_DEPTH)


@pytest.mark.req("000/O2")
def test_size_is_bounded() -> None:
    """A value that expands exponentially is cut at the maximum number of values."""
    bomb: list[Any] = ["x"]
    for _ in range(30):
        bomb = [bomb] * 10

    assert len(json.dumps(as_json(bomb))) < 30 * MAX_VALUES


def test_what_is_left_out_is_counted() -> None:
    """Omitted items are counted, in lists and in objects."""
    rows = as_json(list(range(MAX_VALUES + 50)))
    table = as_json({str(number): number for number in range(MAX_VALUES + 50)})

    assert isinstance(rows, list)
    assert isinstance(table, dict)
    assert (rows[-2], rows[-1]) == (MAX_VALUES - 2, {"omitted": 51})
    assert table["…"] == {"omitted": 51}


def test_long_type_names_are_cut() -> None:
    """Type names are shortened, because a caller can make them arbitrarily long."""
    assert as_json(type("T" * 5000, (), {})()) == {"type": "T" * 100}
