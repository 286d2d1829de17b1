"""Converts JSON Schemas to the forms that endpoints accept."""

from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]

_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_COMBINED: Mapping[str, Callable[..., set[str]]] = {
    "$ref": set.union,
    "allOf": set.union,
    "anyOf": set.intersection,
    "oneOf": set.intersection,
}
"""How to combine the required properties of subschemas."""
_AT_ROOT = {*_COMBINED, "not", "enum", "const", "if", "then", "else"}
"""Keywords that no endpoint accepts at the root of a tool's schema."""
_NOT_SENT = ("title", "$schema", "discriminator")
_NOT_STRICT = frozenset(
    {
        *("default", "oneOf", "allOf", "not", "if", "minLength", "maxLength", "patternProperties"),
        *("unevaluatedProperties", "propertyNames", "minProperties", "maxProperties"),
        *("unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems"),
    }
)
"""Keywords that OpenAI's strict mode rejects."""
_STRICT_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        None,
    }
)
_TYPED = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_MAX_ALTERNATIVES = 100
_MAX_DEPTH = 10


def plain_object(schema: Schema) -> dict[str, Any]:
    """Return a schema for a tool's arguments as one object without alternatives at its root.

    The result accepts everything that the original accepts, and more. It has the properties of all
    alternatives, and requires only those that every alternative requires. The tool itself validates
    its arguments against the original schema.
    """
    if schema.get("type") == "object" and not schema.keys() & _AT_ROOT:
        return dict(schema)
    omitted = _AT_ROOT | ({"additionalProperties"} if schema.keys() & _COMBINED.keys() else set())
    plain = {name: value for name, value in schema.items() if name not in omitted}
    properties, required = _merged(schema, schema, 0)
    plain |= {"type": "object", "properties": properties, "required": sorted(required)}
    if not required:
        del plain["required"]
    return plain


def _merged(schema: Schema, root: Schema, depth: int) -> tuple[dict[str, Any], set[str]]:
    """Return the properties of an object with its alternatives, and the common required ones."""
    properties = dict(_map(schema.get("properties")))
    required = {name for name in _list(schema.get("required")) if isinstance(name, str)}
    for name, combined in _COMBINED.items() if depth <= _MAX_DEPTH else ():
        entry = schema.get(name)
        schemas = [_resolved(entry, root)] if name == "$ref" else _list(entry)[:_MAX_ALTERNATIVES]
        parts = [_merged(each, root, depth + 1) for each in schemas if isinstance(each, Mapping)]
        for offered, _ in parts:
            for key, value in offered.items():
                before = properties.setdefault(key, value)
                if before != value:
                    properties[key] = {"anyOf": [*_alternatives(before), value]}
        required |= combined(*(needed for _, needed in parts)) if parts else set()
    return properties, required & properties.keys()


def _alternatives(schema: Any) -> list[Any]:
    if isinstance(schema, Mapping) and schema.keys() == {"anyOf"}:
        return list(schema["anyOf"])
    return [schema]


def _resolved(reference: Any, root: Schema) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target: Any = root
    for part in reference[2:].split("/"):
        target = _map(target).get(part.replace("~1", "/").replace("~0", "~"))
    return target


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def tidy(schema: Any) -> Any:
    """Return the schema without optional keywords that some endpoints reject."""
    if not isinstance(schema, Mapping):
        return schema
    tidied = _with_children(schema, tidy)
    for name in _NOT_SENT:
        if not isinstance(tidied.get(name), Mapping) or name == "discriminator":
            tidied.pop(name, None)
    if tidied.get("type") == "object":
        tidied.setdefault("properties", {})
    return tidied


def _with_children(schema: Schema, change: Callable[[Any], Any]) -> dict[str, Any]:
    changed = dict(schema)
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, Mapping):
            changed[name] = {key: change(each) for key, each in value.items()}
        elif name in _LISTS and isinstance(value, list):
            changed[name] = [change(each) for each in value]
        elif name in _SINGLE:
            changed[name] = change(value)
    return changed


def is_strict(schema: Any) -> bool:
    """Return whether OpenAI's strict mode accepts a schema without changing its meaning.

    A strict endpoint allows no additional properties in any object. An object with arbitrary
    properties, such as the arguments of a tool that the model chooses, could then only be ``{}``.
    """
    if not isinstance(schema, Mapping):
        return True
    if schema.keys() & _NOT_STRICT or schema.get("format") not in _STRICT_FORMATS:
        return False
    if "$ref" in schema and len(schema) > 1:
        return False
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and "(?" in pattern.replace("(?:", ""):
        return False
    if schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        if not closed or _map(schema.get("properties")).keys() - set(_list(schema.get("required"))):
            return False
    if schema.get("type") == "array" and "prefixItems" not in schema:
        items = schema.get("items")
        if not isinstance(items, Mapping) or not items.keys() & _TYPED:
            return False
    children = list[Any]()
    _with_children(schema, children.append)
    return all(map(is_strict, children))
