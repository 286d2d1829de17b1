"""How much work a JSON Schema makes, found before anything is compiled.

Subschemas that are referred to count wherever they are, so that a few definitions which refer to
one another twice are seen as the thousands that they stand for.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

from app.trace.json_values import MAX_DEPTH

MAX_BYTES: Final = 64 * 1024
MAX_SUBSCHEMAS: Final = 5000
MAX_VISITED: Final = 100_000
"""Values of any kind that are looked at, those behind references once for each of these."""
MAX_PATTERNS: Final = 50
MAX_PATTERN_CHARS: Final = 256
PATTERN_WORK: Final = 150
"""What a pattern costs at most on a character, in checks of a subschema."""

_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords with subschemas by names of a caller's choice."""
_NO_SCHEMAS: Final = frozenset({"$defs", "definitions", "enum", "const", "examples", "default"})
"""Keywords in which nothing is checked, or only where it is referred to."""
_REFUSED: Final = frozenset({"$id", "$dynamicRef", "$recursiveRef"})
"""Keywords that change what a reference means."""


@dataclass(frozen=True, slots=True)
class SchemaSize:
    """What a check with a schema takes."""

    subschemas: int
    """With those that are referred to; of recursive ones, one round."""
    patterns: int
    recursions: int
    """References that lead back into what they stand in."""

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        """Measure a schema.

        Raises:
            ValueError: it is too large; the message names the limit.
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
        expansion.visit(schema, ())
        return cls(expansion.subschemas, len(patterns), expansion.recursions)

    def work(self, chars: int, depth: int) -> float:
        """Return what checking a reply takes at most, in checks of a subschema."""
        rounds = float(max(1, self.recursions)) ** depth
        return chars * (self.subschemas + PATTERN_WORK * self.patterns) * rounds


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
    """Walks a schema with references followed; every object in it counts as a subschema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._anchors = {
            one["$anchor"]: one
            for one in _objects_in(schema)
            if isinstance(one.get("$anchor"), str)
        }
        self.subschemas = self.recursions = 0
        self._visited = 0

    def visit(self, value: Any, inside: tuple[int, ...]) -> None:
        """Count what stands in ``value``, which is inside the objects ``inside``."""
        if len(inside) > 4 * MAX_DEPTH:
            raise ValueError("A JSON Schema may not be nested so deeply.")
        self._visited += 1
        if isinstance(value, list):
            for one in value:
                self.visit(one, inside)
        if not isinstance(value, Mapping):
            return
        if id(value) in inside:
            self.recursions += 1
            return
        self.subschemas += 1
        if self.subschemas > MAX_SUBSCHEMAS or self._visited > MAX_VISITED:
            raise ValueError(
                f"A JSON Schema may come to at most {MAX_SUBSCHEMAS:,} subschemas and"
                f" {MAX_VISITED:,} values, with those that it refers to wherever it does."
            )
        within = (*inside, id(value))
        for name, one in value.items():
            if name == "$ref" and isinstance(one, str):
                self.visit(self._target(one), within)
            elif name in _BY_NAME and isinstance(one, Mapping):
                self.visit(list(one.values()), within)
            elif name in _REFUSED and isinstance(one, str) and (inside or name != "$id"):
                raise ValueError(f"A JSON Schema may not use {name} here.")
            elif name not in _NO_SCHEMAS:
                self.visit(one, within)

    def _target(self, reference: str) -> Any:
        """Return what a reference leads to; None if that is nothing here, which compiling finds."""
        if not reference.startswith("#"):
            raise ValueError("A $ref may lead only to a place in the same schema, as #/$defs/x.")
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
