"""JSON values are measured before they are serialized, and serialized once."""

import json
from datetime import date
from enum import IntFlag, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.trace.frozen_json import (
    FrozenJson,
    ValueTooLargeError,
    freeze,
    frozen_object,
    thawed,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(-1e15, 1e15).filter(lambda x: x == 0 or abs(x) > 1e-4)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def frozen(value: Any, max_bytes: int = 1 << 20, max_depth: int = 64) -> FrozenJson:
    return freeze(value, max_bytes=max_bytes, max_depth=max_depth, key="limits.some_kb")


def written(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


@given(JSON)
def test_the_limit_is_exact_to_the_byte(value: Any) -> None:
    """A value passes at a limit of exactly its size in bytes, and fails at one byte less."""
    value = json.loads(json.dumps(value).replace("\\u0000", "x"))
    size = len(written(value))

    assert frozen(value, size).size_bytes == size
    assert frozen(value, size).value() == value
    with pytest.raises(ValueTooLargeError, match="more than"):
        frozen(value, size - 1)


class Colour(StrEnum):
    RED = "red"


class Bits(IntFlag):
    A = 1
    B = 2


class Text(str):
    """A text of a tool's own type."""


@pytest.mark.parametrize(
    "value",
    [
        *(1e16, 1e-5, -0.0, 5e-324, 1.7e308, [1.7e308, 1.7e308]),
        *(2**64, [2**200], "\ud800", "a\\u0000", Colour.RED, Text("x"), {Text("x"): Colour.RED}),
        *((1, (2, 3)), {1: 2}, {None: 1, True: 2, 1.5: 3}, Bits.A | Bits.B),
        json.loads("[" * 300 + "]" * 300),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_both_writers_write_the_same_value(value: Any) -> None:
    """Numbers, types, names and depths that the fast writer refuses or may write differently."""
    assert frozen(value, max_depth=1000).value() == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "value",
    [float("nan"), [float("-inf")], [1, {"a": [float("inf")]}, 0.5], UUID(int=1), date.max, {1}],
    ids=repr,
)
def test_only_json_is_written(value: Any) -> None:
    """Types and numbers that the fast writer would accept are refused."""
    with pytest.raises(ValueError, match="JSON"):
        frozen([value])


def test_shared_parts_count_each_time() -> None:
    """Shared parts count each time, so a value of 10^60 bytes is rejected without expanding it."""
    value: Any = "x"
    for _ in range(60):
        value = [value] * 10
    with pytest.raises(ValueTooLargeError, match="more than 1,048,576 bytes"):
        frozen(value)

    shared = ["x" * 10] * 3
    assert frozen([shared, shared]).size_bytes == len(written([shared, shared]))


@pytest.mark.parametrize("value", ["endless", "deep", "deep by sharing"])
def test_what_is_nested_too_deeply_is_refused(value: str) -> None:
    """A value nested too deeply is rejected, even if it is cyclic or deep only through sharing."""
    found: Any = []
    if value == "endless":
        found.append(found)
    for _ in range(40):
        found = [found]
    if value != "deep by sharing":
        for _ in range(60):
            found = [found]
    else:
        found = [found, [[[[[[[[[[[[[[[[[[[[[[[[[found]]]]]]]]]]]]]]]]]]]]]]]]]]

    with pytest.raises(ValueTooLargeError, match="deeper than 64 levels"):
        frozen(found)


def test_numbers_count_as_the_database_writes_them() -> None:
    """Numbers count in the form Postgres stores: 1e308 has 309 digits."""
    assert frozen([1e308, 1e-308, 0.5]).size_bytes > 600
    with pytest.raises(ValueTooLargeError):
        frozen([1e308] * 1000, 100_000)
    with pytest.raises(ValueTooLargeError):
        frozen([10**4000] * 1000, 100_000)


@pytest.mark.parametrize("value", [object(), {"x": {1, 2}}, float("nan"), [float("inf")]])
def test_what_is_not_json_is_refused(value: Any) -> None:
    """A value that is not JSON is rejected, not coerced."""
    with pytest.raises(ValueError, match="JSON"):
        frozen(value)


def test_nul_is_replaced_and_its_name_is_not() -> None:
    """NUL is replaced, because Postgres text cannot hold it; an escaped spelling stays."""
    assert frozen("a\0b\\u0000").value() == "a\ufffdb\\u0000"


def test_frozen_parts_are_joined_without_being_written_again() -> None:
    """Frozen parts are joined as text, and the size is that of the whole object."""
    whole = frozen_object({"a": frozen([1, "\u00e4"]), "b": frozen(None)})

    assert thawed(whole) == {"a": [1, "\u00e4"], "b": None}
    assert whole.size_bytes == len(whole.text.encode())
    assert frozen_object({}).text == "{}"
