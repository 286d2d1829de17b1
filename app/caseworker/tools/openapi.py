"""Reads operations of OpenAPI documents (3.0 and 3.1)."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final
from urllib.parse import urlsplit

from caseworker.platform.suggestions import suggestion
from caseworker.tools.http_request import (
    FORM,
    MULTIPART,
    PLACEHOLDER,
    STYLES,
    Body,
    HttpOperation,
    Parameter,
)
from caseworker.tools.media_types import essence, in_charset, is_binary_type, is_json_type, is_text
from caseworker.tools.openapi_references import References

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
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(/[^\s?#\\{}]*)?", re.ASCII)
"""An address without credentials, query, and anything that parsers read in two ways."""
_COMPOSED: Final = frozenset({"allOf", "anyOf", "oneOf"})
_TYPING: Final = frozenset(
    {"type", "enum", "const", "format", "properties", "items", "contentEncoding"}
)
"""Keywords that limit the values of a schema."""
_SCALARS: Final = ("string", "integer", "number", "boolean")
_STYLED: Final = frozenset({"style", "explode", "allowReserved"})
_ANY: Final = ("*/*", "application/*")
_UNSUPPORTED: Final = 9
_BINARY: Final = "application/octet-stream"
_FILE: Final = "The content: text, or a data URL with Base64."
_MAY_BE_FILE: Final = "A file is written as a data URL with Base64."
_ARGUMENT_CHARS: Final = 57

Object = Mapping[str, Any]
Argument = tuple[Parameter, Any, bool]
"""A parameter, its schema, and whether it is required."""
Chain = Sequence[tuple[Object, Any]]
"""A schema and those that it refers to in turn, with the resources around them."""


def operation_of(
    document: Any,
    operation_id: str,
    *,
    server: str | None,
    description: str | None,
    headers: Collection[str],
) -> HttpOperation:
    """Return the operation with this ID.

    An operation without an ID is named by its method and path, such as ``GET /orders``.

    Its address is ``server``, or else the first server of the operation, of its path, or of the
    document. The properties of a body are separate arguments if the body is a plain object.
    The operator sets ``headers``, so they are not arguments.

    Raises:
        ValueError: the document has no such operation, or it cannot be called. The message starts
            with the setting to change.
    """
    if not isinstance(document, Mapping) or not str(document.get("openapi", "")).startswith("3."):
        raise ValueError("openapi: this is not an OpenAPI 3.0 or 3.1 document")
    references = References(document)
    path, method, item = _place_of(references, operation_id)
    operation = item[method]
    base = server or _server(document, item, operation, has_headers=bool(headers))
    text = description or operation.get("description") or operation.get("summary")
    if not text:
        raise ValueError("description: the operation has none, and models need it")
    operator_headers = {name.lower() for name in headers}
    arguments = [
        each
        for each in _parameters(references, item, operation)
        if not _is_set_by_operator(each[0], operator_headers)
    ]
    body, fields = None, list[Argument]()
    if "requestBody" in operation:
        body, fields = _body(references, references.resolved(operation["requestBody"])[0])
    schema, places = _schema_of(references, (*arguments, *fields))
    return HttpOperation(
        method=method.upper(),
        url=base.rstrip("/") + path.partition("#")[0],  # a fragment only makes paths differ
        parameters=schema,
        places=places,
        body=body,
        description=" ".join(text.split()),
    )


def _is_set_by_operator(parameter: Parameter, headers: Collection[str]) -> bool:
    """Return whether a parameter is no argument; ``headers`` are those of the operator."""
    if parameter.place == "header":
        return parameter.name.lower() in _RESERVED or parameter.name.lower() in headers
    return parameter.place == "cookie" and "cookie" in headers


def _place_of(references: References, operation_id: str) -> tuple[str, str, Object]:
    """Return the path, the method and the path item of an operation.

    Raises:
        ValueError: no operation or several operations have the ID.
    """
    operations = dict[str, list[tuple[str, str, Object]]]()
    for path, item in _paths(references):
        for method in _METHODS:
            if isinstance(item.get(method), Mapping):
                name = item[method].get("operationId")
                name = name if isinstance(name, str) else f"{method.upper()} {path}"
                operations.setdefault(name, []).append((path, method, item))
    if operation_id not in operations:
        names = sorted(operations)
        hint = suggestion(operation_id, names)
        raise ValueError(
            f"operation_id: no operation {operation_id!r}.{hint} Available: {', '.join(names)}"
        )
    if len(operations[operation_id]) > 1:
        names = [f"{method.upper()} {path}" for path, method, _ in operations[operation_id]]
        raise ValueError(
            f"operation_id: {' and '.join(names)} have the ID {operation_id!r}: in the document,"
            " give each its own"
        )
    return operations[operation_id][0]


def _schema_of(
    references: References, arguments: Iterable[Argument]
) -> tuple[dict[str, Any], dict[str, Parameter]]:
    """Return the JSON Schema of the arguments, and the parameter of each by its name."""
    properties, required, places = dict[str, Any](), list[str](), dict[str, Parameter]()
    for parameter, schema, is_required in arguments:
        name = _name(parameter, properties)
        properties[name], places[name] = schema, parameter
        required += [name] * is_required
    schema_of_arguments = {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }
    if definitions := references.definitions():
        schema_of_arguments["$defs"] = definitions
    return schema_of_arguments, places


def _paths(references: References) -> Iterator[tuple[str, Object]]:
    """Yield the paths of the document; other keys, such as ``x-owner``, are not paths."""
    paths = references.document.get("paths", {})
    if not isinstance(paths, Mapping):
        raise ValueError("openapi: the document is not valid: paths must be an object")
    for path, item in paths.items():
        if str(path).startswith("/") and isinstance(item, Mapping):
            yield path, _path_item(references, item, frozenset())


def _path_item(references: References, item: Object, pending: frozenset[str]) -> Object:
    """Return a path item with the fields that it refers to; its own take precedence."""
    reference = item.get("$ref")
    if not isinstance(reference, str):
        return item
    if reference in pending:
        raise ValueError(f"openapi: {reference!r} refers to itself")
    target = _path_item(references, _object(references.target(reference)), pending | {reference})
    parameters = [*target.get("parameters", ()), *item.get("parameters", ())]
    return {**target, **item, "parameters": parameters}


def _name(parameter: Parameter, used_names: Collection[str]) -> str:
    """Return a unique name for an argument."""
    base = _UNSAFE.sub("_", parameter.name or "body")[:_ARGUMENT_CHARS]
    names = (base, f"{base}_{parameter.place}")
    more = (f"{base[:-3]}_{number}" for number in range(2, len(used_names) + 3))
    return next(each for each in (*names, *more) if each not in used_names)


def _server(document: Object, item: Object, operation: Object, *, has_headers: bool) -> str:
    """Return the address of the server that the document names for an operation.

    Headers of the operator are not sent to a host that is only the default of a server variable:
    each customer of such an API has a different host, and the default may be a foreign one.
    """
    listed = next(
        (each["servers"] for each in (operation, item, document) if each.get("servers")), ()
    )
    server = listed[0] if listed else {}
    template, variables = str(server.get("url", "")), server.get("variables", {})
    address = PLACEHOLDER.sub(
        lambda name: str(variables.get(name[1], {}).get("default", name[0])), template
    )
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"url: set the server's address; the document names {template!r}")
    host = template.rpartition("://")[2].partition("/")[0]
    host = re.sub(r":(\d+|\{[^{}]*\})$", "", host)
    if has_headers and any("enum" not in variables[name] for name in PLACEHOLDER.findall(host)):
        raise ValueError(
            f"url: set the server's address; headers_env is not sent to {urlsplit(address).netloc},"
            f" because {template!r} in the document leaves the host open"
        )
    return address


def _parameters(references: References, item: Object, operation: Object) -> Iterator[Argument]:
    """Yield the parameters of a path and an operation; those of the operation take precedence."""
    listed = (*item.get("parameters", ()), *operation.get("parameters", ()))
    parameters = [references.resolved(each)[0] for each in listed]
    for one in {(each["name"], each["in"]): each for each in parameters}.values():
        name, place = one["name"], one["in"]
        if place not in STYLES:
            raise ValueError(f"openapi: parameter {name!r} is in {place!r}, which is not supported")
        kind, media = next(iter(one.get("content", {}).items()), (None, one))
        style = one.get("style", STYLES[place][0])
        if style not in STYLES[place]:
            raise ValueError(
                f"openapi: parameter {name!r} has style {style!r};"
                f" in {place}, use {' or '.join(STYLES[place])}"
            )
        schema = _object(references.schema(media.get("schema", {})))
        about = {key: one[key] for key in ("description",) if key in one}
        parameter = Parameter(
            place=place,
            name=name,
            style=style if kind is None else None,
            explode=one.get("explode", style == "form"),
            allow_reserved=place == "query" and one.get("allowReserved", False),
            media_type=kind,
        )
        yield parameter, {**schema, **about}, place == "path" or one.get("required", False)


def _body(references: References, body: Object) -> tuple[Body | None, list[Argument]]:
    """Return how a body is sent, and its arguments."""
    contents = {
        kind: references.resolved(each)[0] for kind, each in _object(body.get("content")).items()
    }
    if not contents:
        return None, []
    kind = min(contents, key=_rank)
    if _rank(kind) == _UNSUPPORTED:
        raise ValueError(f"operation_id: its body is {kind}, which is not supported")
    media, is_required = contents[kind], body.get("required", False)
    parts = references.chain(media.get("schema", {}))
    schema = _merged(parts)
    kind = _concrete(kind, schema)
    about = {key: body[key] for key in ("description",) if key in body}
    try:
        in_charset("", kind)
    except ValueError as error:
        raise ValueError(f"operation_id: its body is {kind}, and {error}") from None
    form = Body(media_type=kind, is_required=is_required)
    if is_json_type(kind) or essence(kind) in (FORM, MULTIPART):
        form, arguments = _form(references, form, media, parts)
        is_plain = len({each.name for each, _, _ in arguments}) == len(arguments)
        if arguments and is_plain and not schema.keys() & _COMPOSED:
            return form, arguments
        argument_schema = dict(_body_schema(references, media, parts))
    else:
        description = f"As {kind}." if is_text(kind) else _FILE
        argument_schema = {"type": "string", "description": description}
        if schema.get("type") in _SCALARS:
            argument_schema |= {"type": schema["type"], **_body_schema(references, media, parts)}
    return form, [(Parameter(place="body"), {**argument_schema, **about}, is_required)]


def _form(
    references: References, body: Body, media: Object, parts: Chain
) -> tuple[Body, list[Argument]]:
    """Return a body of fields, and the argument of each field that requests may have."""
    kind, is_first = essence(body.media_type), str(references.document["openapi"]).startswith("3.0")
    is_styled = kind == FORM or (kind == MULTIPART and not is_first)
    arguments, read_only = list[Argument](), set[str]()
    lists = (part["required"] for part, _ in parts if isinstance(part.get("required"), list))
    required = set(chain.from_iterable(lists)) if body.is_required else set()
    for name, each, inner in _properties(references, parts):
        if references.is_read_only(each, inner):
            read_only.add(name)
            continue
        encoding = _object(_object(media.get("encoding")).get(name))
        field = _field(name, encoding, is_styled=is_styled)
        argument = _object(references.schema(each, inner))
        if kind == MULTIPART and field.style is None:
            field, argument = _part_of(field, argument, partial(_fits, references, each, inner))
        arguments.append((field, argument, name in required))
    arguments = [each for each in arguments if each[0].name not in read_only]
    fields = {field.name: field for field, _, _ in arguments}
    return replace(body, fields=fields, read_only=frozenset(read_only)), arguments


def _merged(parts: Chain) -> dict[str, Any]:
    """Return the keywords of a schema and of those that it refers to; its own take precedence."""
    return {key: each for part, _ in reversed(parts) for key, each in part.items()}


def _part_of(
    field: Parameter, argument: Object, fits: Callable[[Callable[[Object], bool]], bool]
) -> tuple[Parameter, Object]:
    """Return a part of a multipart body and its argument, marked if it is or may be a file.

    ``fits`` returns whether the schema of the part has a property.
    """
    is_binary = field.media_type is not None and is_binary_type(field.media_type)
    texts = (lambda one: one.get("type") == "string", _is_untyped)
    if fits(_is_file) or (is_binary and any(map(fits, (*texts, _is_base64)))):
        return replace(field, is_file=True), _described(argument)
    if not field.media_type and (fits(_is_untyped) or fits(_is_base64)):
        return replace(field, may_be_file=True), _described(argument, is_file=False)
    return field, argument


def _body_schema(references: References, media: Object, parts: Chain) -> Object:
    """Return the schema of a whole body."""
    if len(parts) == 1:
        return _object(references.schema(*parts[0]))
    return _object(references.schema(media["schema"]))


def _properties(references: References, parts: Chain) -> Iterator[tuple[str, Any, Any]]:
    """Yield the properties of an object and of the schemas that it is composed of."""
    for part, base in parts:
        for name, each in _object(part.get("properties")).items():
            yield name, each, base
        for each in part.get("allOf", ()):
            yield from _properties(references, references.chain(each, base))


def _field(name: str, encoding: Object, *, is_styled: bool) -> Parameter:
    """Return how a form contains a property; a style takes precedence over a media type."""
    media_type = encoding.get("contentType", "").partition(",")[0].strip()
    if not is_styled or not encoding.keys() & _STYLED:
        return Parameter(place="body", name=name, media_type=media_type or None)
    style = encoding.get("style", "form")
    return Parameter(
        place="body",
        name=name,
        style=style,
        explode=encoding.get("explode", style == "form"),
        allow_reserved=encoding.get("allowReserved", False),
    )


def _fits(
    references: References,
    schema: Any,
    base: Any,
    test: Callable[[Object], bool],
    pending: frozenset[int] = frozenset(),
) -> bool:
    """Return whether a schema, a branch of it, or its items fit a test."""
    if id(schema) in pending:
        return False
    parts = references.chain(schema, base)
    return test(_merged(parts)) or any(
        _fits(references, each, inner, test, pending | {id(schema)})
        for part, inner in parts
        for each in (*part.get("anyOf", ()), *part.get("oneOf", ()), part.get("items"))
        if each is not None
    )


def _is_file(target: Object) -> bool:
    """Return whether a part of a multipart body with this schema is a file."""
    parts = [_object(each) for each in (target, *target.get("allOf", ()))]
    return any(
        each.get("format") == "binary"
        or ("contentMediaType" in each and "contentEncoding" not in each)
        for each in parts
    )


def _is_untyped(target: Object) -> bool:
    return not target.keys() & (_COMPOSED | _TYPING)


def _is_base64(target: Object) -> bool:
    return target.get("format") in ("byte", "base64")


def _described(schema: Object, *, is_file: bool = True) -> Object:
    """Return the schema of a file, or of a value that may be one, as models see it."""
    if schema.get("type") == "array":
        return {**schema, "items": _described(_object(schema.get("items")), is_file=is_file)}
    is_open = not is_file or schema.keys() & {"$ref", *_COMPOSED}
    kind = {} if is_open else {"type": "string"}
    text = f"{schema.get('description', '')} {_FILE if is_file else _MAY_BE_FILE}"
    return {**kind, **schema, "description": text.strip()}


def _rank(kind: str) -> int:
    """Return the order in which the media types of a body are preferred."""
    name = essence(kind)
    kinds = (is_json_type(name), name == FORM, name == MULTIPART, name in _ANY, is_text(name))
    if any(kinds):
        return kinds.index(True)
    return _UNSUPPORTED if name.startswith("multipart/") else len(kinds)


def _concrete(kind: str, schema: Object) -> str:
    """Return the media type that is sent where the document has a range such as ``*/*``."""
    name = essence(kind)
    if name == "text/*":
        return "text/plain"
    if name in _ANY:
        return _BINARY if schema.get("format") == "binary" else "application/json"
    return kind


def _object(value: Any) -> Object:
    """Return an object, or an empty one for a schema such as ``true``."""
    return value if isinstance(value, Mapping) else {}
