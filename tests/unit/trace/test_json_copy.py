"""Metadata goes in and out as plain JSON."""

import json
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.trace.execution_graph import ExecutionGraph
from app.trace.json_values import MAX_DEPTH, copy_object

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
    """Whatever JSON can hold, types included."""
    assert json.dumps(copy_object(values)) == json.dumps(values)


def test_a_copy_shares_no_container() -> None:
    """At any depth."""
    values: dict[str, Any] = {"a": [{"b": [1]}]}
    copied: Any = copy_object(values)
    values["a"][0]["b"].append(2)

    assert copied == {"a": [{"b": [1]}]}


def test_what_json_would_coerce_becomes_plain() -> None:
    """Tuples are lists; enums of str and int are what they hold."""
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
    """Before anything changes."""
    with pytest.raises(ValueError):  # noqa: PT011
        graph.begin_node(root, "llm", "plan", metadata=bad)
    with pytest.raises(ValueError):  # noqa: PT011
        ExecutionGraph().create_root("run", bad)

    assert graph.revision == 1


def test_an_endless_structure_is_refused() -> None:
    """Not with a stack overflow."""
    endless: dict[str, Any] = {}
    endless["self"] = [endless]

    with pytest.raises(ValueError, match="nested deeper"):
        copy_object(endless)
    assert copy_object(deep(MAX_DEPTH)) == deep(MAX_DEPTH)


def test_a_refusal_does_not_repeat_the_value() -> None:
    """It could be a secret."""
    with pytest.raises(ValueError, match="'token' is not a JSON value but bytes") as refusal:
        copy_object({"token": b"hunter2"})

    assert "hunter2" not in str(refusal.value)
