"""Reads operations of OpenAPI documents (3.0 and 3.1)."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from caseworker.platform.suggestions import suggestion
from caseworker.tools.http_tool import HttpOperation, Place

_METHODS: Final = ("get", "head", "post", "put", "patch", "delete")
_RESERVED: Final = frozenset(
    {
        *("accept", "accept-encoding", "authorization", "content-type", "host", "cookie"),
        *("connection", "content-length", "transfer-encoding", "upgrade"),
        *("idempotency-key", "traceparent"),
        *("webhook-id", "webhook-signature", "webhook-timestamp"),
    }
)
"""Headers that are not arguments."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
"""Characters that some providers reject in the names of arguments."""
_REFERENCE: Final = re.compile(r'"#/components/schemas/([^"/]+)"')

Document = Mapping[str, Any]


def operation_of(
    document: Any,
    operation_id: str,
    *,
    server: str | None,
    description: str | None,
    headers: Collection[str],
) -> HttpOperation:
    """Return the operation with this ID, at ``server`` or else at the document's first server.

    The properties of a JSON body are separate arguments, unless the body is no plain object.
    ``headers`` are set by the operator and are no arguments.

    Raises:
        ValueError: the document has no such operation, or it cannot be called with JSON. The
            message starts with the setting to change.
    """
    if not isinstance(document, Mapping) or not str(document.get("openapi", "")).startswith("3."):
        raise ValueError("openapi: this is no document of OpenAPI 3.0 or 3.1")
    operations = {
        item[method].get("operationId"): (path, method, item)
        for path, item in document.get("paths", {}).items()
        for method in _METHODS
        if method in item
    }
    if operation_id not in operations:
        known = sorted(filter(None, operations))
        hint = suggestion(operation_id, known)
        raise ValueError(
            f"operation_id: no operation {operation_id!r}.{hint} Available: {', '.join(known)}"
        )
    path, method, item = operations[operation_id]
    base = server or next((each["url"] for each in document.get("servers", ())), "")
    if not urlsplit(base).netloc or "{" in base:
        raise ValueError(f"url: set the server's address; the document names {base!r}")
    text = description or item[method].get("description") or item[method].get("summary")
    if not text:
        raise ValueError("description: the operation has none, and models need it")
    fixed = {*_RESERVED, *map(str.lower, headers)}
    properties, required, places = dict[str, Any](), list[str](), dict[str, tuple[Place, str]]()
    for wire, place, schema, is_required in _arguments(document, item, item[method]):
        name = _UNSAFE.sub("_", wire or "body")[:57]
        name = f"{name}_{place}" if name in properties else name
        if place in ("path", "query", "body") or (place == "header" and wire.lower() not in fixed):
            properties[name], places[name] = schema, (place, wire)
            required += [name] * is_required
    return HttpOperation(
        method=method.upper(),
        url=base.rstrip("/") + path,
        parameters=_self_contained(properties, required, document),
        places=places,
        description=" ".join(text.split()),
    )


def _arguments(
    document: Document, item: Document, operation: Document
) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the name, place and schema of each argument, and whether it is required."""
    listed = (*item.get("parameters", ()), *operation.get("parameters", ()))
    found = [_resolved(each, document) for each in listed]
    for each in {(one["name"], one["in"]): one for one in found}.values():
        about = {key: each[key] for key in ("description",) if key in each}
        schema = {**each.get("schema", {}), **about}
        yield each["name"], each["in"], schema, each.get("required", False)
    if "requestBody" not in operation:
        return
    body = _resolved(operation["requestBody"], document)
    kinds, required = body.get("content", {}), body.get("required", False)
    media = next((each for kind, each in kinds.items() if "json" in kind), None)
    if media is None:
        raise ValueError(f"operation_id: its body is {', '.join(kinds)}, not JSON")
    schema = _resolved(media.get("schema", {}), document)
    if not schema.get("properties") or schema.keys() & {"allOf", "anyOf", "oneOf"}:
        yield "", "body", schema, required
        return
    for name, one in schema["properties"].items():
        if not _resolved(one, document).get("readOnly"):
            yield name, "body", one, required and name in schema.get("required", ())


def _resolved(value: Any, document: Document) -> Any:
    """Return the target of a reference, or the value itself."""
    seen = set[str]()
    while isinstance(value, Mapping) and "$ref" in value:
        reference, value = str(value["$ref"]), document
        try:
            for part in reference.removeprefix("#/").split("/"):
                value = value[part.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError):
            raise ValueError(f"openapi: {reference!r} is not in the document") from None
        if reference in seen:
            raise ValueError(f"openapi: {reference!r} refers to itself")
        seen.add(reference)
    return value


def _self_contained(
    properties: Mapping[str, Any], required: list[str], document: Document
) -> dict[str, Any]:
    """Return the JSON Schema of the arguments, with the schemas to which it refers."""
    whole: dict[str, Any] = {"type": "object", "additionalProperties": False}
    whole |= {"required": required, "properties": properties}
    kept, names = dict[str, Any](), _REFERENCE.findall(json.dumps(whole))
    while names:
        if (name := names.pop()) not in kept:
            kept[name] = _resolved({"$ref": f"#/components/schemas/{name}"}, document)
            names += _REFERENCE.findall(json.dumps(kept[name]))
    text = json.dumps({**whole, "$defs": kept} if kept else whole)
    text = _REFERENCE.sub(r'"#/$defs/\1"', text)
    schema: dict[str, Any] = json.loads(text, object_hook=_as_json_schema)
    return schema


def _as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert a schema of OpenAPI 3.0; a schema of 3.1 is a JSON Schema already."""
    for name in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(schema.get(name), bool):  # the server checks the limit
            del schema[name]
    if schema.get("nullable") is True:
        del schema["nullable"]
        return {"anyOf": [schema, {"type": "null"}]}
    return schema
