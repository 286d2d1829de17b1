"""Converts the results of tools to JSON values that share nothing with the tool.

Values mean what pydantic makes of their types: dates and decimals become text, sets, iterators and
named tuples become lists, enums their values, dataclasses and models objects. In addition:

- A number that is not finite becomes null.
- NUL and lone surrogates, which the database and most providers refuse, become U+FFFD.
- Iterators end at the size limit, and values that contain themselves at the depth limit.
"""

import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from concurrent.futures import Executor
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from itertools import chain, islice
from math import isfinite
from types import NoneType
from typing import Any, Final

from pydantic_core import to_jsonable_python

from caseworker.core.trace.frozen_json import ValueTooLargeError, value_too_large_error
from caseworker.core.trace.json_values import MAX_DEPTH
from caseworker.engine.containment import in_thread
from caseworker.tools.ports import ToolResult

_KEY: Final = "limits.max_value_kb"
_PLAIN: Final = frozenset({str, int, float, bool, NoneType, dict, list})
_MAX_DIGITS: Final = sys.int_info.default_max_str_digits
_MAX_BITS: Final = int(_MAX_DIGITS / 0.30103)
_ITEMS: Final = (dict, list, tuple, set, frozenset, deque)
"""Types whose own methods read the items, because a subclass may override them arbitrarily."""
_ITERABLE: Final = (Iterator, Sequence, Set, ValuesView)
_TEXTS: Final = (bytes, bytearray, memoryview)


class UnfitResultError(ValueError):
    """A tool returned what JSON cannot represent; the message names the type and what to do."""


async def result_of_async(
    value: Any, *, threads: Executor | None, max_bytes: int, max_depth: int = MAX_DEPTH
) -> ToolResult:
    """Convert a result on the event loop; raises the same as :func:`tool_result_of`.

    Anything but JSON is converted in one of the ``threads``: its code may block.
    """
    if _plain_size(value, max_bytes, max_depth) is not None:
        return _object_of(to_jsonable_python(value))
    call = partial(tool_result_of, value, max_bytes=max_bytes, max_depth=max_depth)
    return await in_thread(call, threads)


def tool_result_of(value: Any, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> ToolResult:
    """Convert a result to JSON; any value except an object becomes ``{"value": …}``.

    Raises:
        UnfitResultError: a part of it is not representable as JSON.
        ValueTooLargeError: it has more than ``max_bytes`` as JSON, or more than ``max_depth``
            levels.
        BaseException: code of the value raised it, such as a generator.
    """
    return _object_of(_Conversion(max_bytes, max_depth).convert(value, 1))


def _object_of(value: Any) -> ToolResult:
    return value if type(value) is dict else {"value": value}


def _plain_size(value: Any, max_bytes: int, max_depth: int) -> int | None:
    """Return the least size of a value that is JSON as it is, in bytes; None for any other value.

    Functions in C read a whole level of it at once.

    Raises:
        ValueTooLargeError: it exceeds a limit.
    """
    level: Sequence[Any] = (value,)
    size = depth = 0
    while level:
        depth += 1
        by_kind: dict[type, list[Any]] = {kind: [] for kind in {*map(type, level)}}
        if not by_kind.keys() <= _PLAIN:
            return None
        for each in level:
            by_kind[type(each)].append(each)
        lists, objects = by_kind.get(list, ()), by_kind.get(dict, ())
        if depth > max_depth and (lists or objects):
            raise _too_deep(max_depth)
        # Before the parts are listed or joined: each may occur many times.
        size += 2 * sum(map(len, chain(lists, objects)))
        if size > max_bytes:
            raise _too_large(max_bytes)
        names = [*chain.from_iterable(objects)]
        if {*map(type, names)} - {str}:
            return None
        texts = [*names, *by_kind.get(str, ())]
        size += sum(map(len, texts))
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not _is_storable("".join(texts)) or not all(map(isfinite, by_kind.get(float, ()))):
            return None
        if any(each.bit_length() > _MAX_BITS for each in by_kind.get(int, ())):
            return None
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, objects))]
    return size


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


