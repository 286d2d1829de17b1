"""Serialises JSON values for the store, within size limits.

A value may contain the same part many times, on several levels. A few kilobytes of memory can
therefore expand to gigabytes of JSON. Before a value is serialised, a traversal checks that it
fits. It counts each part each time that it would be written, and ends at the limit. The result is
a lower bound, because strings may need escapes. The serialised text gives the exact size.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from operator import is_
from typing import Any, Final, final

import orjson

from caseworker.core.trace.json_values import MAX_DEPTH

_WRITE: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode
_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_SMALL: Final = frozenset({bool, type(None)})
_PLAIN: Final = _SMALL | {str, int, float, dict, list, tuple}
"""Types that both writers of JSON write in the same way."""

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


DEFAULT_VALUE_LIMITS: Final = ValueLimits()


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
    _, digits, is_plain = _measure(value, max_bytes, max_depth, key)
    try:
        text = _written(value, is_plain=is_plain)
    except (TypeError, RecursionError) as error:
        raise ValueError("Only JSON can be stored.") from error
    if "\\u0000" in text:
        text = _NUL.sub(r"\1\\ufffd", text)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    size += digits
    if size > max_bytes:
        raise value_too_large_error(max_bytes, key)
    return FrozenJson(text, size)


def least_bytes(value: Any) -> int:
    """Return a lower bound for a value's size as JSON, in bytes: strings count without escapes."""
    return _measure(value, sys.maxsize, sys.getrecursionlimit(), "")[0]


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


def value_too_large_error(max_bytes: int, key: str) -> ValueTooLargeError:
    """Build the error for a value larger than ``max_bytes``, the limit set by ``key``."""
    return ValueTooLargeError(f"has more than {max_bytes:,} bytes as JSON ({key})")


def _written(value: Any, *, is_plain: bool) -> str:
    """Return a value as JSON text; for a plain value that takes a tenth of the time."""
    if is_plain:
        try:
            return orjson.dumps(value).decode()
        except orjson.JSONEncodeError:
            pass  # a long integer, a name that is a number, or an unpaired surrogate
    return _WRITE(value)


def _measure(value: Any, max_bytes: int, max_depth: int, key: str) -> tuple[int, int, bool]:
    """Return the minimum size of a value in bytes, and how many of them Postgres adds as digits.

    The third part is whether the value has only plain types and finite numbers.

    The value is visited level by level, because functions in C count a whole level. Before a level
    is visited, its number of values is known to be less than ``max_bytes``.

    Raises:
        ValueTooLargeError: the value exceeds a limit.
    """
    size = digits = depth = 0
    is_plain = True
    level: Sequence[Any] = (value,)
    while level:
        depth += 1
        inner: list[Iterable[Iterable[Any]]] = []
        kinds = {*map(type, level)}
        is_plain = is_plain and kinds <= _PLAIN
        for kind in kinds:
            if kind in _SMALL:
                continue
            items: Sequence[Any] = level
            if len(kinds) > 1:
                items = [*compress(level, map(is_, map(type, level), repeat(kind)))]
            if kind is str:
                size += sum(map(len, items))
            elif kind is int:
                if min(items) < 0 or max(items) >> 24:
                    size += sum([each.bit_length() >> 2 for each in items if each >> 24])
            elif kind is float:
                zeros = sum(map(_zeros, items))
                digits, size = digits + zeros, size + zeros
                is_plain = is_plain and math.isfinite(sum(items))
            elif issubclass(kind, dict | list | tuple):
                if depth > max_depth:
                    raise ValueTooLargeError(
                        f"is nested deeper than {max_depth} levels (limits.max_depth)"
                    )
                size += 2 * sum(map(len, items))
                if not issubclass(kind, dict):
                    inner.append(items)
                elif size <= max_bytes:
                    names = [*chain.from_iterable(items)]
                    size += 3 * len(names) + sum(map(len, filter(str.__instancecheck__, names)))
                    inner.append(map(kind.values, items))
            elif issubclass(kind, str):
                size += sum(map(len, items))
        if size > max_bytes:
            raise value_too_large_error(max_bytes, key)
        level = [*chain.from_iterable(chain.from_iterable(inner))] if inner else ()
    return size, digits, is_plain


def _zeros(number: float) -> int:
    """Return how many zeros Postgres writes instead of the exponent that Python writes."""
    if not number or 1e-5 < abs(number) < 1e16 or not math.isfinite(number):
        return 0
    return int(abs(math.log10(abs(number))))
