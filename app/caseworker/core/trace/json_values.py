"""Converts Python values to JSON: strict copies for metadata, and bounded renderings of any value.

``copy_object`` accepts JSON values only. ``as_json`` accepts every value: one that JSON cannot
represent is shown by its type name. Its ``repr`` is not used, because it might be very long, slow
to compute, or contain secrets.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from types import NoneType
from typing import Any, Final, cast

from caseworker.core.trace.node import Json, JsonObject

MAX_DEPTH: Final = 64
"""The maximum nesting depth of lists and objects wherever JSON is read or written."""

MAX_VALUES: Final = 10_000
"""Maximum number of values that ``as_json`` includes from one payload; the rest are only
counted."""

_MAX_INTEGER_BITS: Final = 256
_MAX_NAME_CHARS: Final = 100
_OMITTED: Final = "…"
_COPIED_AS_IS: Final[frozenset[type]] = frozenset({str, int, bool, NoneType})


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise ValueError("JSON has no such number")
    return value


JSON: Final = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)
"""Decoder for standard JSON: NaN and infinite numbers are rejected."""


class Metadata:
    """Metadata that was validated and copied once, so that several nodes can share it."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = copy_object(values)


def copy_object(values: Mapping[str, object], depth: int = 0) -> JsonObject:
    """Return a deep copy that shares nothing mutable with ``values``.

    Tuples become lists; instances of subclasses of str, int and float become plain ones. Nothing
    else is coerced. This is much cheaper than ``copy.deepcopy``.

    Raises:
        ValueError: a key is not a string, a value is not JSON, a number is not finite, or the
            nesting is deeper than ``MAX_DEPTH`` (or cyclic). The message contains keys and types,
            never values.
    """
    copied: JsonObject = {}
    for key, value in values.items():
        if type(key) is not str:
            raise ValueError(f"keys must be strings, not {type(key).__name__}")
        if type(value) in _COPIED_AS_IS:
            copied[key] = cast(Json, value)
        else:
            copied[key] = _copy_value(value, key, depth + 1)
    return copied


def _copy_value(value: object, key: str, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels at {key!r}")
    match value:
        case dict():
            return copy_object(value, depth)
        case list() | tuple():
            return [_copy_value(item, key, depth + 1) for item in value]
        case float() if isfinite(value):
            return float(value)
        case float():
            raise ValueError(f"{key!r} is not a JSON value but a number that is not finite")
        case str():
            return str.__str__(value)
        case None | bool():
            return value
        case int():
            return int(value)
        case _:
            raise ValueError(f"{key!r} is not a JSON value but {type(value).__name__}")


def as_json(value: object) -> Json:
    """Convert ``value`` to JSON that shares nothing mutable with it.

    Tuples and sets become lists, decimals become numbers, and datetimes RFC 3339 in UTC. Numbers
    that are not finite become null. Any other value becomes ``{"type": "<name of its type>"}``, and
    so does a container that contains itself or is nested deeper than ``MAX_DEPTH``.
    """
    return _Reader().read(value, 0)


class _Reader:
    """Renders one payload and counts its values."""

    __slots__ = ("_enclosing", "_values_left")

    def __init__(self) -> None:
        self._enclosing: set[int] = set()
        """The containers around the value that is being read, by identity."""
        self._values_left = MAX_VALUES

    def read(self, value: Any, depth: int) -> Json:
        self._values_left -= 1
        kind = type(value)  # isinstance would also ask the value for its __class__
        for sort, convert in _ATOMS.items():
            if issubclass(kind, sort):
                return convert(value)
        items_of = next((get for sort, get in _ITEMS.items() if issubclass(kind, sort)), None)
        if items_of is None or depth >= MAX_DEPTH or id(value) in self._enclosing:
            return _placeholder(value)
        items = list(items_of(value))  # copy in one step: other threads may change it concurrently
        self._enclosing.add(id(value))
        try:
            if issubclass(kind, dict):
                return dict(self._pairs(items, depth + 1))
            pairs = self._pairs([(None, item) for item in items], depth + 1)
            return [item for _, item in pairs]
        finally:
            self._enclosing.discard(id(value))

    def _pairs(self, items: list[tuple[Any, Any]], depth: int) -> Iterator[tuple[str, Json]]:
        """Yield keys and values up to ``MAX_VALUES``, then the number of omitted items."""
        for index, (key, value) in enumerate(items):
            if self._values_left <= 0:
                yield _OMITTED, {"omitted": len(items) - index}
                return
            yield _key(key), self.read(value, depth)


def _key(key: object) -> str:
    """Convert a key to a string: numbers and constants as JSON, other types as ``<type>``."""
    kind = type(key)
    if issubclass(kind, str):
        return _text(key)
    return json.dumps(as_json(key)) if kind in (int, float, bool, NoneType) else f"<{_name(kind)}>"


def _text(value: Any) -> str:
    text = str.__str__(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _integer(value: Any) -> Json:
    # Python refuses to write very long integers.
    fits = int.bit_length(value) <= _MAX_INTEGER_BITS
    return int.__int__(value) if fits else _placeholder(value)


def _number(value: Any) -> Json:
    number = float.__float__(value)
    return number if isfinite(number) else None


def _decimal(value: Any) -> Json:
    return _number(Decimal.__float__(value)) if Decimal.is_finite(value) else None


def _instant(value: Any) -> Json:
    """Format a datetime in UTC; one without a time zone is taken as local time."""
    try:
        return str(value.astimezone(UTC).isoformat().replace("+00:00", "Z"))
    except (OverflowError, ValueError, OSError):  # near the minimum or maximum of datetime
        return _placeholder(value)


def _placeholder(value: object) -> Json:
    return {"type": _name(type(value))}


def _name(kind: type) -> str:
    return _text(kind.__name__)[:_MAX_NAME_CHARS]


_ATOMS: Final[Mapping[type, Callable[[Any], Json]]] = {
    str: _text,
    NoneType: lambda value: None,
    bool: lambda value: bool(value),
    int: _integer,
    float: _number,
    Decimal: _decimal,
    datetime: _instant,
    date: date.isoformat,
}
"""The order matters: a bool is also an int, and a datetime is also a date."""

_ITEMS: Final[Mapping[type, Callable[[Any], Iterable[Any]]]] = {
    dict: dict.items,
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
}
"""Uses the methods of the built-in types, because a subclass may override iteration arbitrarily."""