class _Conversion:
    """The conversion of one result."""

    def __init__(self, max_bytes: int, max_depth: int) -> None:
        self._max_bytes = self._bytes_left = max_bytes
        self._max_depth = max_depth

    def convert(self, value: Any, depth: int) -> Any:
        """Return a part of the result as JSON."""
        kind = type(value)  # isinstance would also ask the value for its __class__
        self._take(2)
        if issubclass(kind, Enum):
            return self.convert(value.value, depth)
        if issubclass(kind, NoneType | bool):
            return value
        if issubclass(kind, int):
            return _integer(value)
        if issubclass(kind, float):
            number = float.__float__(value)
            return number if isfinite(number) else None
        if issubclass(kind, str):
            return self._text(str.__str__(value))
        if hasattr(kind, "__pydantic_serializer__") or issubclass(kind, _TEXTS):
            return self._of_pydantic(value, depth)
        return self._of_parts(value, depth)

    def _of_parts(self, value: Any, depth: int) -> Any:
        """Return a value that has parts as JSON."""
        kind = type(value)
        if depth > self._max_depth:
            raise _too_deep(self._max_depth)
        if kind in (dict, list):
            bytes_left, levels = self._bytes_left, self._max_depth - depth + 1
            if (size := _plain_size(value, bytes_left, levels)) is not None:
                self._take(size)
                return to_jsonable_python(value)
        for sort in _ITEMS:
            if issubclass(kind, sort):
                items = dict.items(value) if sort is dict else sort.__iter__(value)
                return self._object(items, depth) if sort is dict else self._list(items, depth)
        if issubclass(kind, Mapping):
            return self._object(value.items(), depth)
        if issubclass(kind, _ITERABLE):
            max_items = self._bytes_left // 2
            read = list(islice(value, max_items + 1))
            if len(read) > max_items:  # it may be endless
                raise _too_large(self._max_bytes)
            return self.convert(read, depth)
        if is_dataclass(kind):
            pairs = ((each.name, getattr(value, each.name)) for each in fields(kind))
            return self._object(pairs, depth)
        if issubclass(kind, AsyncIterator):
            raise UnfitResultError("The tool returned an async generator: return a list instead.")
        return self._of_pydantic(value, depth)

    def _text(self, text: str) -> str:
        self._take(len(text))
        if _is_storable(text):
            return text
        repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return repaired.replace("\0", "\ufffd")

    def _list(self, items: Iterable[Any], depth: int) -> list[Any]:
        return [self.convert(each, depth + 1) for each in items]

    def _object(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, each in items:
            name = self._name(key)
            if name in members:
                raise UnfitResultError(
                    "The tool returned an object with two keys that are equal as text: rename one."
                )
            members[name] = self.convert(each, depth + 1)
        return members

    def _name(self, key: Any) -> str:
        if not issubclass(type(key), str) or issubclass(type(key), Enum):
            try:
                (key,) = to_jsonable_python({key: None})
            except ValueError as error:
                raise _unfit(key) from error
        return self._text(str.__str__(key))

    def _of_pydantic(self, value: Any, depth: int) -> Any:
        if _holds_iterator(value):  # it may be endless
            raise UnfitResultError("The tool returned a model with an iterator: use a list.")
        plain = _jsonable(value)
        if type(plain) in _PLAIN:
            return self.convert(plain, depth)
        raise _unfit(value)

    def _take(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise _too_large(self._max_bytes)


def _holds_iterator(value: Any) -> bool:
    """Return whether a model holds an iterator, also in its lists, mappings and other models."""
    parts, seen = [value], set[int]()
    while parts:
        part = parts.pop()
        kind = type(part)
        if issubclass(kind, Iterator):
            return True
        if issubclass(kind, _TEXTS) or id(part) in seen:
            continue
        seen.add(id(part))
        parts += _members(part, kind)
    return False


def _members(part: Any, kind: type) -> Iterator[Any]:
    """Yield the elements or fields of a container or model."""
    if issubclass(kind, dict):
        yield from dict.values(part)  # unbound, here and below: a subclass may override the method
    for container in (list, tuple, set, frozenset, deque):
        if issubclass(kind, container):
            yield from container.__iter__(part)
    if hasattr(kind, "__pydantic_serializer__") or is_dataclass(kind):
        yield from getattr(part, "__dict__", {}).values()
        yield from (getattr(part, "__pydantic_extra__", None) or {}).values()
        if is_dataclass(kind):
            yield from (getattr(part, each.name, None) for each in fields(kind))


def _jsonable(value: Any) -> Any:
    try:
        return to_jsonable_python(value, inf_nan_mode="null")
    except UnicodeDecodeError:
        raise UnfitResultError(
            "The tool returned bytes that are not UTF-8: return text, or save a file."
        ) from None
    except (ValueError, RecursionError) as error:  # PydanticSerializationError is a ValueError
        raise _unfit(value) from error


def _integer(value: Any) -> int:
    if int.bit_length(value) > _MAX_BITS:
        raise UnfitResultError(
            f"The tool returned an integer of more than {_MAX_DIGITS:,} digits: return it as text."
        )
    return int.__int__(value)


def _unfit(value: Any) -> UnfitResultError:
    name = type(value).__name__[:60]
    return UnfitResultError(
        f"The tool returned an object of the type {name}, which cannot be converted to"
        " JSON: return a dict, a list, a dataclass or a pydantic model."
    )


def _too_large(max_bytes: int) -> ValueTooLargeError:
    return ValueTooLargeError(f"The result {value_too_large_error(max_bytes, _KEY)}.")


def _too_deep(max_depth: int) -> ValueTooLargeError:
    return ValueTooLargeError(
        f"The result contains itself, or is nested deeper than {max_depth} levels"
        " (limits.max_depth)."
    )
