"""Presents tools to planners as functions with few, typed arguments.

A tool without declared functions is offered as a single function with its own name and schema. A
tool with many operations declares one function for each use, so that a model chooses between short
lists of mostly required arguments. A function has two forms: a *signature*, one line of a prompt,
and a *closed schema*, which an endpoint enforces on a reply.

A closed schema uses only what both OpenAI's strict mode and the grammars of llama.cpp support:
every property is required, an optional one is nullable, and no object allows other properties.
Constraints beyond that are checked by the argument validation. Parts that cannot be closed, such as
an object with arbitrary properties, stay open.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caseworker.tools.ports import ToolFunction, ToolSpec

MAX_ITEMS = 50
"""Maximum list length that a closed schema enforces. Larger limits are left to the argument
validation, because grammars expand repetitions."""

RESULT_PLACE = r"\$\{result\.[12]\}"
"""Pattern of the placeholder for the result of an earlier action in a plan."""

_COPIED_FIELDS = frozenset({"type", "enum", "const", "description", "minimum", "maximum"})
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_ANCHORED = re.compile(r"\^(?!.*\(\?).*\$", re.DOTALL)
"""A pattern that is anchored at both ends and has no lookaround or other special group."""
_NULL = {"type": "null"}

Schema = Mapping[str, Any] | bool
"""A JSON Schema: an object, or a boolean (True allows any value)."""


@dataclass(frozen=True, slots=True)
class PlannerFunction:
    """A tool, or one use of it, in the form of a function that planners call."""

    name: str
    tool: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema for the arguments: an object without additional properties."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Constant arguments that are always passed to the tool."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """Templates that build the tool's arguments from the function's; see
    ``ToolFunction.places``."""

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the function's arguments to the tool's arguments.

        Null means that an optional argument is omitted, unless its schema allows null.
        """
        properties = self.parameters.get("properties", {})
        required = self.parameters.get("required", ())
        accepted = {
            name: value
            for name, value in values.items()
            if value is not None or name in required or _takes_null(properties.get(name, {}))
        }
        placed = {name: _placed(value, accepted) for name, value in self.places.items()}
        moved = {name for text in texts_in(self.places) for name in _PLACE.findall(text)}
        moved -= self.places.keys()
        return {**self.fixed, **{n: v for n, v in accepted.items() if n not in moved}, **placed}

    def signature(self, described_names: Iterable[str] = ()) -> str:
        """Return one line such as ``calendar.add(date, amount: int, unit?: days|weeks) - …``.

        The types of the arguments in ``described_names`` are omitted, because an earlier line
        already shows them.
        """
        required = self.parameters.get("required", ())
        described_parameters = (
            name
            + ("" if name in required else "?")
            + ("" if name in described_names else _type(schema))
            for name, schema in self.parameters.get("properties", {}).items()
        )
        described = f" - {self.description}" if self.description else ""
        return f"{self.name}({', '.join(described_parameters)}){described}"


def functions_of(spec: ToolSpec) -> tuple[PlannerFunction, ...]:
    """Return the functions through which planners use a tool."""
    if not spec.functions:
        return (PlannerFunction(spec.name, spec.name, _first_sentence(spec), spec.parameters),)
    return tuple(_function(spec, use) for use in spec.functions)


def signatures(functions: Iterable[PlannerFunction]) -> str:
    """Return the functions' signatures, one per line.

    If several functions take the same argument, its type is shown only the first time.
    """
    lines: list[str] = []
    described: set[tuple[str, str]] = set()
    for function in functions:
        properties = function.parameters.get("properties", {})
        types = {(name, _type(one)) for name, one in properties.items()}
        lines.append(function.signature({name for name, _ in types & described}))
        described |= types
    return "\n".join(lines)


def closed(schema: Schema) -> dict[str, Any]:
    """Reduce a schema to what strict endpoints and grammars support; see the module docstring."""
    if isinstance(schema, bool):
        return {}
    kind = schema.get("type")
    closed_schema = {name: schema[name] for name in sorted(_COPIED_FIELDS & schema.keys())}
    if schema.get("format") in _FORMATS:
        closed_schema["format"] = schema["format"]
    if _ANCHORED.fullmatch(str(schema.get("pattern", ""))):
        closed_schema["pattern"] = schema["pattern"]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        closed_schema["anyOf"] = [closed(each) for each in choices]
    if kind == "array":
        bounds = {"minItems", "maxItems"} & schema.keys()
        closed_schema |= {
            name: schema[name] for name in sorted(bounds) if schema[name] <= MAX_ITEMS
        }
        closed_schema["items"] = closed(schema.get("items") or {"type": "string"})
    if kind == "object" and schema.get("additionalProperties") is False:
        closed_schema |= _closed_object(schema)
    return closed_schema


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
    closed_schema = closed(schema)
    return closed_schema if _takes_null(closed_schema) else {"anyOf": [closed_schema, _NULL]}


def _takes_null(schema: Schema) -> bool:
    if isinstance(schema, bool):
        return schema
    kind = schema.get("type")
    among = [*(schema.get("anyOf") or schema.get("oneOf") or ())]
    return kind == "null" or (isinstance(kind, list) and "null" in kind) or _NULL in among


def _function(spec: ToolSpec, use: ToolFunction) -> PlannerFunction:
    """Build a function with the arguments that it takes from the tool or declares itself."""
    schemas = {**spec.parameters.get("properties", {}), **use.schemas}
    names = use.takes.split()
    return PlannerFunction(
        name=use.name,
        tool=spec.name,
        description=use.description,
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": [name for name in names if not name.endswith("?")],
            "properties": {name: schemas[name] for name in (each.rstrip("?") for each in names)},
        },
        fixed=use.fixed,
        places=use.places,
    )


def _first_sentence(spec: ToolSpec) -> str:
    text = " ".join(spec.description.split())
    return text if len(text) <= 200 else text.partition(". ")[0][:200]


def _type(schema: Schema) -> str:
    """Return the type suffix of an argument in a signature; empty for text."""
    text = _type_text(schema)
    return "" if text == "text" else f": {text}"


def _type_text(schema: Schema) -> str:
    if isinstance(schema, bool):
        return "any"
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return "|".join(dict.fromkeys(_type_text(each) for each in choices if each != _NULL))
    kind = schema.get("type")
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"]
    if kinds == ["array"]:
        return f"[{_type_text(schema.get('items') or {})}]"
    if kinds == ["object"]:
        inner = schema.get("properties", {}).items()
        return "{" + ", ".join(f"{name}{_type(one)}" for name, one in inner) + "}"
    if kinds == ["string"] and schema.get("format") == "date":
        return "YYYY-MM-DD"
    words = {"string": "text", "integer": "int", "boolean": "true|false"}
    return "|".join(words.get(str(each), str(each or "any")) for each in kinds)


_PLACE = re.compile(r"\{(\w+)\}", re.ASCII)


def texts_in(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, except object keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(inner)


def _placed(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and (place := _PLACE.fullmatch(value)):
        return values.get(place[1])
    return [_placed(each, values) for each in value] if isinstance(value, list) else value
