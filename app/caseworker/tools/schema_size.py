"""Measures a JSON Schema before it is compiled.

A subschema is counted once for each reference to it. A few definitions that refer to each other
twice can expand to thousands of subschemas.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

from caseworker.core.trace.json_values import MAX_DEPTH

MAX_BYTES: Final = 64 * 1024
MAX_SUBSCHEMAS: Final = 5000
MAX_VALUES: Final = 25_000
"""Maximum number of JSON values in a schema, counted once for each reference to them."""
MAX_PATTERNS: Final = 50
MAX_PATTERN_CHARS: Final = 256
PATTERN_WORK: Final = 150
"""Maximum cost of matching a pattern against one character, in subschema checks."""

_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords that map arbitrary names to subschemas."""
_NO_SCHEMAS: Final = frozenset({"$defs", "definitions", "examples", "default"})
"""Keywords whose contents are not validated, or only through a reference."""
_CONSTANTS: Final = frozenset({"enum", "const"})
"""Keywords with JSON values to compare an instance with."""
_BRANCHES: Final = frozenset({"anyOf", "oneOf"})
"""Keywords whose errors include the errors of every branch."""
_REFUSED: Final = frozenset({"$id", "$dynamicRef", "$recursiveRef"})
"""Keywords that change how references are resolved."""


@dataclass(frozen=True, slots=True)
class SchemaSize:
    """The measured size of a JSON Schema."""

    subschemas: int
    """Number of subschemas after expansion, plus the lists and objects in ``enum`` and ``const``. A
    recursive reference is followed once."""
    values: int
    """Number of JSON values after expansion. A subschema reports at most one error for each of its
    values."""
    patterns: int
    recursions: int
    """Number of references to a schema that contains the reference."""
    has_branches: bool
    """Whether ``anyOf`` or ``oneOf`` occurs anywhere in the schema."""

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        """Measure a schema.

        Raises:
            ValueError: the schema is invalid or too large; the message names the limit.
        """
        try:
            size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        except RecursionError:
            raise ValueError("A JSON Schema may not be nested so deeply.") from None
        if size > MAX_BYTES:
            raise ValueError(f"A JSON Schema may have at most {MAX_BYTES:,} bytes.")
        patterns = list(_patterns_in(schema))
        if len(patterns) > MAX_PATTERNS or any(len(p) > MAX_PATTERN_CHARS for p in patterns):
            raise ValueError(
                f"A JSON Schema may have at most {MAX_PATTERNS} patterns, of at most"
                f" {MAX_PATTERN_CHARS} characters each."
            )
        expansion = _Expansion(schema)
        expansion.visit(schema)
        return cls(
            subschemas=expansion.subschemas,
            values=expansion.values,
            patterns=len(patterns),
            recursions=expansion.recursions,
            has_branches=any(_BRANCHES & one.keys() for one in _objects_in(schema)),
        )

    def work(self, chars: int, depth: int) -> float:
        """Return the maximum number of subschema checks for validating an instance.

        The instance has ``chars`` characters and is nested ``depth`` levels deep.
        """
        return chars * (self.subschemas + PATTERN_WORK * self.patterns) * self._rounds(depth)

    def errors(self, values: int, depth: int) -> float:
        """Return the maximum number of errors that an instance can have.

        The instance has ``values`` JSON values and is nested ``depth`` levels deep.
        """
        return values * self.values * self._rounds(depth)

    def _rounds(self, depth: int) -> float:
        return float(max(1, self.recursions)) ** depth


def _objects_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    unseen = [schema]
    while unseen:
        one = unseen.pop()
        if isinstance(one, Mapping):
            yield one
            unseen += one.values()
        elif isinstance(one, list):
            unseen += one


def _patterns_in(schema: Mapping[str, Any]) -> Iterator[str]:
    for one in _objects_in(schema):
        if isinstance(one.get("pattern"), str):
            yield one["pattern"]
        by_pattern = one.get("patternProperties")
        if isinstance(by_pattern, Mapping):
            yield from by_pattern


class _Expansion:
    """Walks a schema and follows references; counts each object as a subschema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._anchors = {
            one["$anchor"]: one
            for one in _objects_in(schema)
            if isinstance(one.get("$anchor"), str)
        }
        self.subschemas = self.values = self.recursions = 0
        self._inside: set[int] = set()
        """The ids of the objects that are being visited."""

    def visit(self, value: Any) -> None:
        """Count a subschema or a list of subschemas, recursively."""
        if len(self._inside) > 4 * MAX_DEPTH:
            raise ValueError("A JSON Schema may not be nested so deeply.")
        self._count()
        if isinstance(value, list):
            for one in value:
                self.visit(one)
        if not isinstance(value, Mapping):
            return
        if id(value) in self._inside:
            self.recursions += 1
            return
        self.subschemas += 1
        is_root = not self._inside
        self._inside.add(id(value))
        for name, one in value.items():
            if name == "$ref" and isinstance(one, str):
                self.visit(self._target(one))
            elif name in _BY_NAME and isinstance(one, Mapping):
                self.visit(list(one.values()))
            elif name in _REFUSED and isinstance(one, str) and not (is_root and name == "$id"):
                raise ValueError(f"A JSON Schema may not use {name} here.")
            elif name in _CONSTANTS:
                self._compare(one)
            elif name not in _NO_SCHEMAS:
                self.visit(one)
        self._inside.discard(id(value))

    def _compare(self, constant: Any) -> None:
        """Count the values in ``enum`` or ``const``; only lists and objects are slow to compare."""
        unseen = [constant]
        while unseen:
            one = unseen.pop()
            self._count()
            if isinstance(one, Mapping | list):
                self.subschemas += 1
                unseen += one.values() if isinstance(one, Mapping) else one

    def _count(self) -> None:
        self.values += 1
        if self.subschemas > MAX_SUBSCHEMAS or self.values > MAX_VALUES:
            raise ValueError(
                f"A JSON Schema may have at most {MAX_SUBSCHEMAS:,} subschemas and {MAX_VALUES:,}"
                " values, counted again for each reference to them."
            )

    def _target(self, reference: str) -> Any:
        """Resolve a reference; None if its target is missing, which compilation reports."""
        if not reference.startswith("#"):
            raise ValueError("A $ref may only point into the same schema, such as #/$defs/x.")
        path = unquote(reference[1:])
        if not path:
            return self._root
        if not path.startswith("/"):
            return self._anchors.get(path)
        value: Any = self._root
        for name in path[1:].split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping):
                value = value.get(key)
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        return value
