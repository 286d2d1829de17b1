"""How tools are offered to a planner: as functions with few arguments, each by name and type.

A tool that names no functions is offered as one, under its own name and with its own schema. A tool
with many operations names a function for each use, so that a model chooses between short lists of
arguments, all of which it has to give. A function is shown in two forms: a *signature*, one line of
a prompt, and a *closed schema*, which an endpoint holds a reply to.

A closed schema uses only what OpenAI's strict mode and the grammars of llama.cpp both know: every
property is required, one that may be left out is nullable, and no object takes further properties.
What a schema says beyond that is left to the check of the arguments. A schema with parts that
cannot be closed, such as an object of any properties, keeps them open.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caseworker.tools.ports import ToolFunction, ToolSpec

MAX_ITEMS = 50
"""A longest or shortest list beyond this is left to the check: grammars write repetitions out."""

RESULT_PLACE = r"\$\{result\.[12]\}"
"""Matches what stands in an argument for the result of an earlier action of a plan."""

_KEPT = frozenset({"type", "enum", "const", "description", "minimum", "maximum"})
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_ANCHORED = re.compile(r"\^(?!.*\(\?).*\$", re.DOTALL)
"""A pattern of the whole text, without the groups that look around."""
_NULL = {"type": "null"}

Schema = Mapping[str, Any] | bool
"""A JSON Schema, which may also be true: any value."""


@dataclass(frozen=True, slots=True)
class Function:
    """A tool, or one use of it, as a planner calls it."""

    name: str
    tool: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments: an object that refuses unknown properties."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the tool gets beside those that are given."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """See ``ToolFunction.places``."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the tool for those of the function.

        Null stands for an argument that is left out, unless null is a value of its own.
        """
        known = self.parameters.get("properties", {})
        required = self.parameters.get("required", ())
        kept = {
            name: value
            for name, value in given.items()
            if value is not None or name in required or _takes_null(known.get(name, {}))
        }
        placed = {name: _placed(value, kept) for name, value in self.places.items()}
        moved = {name for text in texts_in(self.places) for name in _PLACE.findall(text)}
        moved -= self.places.keys()
        return {**self.fixed, **{n: v for n, v in kept.items() if n not in moved}, **placed}

    def signature(self, known: Iterable[str] = ()) -> str:
        """Return one line such as ``calendar.add(date, amount: int, unit?: days|weeks) - …``.

        Of an argument among ``known`` only the name is shown: a line above shows its type.
        """
        required = self.parameters.get("required", ())
        shown = (
            f"{name}{'' if name in required else '?'}{'' if name in known else _type(schema)}"
            for name, schema in self.parameters.get("properties", {}).items()
        )
        described = f" - {self.description}" if self.description else ""
        return f"{self.name}({', '.join(shown)}){described}"


def functions_of(spec: ToolSpec) -> tuple[Function, ...]:
    """Return the functions as which a tool is offered."""
    if not spec.functions:
        return (Function(spec.name, spec.name, _first_sentence(spec), spec.parameters),)
    return tuple(_function(spec, use) for use in spec.functions)


def signatures(functions: Iterable[Function]) -> str:
    """Return the functions a line each; the type of an argument that many share is shown once."""
    lines: list[str] = []
    shown: set[tuple[str, str]] = set()
    for function in functions:
        properties = function.parameters.get("properties", {})
        types = {(name, _type(one)) for name, one in properties.items()}
        lines.append(function.signature({name for name, _ in types & shown}))
        shown |= types
    return "\n".join(lines)


def closed(schema: Schema) -> dict[str, Any]:
    """Return a schema in the terms of strict endpoints and grammars; see the module."""
    if isinstance(schema, bool):
        return {}
    kind = schema.get("type")
    found = {name: schema[name] for name in sorted(_KEPT & schema.keys())}
    if schema.get("format") in _FORMATS:
        found["format"] = schema["format"]
    if _ANCHORED.fullmatch(str(schema.get("pattern", ""))):
        found["pattern"] = schema["pattern"]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        found["anyOf"] = [closed(each) for each in choices]
    if kind == "array":
        bounds = {"minItems", "maxItems"} & schema.keys()
        found |= {name: schema[name] for name in sorted(bounds) if schema[name] <= MAX_ITEMS}
        found["items"] = closed(schema.get("items") or {"type": "string"})
    if kind == "object" and schema.get("additionalProperties") is False:
        found |= _closed_object(schema)
    return found


def _closed_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    properties = {
        name: closed(one) if name in required else _nullable(one)
        for name, one in schema.get("properties", {}).items()
    }
    return {
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _nullable(schema: Schema) -> dict[str, Any]:
    found = closed(schema)
    return found if _takes_null(found) else {"anyOf": [found, _NULL]}


def _takes_null(schema: Schema) -> bool:
    if isinstance(schema, bool):
        return schema
    kind = schema.get("type")
    among = [*(schema.get("anyOf") or schema.get("oneOf") or ())]
    return kind == "null" or (isinstance(kind, list) and "null" in kind) or _NULL in among


def _function(spec: ToolSpec, use: ToolFunction) -> Function:
    """Return a function whose arguments are those of the tool by the names that it takes."""
    known = {**spec.parameters.get("properties", {}), **use.schemas}
    names = use.takes.split()
    return Function(
        name=use.name,
        tool=spec.name,
        description=use.description,
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": [name for name in names if not name.endswith("?")],
            "properties": {name: known[name] for name in (each.rstrip("?") for each in names)},
        },
        fixed=use.fixed,
        places=use.places,
    )


def _first_sentence(spec: ToolSpec) -> str:
    text = " ".join(spec.description.split())
    return text if len(text) <= 200 else text.partition(". ")[0][:200]


def _type(schema: Schema) -> str:
    """Return how a signature shows what an argument is; a text is nothing but its name."""
    shown = _shown(schema)
    return "" if shown == "text" else f": {shown}"


def _shown(schema: Schema) -> str:
    if isinstance(schema, bool):
        return "any"
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return "|".join(dict.fromkeys(_shown(each) for each in choices if each != _NULL))
    kind = schema.get("type")
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"]
    if kinds == ["array"]:
        return f"[{_shown(schema.get('items') or {})}]"
    if kinds == ["object"]:
        inner = schema.get("properties", {}).items()
        return "{" + ", ".join(f"{name}{_type(one)}" for name, one in inner) + "}"
    if kinds == ["string"] and schema.get("format") == "date":
        return "YYYY-MM-DD"
    words = {"string": "text", "integer": "int", "boolean": "true|false"}
    return "|".join(words.get(str(each), str(each or "any")) for each in kinds)


_PLACE = re.compile(r"\{(\w+)\}", re.ASCII)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value, but not those in keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(inner)


def _placed(value: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and (place := _PLACE.fullmatch(value)):
        return given.get(place[1])
    return [_placed(each, given) for each in value] if isinstance(value, list) else value
