"""JSON Schemas as endpoints take them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_AT_ROOT = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "$ref")
"""What no endpoint takes at the root of a tool's schema."""
_NOT_SENT = ("title", "$schema", "discriminator")
_NOT_STRICT = frozenset(
    {
        *("default", "oneOf", "allOf", "not", "if", "minLength", "maxLength", "patternProperties"),
        *("unevaluatedProperties", "propertyNames", "minProperties", "maxProperties"),
        *("unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems"),
    }
)
"""What OpenAI's strict mode does not take."""
_STRICT_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        None,
    }
)
_TYPED = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_MOST_ALTERNATIVES = 100


def plain_object(schema: Schema) -> dict[str, Any]:
    """Return the schema of a tool's arguments as one object without alternatives at its root.

    It allows all that the schema allows, and more: the properties of all alternatives, of which
    those are required that each of them requires. The tool checks its arguments itself.
    """
    if schema.get("type") == "object" and not any(name in schema for name in _AT_ROOT):
        return dict(schema)
    plain = {name: value for name, value in schema.items() if name not in _AT_ROOT}
    properties, required = _merged(schema, schema, 0)
    plain |= {"type": "object", "properties": properties}
    plain.pop("required", None)
    if required:
        plain["required"] = sorted(required)
    if any(name in schema for name in ("anyOf", "oneOf", "allOf", "$ref")):
        plain.pop("additionalProperties", None)
    return plain


def _merged(schema: Schema, root: Schema, depth: int) -> tuple[dict[str, Any], set[str]]:
    """Return the properties of an object and its alternatives, and what all of them require."""
    properties = dict(_map(schema.get("properties")))
    required = {name for name in _list(schema.get("required")) if isinstance(name, str)}
    if depth > len(_AT_ROOT):
        return properties, required
    target = _resolved(schema.get("$ref"), root)
    every = [target] if target is not None else []
    parts = [_merged(each, root, depth + 1) for each in (*every, *_schemas(schema, "allOf"))]
    for name in ("anyOf", "oneOf"):
        alternatives = [_merged(each, root, depth + 1) for each in _schemas(schema, name)]
        if alternatives:
            both = set.intersection(*(needed for _, needed in alternatives))
            parts += [(offered, both) for offered, _ in alternatives]
    for offered, needed in parts:
        for name, value in offered.items():
            before = properties.setdefault(name, value)
            if before != value:
                properties[name] = {"anyOf": [*_alternatives(before), value]}
        required |= needed
    return properties, required & properties.keys()


def _alternatives(schema: Any) -> list[Any]:
    if isinstance(schema, Mapping) and schema.keys() == {"anyOf"}:
        return list(schema["anyOf"])
    return [schema]


def _schemas(schema: Schema, name: str) -> list[Schema]:
    found = [each for each in _list(schema.get(name)) if isinstance(each, Mapping)]
    return found[:_MOST_ALTERNATIVES]


def _resolved(reference: Any, root: Schema) -> Schema | None:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        found = _map(found).get(part.replace("~1", "/").replace("~0", "~"))
    return found if isinstance(found, Mapping) else None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def tidy(schema: Any) -> Any:
    """Return a schema without what some endpoints refuse and none needs."""
    if not isinstance(schema, Mapping):
        return schema
    kept = _with_children(schema, tidy)
    for name in _NOT_SENT:
        if not isinstance(kept.get(name), Mapping) or name == "discriminator":
            kept.pop(name, None)
    if kept.get("type") == "object":
        kept.setdefault("properties", {})
    return kept


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
    """Return whether OpenAI's strict mode takes a schema and changes nothing of what it allows.

    A strict endpoint treats every object as closed. For a schema with an open object, such as the
    arguments of a tool yet to be chosen, that would allow only ``{}`` there.
    """
    if not isinstance(schema, Mapping):
        return True
    if schema.keys() & _NOT_STRICT or schema.get("format") not in _STRICT_FORMATS:
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
    return all(map(is_strict, _children(schema)))


def _children(schema: Schema) -> Iterator[Any]:
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, Mapping):
            yield from value.values()
        elif name in _LISTS and isinstance(value, list):
            yield from value
        elif name in _SINGLE:
            yield value
