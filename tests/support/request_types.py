"""Derives sample bodies from the request types of the vendors' libraries."""

import collections.abc
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import typing_extensions

MAX_NESTED = 2
"""How often a type that contains itself is repeated in a sample."""


def samples_of(request: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a body for each field and each literal value in a type of requests, with its path.

    A body holds nothing but the objects that lead to the field, and their discriminators.
    """
    yield from _samples(request, (), "")


def _samples(annotation: Any, outer: tuple[Any, ...], path: str) -> Iterator[tuple[str, Any]]:
    for member in _members(annotation):
        origin, inner = get_origin(member), get_args(member)
        if typing_extensions.is_typeddict(member):
            if outer.count(member) < MAX_NESTED:
                yield from _objects(member, (*outer, member), path)
        elif origin is Literal:
            yield from ((f"{path}={value!r}", value) for value in inner)
        elif origin in (list, tuple, collections.abc.Iterable, collections.abc.Sequence):
            yield from ((at, [each]) for at, each in _samples(inner[0], outer, f"{path}[]"))
        elif origin in (dict, collections.abc.Mapping):
            yield from ((at, {"key": each}) for at, each in _samples(inner[1], outer, f"{path}.*"))
        elif member is object or member is Any:
            yield path, {"key": 1}
        elif member is not type(None):
            yield path, {int: 1, float: 0.5, bool: True}.get(member, "text")


def _objects(kind: Any, outer: tuple[Any, ...], path: str) -> Iterator[tuple[str, Any]]:
    """Yield an object for each field of a ``TypedDict``, and for each of its discriminators."""
    hints = typing_extensions.get_type_hints(kind)
    names = [name for _, name in _samples(hints["type"], (), "")] if "type" in hints else []
    for name in names or [None]:
        of_type = {} if name is None else {"type": name}
        at = path if name is None else f"{path}<{name}>"
        yield at, of_type
        for field, annotation in hints.items():
            if field != "type":
                for inner, value in _samples(annotation, outer, f"{at}.{field}".lstrip(".")):
                    yield inner, {**of_type, field: value}


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows."""
    while True:
        origin = get_origin(annotation)
        if origin in (typing_extensions.Required, typing_extensions.NotRequired):
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, typing_extensions.TypeAliasType):
            annotation = annotation.__value__
        else:
            break
    if origin is Union or origin is types.UnionType:
        for each in get_args(annotation):
            yield from _members(each)
    else:
        yield annotation
