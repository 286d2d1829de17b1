"""Any value as JSON."""

import json
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from app.trace.json_values import MAX_DEPTH, MAX_VALUES, as_json


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Hostile:
    """Breaks whoever asks it anything."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        raise RuntimeError("iter")


class HostileDict(dict[str, Any]):
    """A dict whose own methods are traps."""

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
        (Colour.RED, "red"),
        (Number.ONE, 1),
        (HALF_PAST, "2025-01-02T02:30:00Z"),
        (date(2025, 1, 2), "2025-01-02"),
        ((1, [2, {3}], frozenset({4})), [1, [2, [3]], [4]]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (
            {1: "a", None: "b", False: "c", 2.5: "d"},
            {"1": "a", "null": "b", "false": "c", "2.5": "d"},
        ),
        ({Colour.RED: 1, (1, 2): 2}, {"red": 1, "<tuple>": 2}),
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
    """And none of its own code is run."""
    found = as_json(value)

    assert found == shown
    assert type(found) is type(shown)
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


def test_the_instant_is_what_counts_and_not_its_zone() -> None:
    """Everything in UTC, to the microsecond."""
    assert as_json(datetime(2025, 1, 2, 0, 0, 0, 5, UTC)) == "2025-01-02T00:00:00.000005Z"


def test_nothing_mutable_is_shared() -> None:
    """A trace that was written down does not change."""
    inner = [1]
    found = as_json({"a": inner})
    inner.append(2)

    assert found == {"a": [1]}


@pytest.mark.req("000/O2")
def test_what_contains_itself_ends() -> None:
    """The same list twice side by side is no cycle."""
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    twice = [1]

    assert as_json(cycle) == [1, {"again": {"type": "list"}}]
    assert as_json([twice, twice]) == [[1], [1]]


def test_depth_is_bounded() -> None:
    """A thousand lists inside one another are not followed."""
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    found, depth = as_json(deep), 0
    while isinstance(found, list):
        found, depth = found[0], depth + 1

    assert (found, depth) == ({"type": "list"}, MAX_DEPTH)


@pytest.mark.req("000/O2")
def test_size_is_bounded() -> None:
    """Thirty lists, each ten times in the next, would be more than the memory of the world."""
    bomb: list[Any] = ["x"]
    for _ in range(30):
        bomb = [bomb] * 10

    assert len(json.dumps(as_json(bomb))) < 30 * MAX_VALUES


def test_what_is_left_out_is_counted() -> None:
    """In lists and in objects."""
    rows = as_json(list(range(MAX_VALUES + 50)))
    table = as_json({str(number): number for number in range(MAX_VALUES + 50)})

    assert isinstance(rows, list)
    assert isinstance(table, dict)
    assert (rows[-2], rows[-1]) == (MAX_VALUES - 2, {"omitted": 51})
    assert table["…"] == {"omitted": 51}


def test_long_type_names_are_cut() -> None:
    """They can be made by whoever makes the value."""
    assert as_json(type("T" * 5000, (), {})()) == {"type": "T" * 100}
