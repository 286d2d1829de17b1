"""Deep copies of plain JSON values, far cheaper than ``copy.deepcopy``."""

from collections.abc import Mapping
from math import isfinite
from typing import Final, cast

from app.trace.node import Json, JsonObject

MAX_DEPTH: Final = 32
"""How many lists and objects may stand inside one another."""

_ATOMS: Final[frozenset[type]] = frozenset({str, int, bool, type(None)})


class Metadata:
    """Metadata that was checked and copied once, for all nodes that share it."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        """Copy ``values``.

        Raises:
            ValueError: they are not JSON.
        """
        self.values = copy_object(values)


def copy_object(values: Mapping[str, object], depth: int = 0) -> JsonObject:
    """Return a deep copy that shares nothing mutable with ``values``.

    Tuples become lists and subclasses of str, int and float become those; nothing else is coerced.

    Raises:
        ValueError: a key is not a string, a value is no JSON value, a number is not finite, or the
            nesting is deeper than ``MAX_DEPTH`` (or endless). The message names keys and types,
            never values.
    """
    copied: JsonObject = {}
    for key, value in values.items():
        if type(key) is not str:
            raise ValueError(f"keys must be strings, not {type(key).__name__}")
        if type(value) in _ATOMS:
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
        case str():
            return str.__str__(value)
        case None | bool():
            return value
        case int():
            return int(value)
        case _:
            raise ValueError(f"{key!r} is not a JSON value but {_described(value)}")


def _described(value: object) -> str:
    return "a number that is not finite" if isinstance(value, float) else type(value).__name__
