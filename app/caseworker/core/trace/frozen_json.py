"""Serialises JSON values for the store, within size limits.

A value may contain the same part many times, on several levels. A few kilobytes of memory can
therefore expand to gigabytes of JSON. Before a value is serialised, a traversal checks that it
fits. It visits each part once, but counts it each time that it would be written. The result is a
lower bound, because strings may need escapes. The serialised text gives the exact size.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from caseworker.core.trace.json_values import MAX_DEPTH

_WRITE: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode
_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_SMALL: Final = frozenset({bool, type(None)})

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


class ValueTooLargeError(ValueError):
    """A value exceeds a size limit; the message names the value and the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLimits:
    """Size limits for the values in a run, in bytes of compact JSON in UTF-8.

    The defaults are the same as in the configuration.
    """

    max_value_bytes: int = _MIB
    """Maximum size, in bytes, of one value: on a handle, in a template, or returned by a tool or
    model."""
    max_outputs_bytes: int = 2 * _MIB
    """Maximum total size, in bytes, of all outputs of one step."""
    max_result_bytes: int = 4 * _MIB
    """Maximum total size, in bytes, of all outputs of a run, which form its result."""
    max_event_bytes: int = 64 * _KIB
    """Maximum size, in bytes, of the data of one event."""
    max_run_bytes: int = 64 * _MIB
    """Maximum total size, in bytes, of the calls, steps and events stored for a run."""
    max_depth: int = MAX_DEPTH
    """Maximum nesting depth of lists and objects."""


USUAL_LIMITS: Final = ValueLimits()


@final
@dataclass(frozen=True, slots=True)
class FrozenJson:
    """An immutable value, serialised as JSON text."""

    text: str
    size_bytes: int

    def value(self) -> Any:
        """Return the value as it will be read from the store."""
        return json.loads(self.text)


def freeze(value: Any, *, max_bytes: int, max_depth: int, key: str) -> FrozenJson:
    """Serialise a value as JSON; NUL characters, which Postgres cannot store, become U+FFFD.

    ``key`` is the configuration key that sets ``max_bytes``; the error message names it.

    Raises:
        ValueTooLargeError: the value is larger than ``max_bytes`` or nested deeper than
            ``max_depth``; the message is a predicate, such as "has more than 10 bytes as JSON".
        ValueError: the value is not JSON.
    """
    walk = _Walk(value, max_bytes, max_depth, key)
    try:
        text = _WRITE(value)
    except (TypeError, RecursionError) as error:
        raise ValueError("Only JSON can be stored.") from error
    if "\\u0000" in text:
        text = _NUL.sub(r"\1\\ufffd", text)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    size += walk.digits
    if size > max_bytes:
        raise too_large(max_bytes, key)
    return FrozenJson(text, size)


def least_bytes(value: Any) -> int:
    """Return a lower bound for a value's size as JSON, in bytes: strings count without escapes."""
    return sys.maxsize - _Walk(value, sys.maxsize, sys.getrecursionlimit(), "").left


def thawed(value: Any) -> Any:
    """Parse a value if it is frozen; return any other value unchanged."""
    return value.value() if type(value) is FrozenJson else value


def frozen_object(parts: Mapping[str, FrozenJson]) -> FrozenJson:
    """Combine frozen values into one JSON object, by name, without serialising them again."""
    members, size = [], 1
    for name, part in parts.items():
        members.append(f"{_WRITE(name)}:{part.text}")
        size += part.size_bytes + len(name) + 4
    return FrozenJson(f"{{{','.join(members)}}}", size)


def too_large(max_bytes: int, key: str) -> ValueTooLargeError:
    """Build the error for a value larger than ``max_bytes``, the limit set by ``key``."""
    return ValueTooLargeError(f"has more than {max_bytes:,} bytes as JSON ({key})")


class _Walk:
    """Computes the minimum size of a value; visits a shared part once and counts each use.

    Raises ValueTooLargeError as soon as the value exceeds a limit.
    """

    __slots__ = ("_key", "_known", "_max_bytes", "_max_depth", "digits", "left")

    def __init__(self, value: Any, max_bytes: int, max_depth: int, key: str) -> None:
        self._max_bytes = self.left = max_bytes
        """``left`` is the number of bytes that may follow."""
        self._max_depth = max_depth
        self._key = key
        self._known: dict[int, tuple[int, int, int]] = {}
        """Bytes, digits and height of visited containers, by identity."""
        self.digits = 0
        """Additional digits of numbers in Postgres, which stores them without exponents."""
        self._items((value,), 0, 1)

    def _items(self, items: Iterable[Any], size: int, depth: int) -> int:
        """Count ``size`` bytes and the items at ``depth``; return their maximum height."""
        tallest = 0
        for item in items:
            kind = type(item)
            if kind is str:
                size += len(item)
            elif kind is int:
                if item.bit_length() > 24:
                    size += item.bit_length() >> 2
            elif kind is float:
                if item and not 1e-5 < abs(item) < 1e16 and math.isfinite(item):
                    # Python writes an exponent, and Postgres that many zeros.
                    zeros = int(abs(math.log10(abs(item))))
                    self.digits += zeros
                    size += zeros
            elif kind not in _SMALL and isinstance(item, dict | list | tuple):
                tallest = max(tallest, self._container(item, depth))
            elif isinstance(item, str):
                size += len(item)
        self.left -= size
        if self.left < 0:
            raise too_large(self._max_bytes, self._key)
        return tallest

    def _container(self, value: Any, depth: int) -> int:
        known = self._known.get(id(value))
        size, digits, height = known or (0, 0, 1)
        if depth + height - 1 > self._max_depth:
            raise ValueTooLargeError(
                f"is nested deeper than {self._max_depth} levels (limits.max_depth)"
            )
        if known is not None:
            self.digits += digits
            self._items((), size, depth)
            return height
        left, digits = self.left, self.digits
        size = 2 * len(value)
        if isinstance(value, dict):
            for name in value:
                size += len(name) + 3 if isinstance(name, str) else 3
            height += self._items(value.values(), size, depth + 1)
        else:
            height += self._items(value, size, depth + 1)
        self._known[id(value)] = left - self.left, self.digits - digits, height
        return height
