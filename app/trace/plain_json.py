"""Any Python value as JSON, for traces.

What JSON cannot hold is shown by the name of its type, never by its ``repr``, which could be
endless, slow or secret. Cycles, depth and size are bounded. (To copy what is JSON already, and
refuse the rest, see ``json_copy``.)
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from types import MappingProxyType, NoneType
from typing import Any, Final

from app.trace.json_copy import MAX_DEPTH
from app.trace.node import Json, JsonObject

MAX_VALUES: Final = 10_000
"""How many values are shown of one payload; of the rest, how many there are."""

_LONGEST_INTEGER_BITS: Final = 256
_LONGEST_NAME_CHARS: Final = 100
_REST: Final = "…"


def as_json(value: object) -> Json:
    """Return ``value`` as JSON that shares nothing mutable with it.

    Tuples and sets become lists, decimals numbers, instants RFC 3339 in UTC; numbers that are not
    finite become null. What JSON has no place for becomes ``{"type": "<name of its type>"}``, and
    so does a container that stands inside itself or more than ``MAX_DEPTH`` deep.
    """
    return _Reader().read(value, 0)


def rfc3339(moment: datetime) -> str:
    """Return an instant in UTC; one without a zone is taken as local time."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


class _Reader:
    """Reads one payload."""

    __slots__ = ("_around", "_left")

    def __init__(self) -> None:
        self._around: set[int] = set()
        """The containers around the value that is being read, by identity."""
        self._left = MAX_VALUES

    def read(self, value: Any, depth: int) -> Json:
        self._left -= 1
        kind = type(value)  # not isinstance, which also asks the value what it claims to be
        for sort, convert in _ATOMS.items():
            if issubclass(kind, sort):
                return convert(value)
        items_of = next((get for sort, get in _ITEMS.items() if issubclass(kind, sort)), None)
        if items_of is None or depth >= MAX_DEPTH or id(value) in self._around:
            return _placeholder(value)
        items = list(items_of(value))  # at once, because others may change it meanwhile
        self._around.add(id(value))
        try:
            if issubclass(kind, dict):
                return self._object(items, depth + 1)
            return self._array(items, depth + 1)
        finally:
            self._around.discard(id(value))

    def _object(self, items: list[tuple[Any, Any]], depth: int) -> Json:
        found: JsonObject = {}
        for index, (key, value) in enumerate(items):
            if self._left <= 0:
                found[_REST] = {"omitted": len(items) - index}
                break
            found[_key(key)] = self.read(value, depth)
        return found

    def _array(self, items: list[Any], depth: int) -> Json:
        found: list[Json] = []
        for index, value in enumerate(items):
            if self._left <= 0:
                found.append({"omitted": len(items) - index})
                break
            found.append(self.read(value, depth))
        return found


def _key(key: object) -> str:
    """Return a name for a key: of a number or constant as JSON writes it, else of its type."""
    kind = type(key)
    if issubclass(kind, str):
        return _text(key)
    if kind in (int, float, bool, NoneType):
        return json.dumps(as_json(key))
    return f"<{_name(kind)}>"


def _text(value: Any) -> str:
    text = str.__str__(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _integer(value: Any) -> Json:
    if int.bit_length(value) > _LONGEST_INTEGER_BITS:  # Python refuses to write very long ones
        return _placeholder(value)
    return int.__int__(value)


def _number(value: Any) -> Json:
    number = float.__float__(value)
    return number if isfinite(number) else None


def _decimal(value: Any) -> Json:
    return _number(Decimal.__float__(value)) if Decimal.is_finite(value) else None


def _instant(value: Any) -> Json:
    try:
        return rfc3339(value)
    except (OverflowError, ValueError, OSError):  # a local time at the very edge of the calendar
        return _placeholder(value)


def _placeholder(value: object) -> Json:
    return {"type": _name(type(value))}


def _name(kind: type) -> str:
    return _text(kind.__name__)[:_LONGEST_NAME_CHARS]


_ATOMS: Final[Mapping[type, Callable[[Any], Json]]] = MappingProxyType(
    {
        str: _text,
        NoneType: lambda value: None,
        bool: lambda value: bool(value),
        int: _integer,
        float: _number,
        Decimal: _decimal,
        datetime: _instant,
        date: date.isoformat,
    }
)
"""In this order: a bool is an int too, and a datetime a date."""

_ITEMS: Final[Mapping[type, Callable[[Any], Iterable[Any]]]] = MappingProxyType(
    {
        dict: dict.items,
        list: list.__iter__,
        tuple: tuple.__iter__,
        set: set.__iter__,
        frozenset: frozenset.__iter__,
    }
)
"""By type and not by the value, whose own class may do anything when it is iterated."""
