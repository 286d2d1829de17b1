"""The APIs that the gateway offers: their errors, and the requests that it refuses.

A refusal must stop a client after one request. Of all statuses only 429 with ``x-should-retry:
false`` does that for every client library. A stream that ends without an error event is taken for a
complete answer by some of them, so an interrupted stream ends with the event of its API.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caseworker.models.client_bodies import items_in

REFUSED: Final = 429
"""Status of a refusal that the client must not retry."""
NO_RETRY: Final = {"x-should-retry": "false"}
STOPPED: Final = -32000
"""Error code of JSON-RPC for errors that a server defines; ``data.code`` is its own code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One API of a model provider, as the gateway offers it."""

    provider: str
    """Name of the providers whose models can be called with it."""
    base: str
    """Path below ``/gateway`` of the base URL for the API's clients."""
    path: str
    """Path of the API below that base URL, and below the base URL of a provider."""
    models_path: str
    """Path below the base URL of the list of models."""
    count_path: str = ""
    """Path below the base URL that counts the tokens of a body; empty if the API has none."""
    field: str = "messages"
    """Body field with the conversation."""
    field_types: tuple[type, ...] = (list,)
    """Types of values of this field."""
    limit_fields: tuple[str, ...]
    """Body fields that limit the number of output tokens, the one to add first."""
    needs_usage_option: bool = False
    """Whether a stream has token counts only if the body requests them."""
    error: Callable[[int, str, str, str | None], Mapping[str, Any]]
    """Builds an error document from status, code, message and the name of the field at fault."""
    models: Callable[[Sequence[str]], Mapping[str, Any]]
    """Builds a list of models from their names."""
    event: str = ""
    """Name of the event that reports an error in a stream; empty for events without a name."""
    is_numbered: bool = False
    """Whether the events of a stream have numbers."""

    def error_event(self, code: str, message: str, number: int) -> bytes:
        """Return the event that ends an interrupted stream after ``number`` events."""
        name = f"event: {self.event}\n" if self.event else ""
        document = self.error(REFUSED, code, message, None)
        if self.is_numbered:  # clients read the error in the event itself or in its field `error`
            about = {"type": "error", "sequence_number": number}
            document = {**document["error"], **document, **about}
        return f"{name}data: {json.dumps(document)}\n\n".encode()


class RefusedBodyError(Exception):
    """The body of a request is not offered; ``code`` and ``field`` say why."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that the gateway does not pass on, with the values that it does pass on."""

    field: str
    reason: str
    allowed: tuple[Any, ...] = ()
    """Values that are passed on, in addition to null."""
    is_priced: bool = False
    """Whether it is refused only in runs with a limit on cost."""


_DETACHED: Final = "its reply would not pass through the gateway"
_STORED: Final = "it refers to objects stored at the provider, which tenants would share"
_UNKNOWN: Final = "no recorded reply of this tenant has named the object at the provider"
_UNPRICED: Final = "the run limits its cost, and no price is configured for it"
_TIERS: Final = ("auto", "default", "standard", "standard_only")

REFUSALS: Final = (
    Refusal("background", _DETACHED, (False,)),
    Refusal("prompt", _STORED),
    Refusal("service_tier", _UNPRICED, _TIERS, is_priced=True),
    Refusal("speed", _UNPRICED, ("standard",), is_priced=True),
    Refusal("inference_geo", _UNPRICED, ("global",), is_priced=True),
    Refusal("web_search_options", _UNPRICED, is_priced=True),
    Refusal("mcp_servers", _UNPRICED, ([],), is_priced=True),
)
"""Refused fields of a body."""
REFERENCES: Final = ("previous_response_id", "conversation", "container")
"""Fields of a body with IDs of objects at the provider, which a reply must have named."""
REFERENCES_IN_PARTS: Final = (
    *("file_id", "file_ids", "vector_store_ids", "container", "container_id", "audio", "skill_id"),
)
"""Fields with such IDs anywhere in messages and tools, but not in ``WRITTEN_FIELDS``."""
WRITTEN_FIELDS: Final = frozenset(
    {"input", "arguments", "parameters", "function", "custom", "input_schema", "input_examples"}
)
"""Fields with the arguments of the client's tools, and with their schemas."""
WHOLE_ITEMS: Final = re.compile(
    r"message|additional_tools|function_call|custom_tool_call|\w+_output"
)
"""Types of the items that a client writes; the provider may complete other items by their ID."""
SEALED_ITEMS: Final = ("reasoning", "compaction")
"""Types of the items that are complete if they have encrypted content."""
CLIENT_TOOLS: Final = re.compile(
    r"function|custom|local_shell|apply_patch"
    r"|(?:bash|text_editor|computer|memory|tool_search_tool)_\w+"
)
"""Types of tools that the client executes, or that the provider executes at no extra price."""
TOOL_GROUPS: Final = ("namespace", "additional_tools")
"""Types of the objects that hold tools."""
MAX_CHOICES: Final = 128
MAX_VALUES: Final = 100_000
"""JSON values in a body. Reading takes about ten microseconds and 400 bytes for each of them."""


def require_accepted(body: Any, dialect: Dialect, *, limits_cost: bool) -> Mapping[str, Any]:
    """Check the body of a request for a model call, and return it.

    Raises:
        RefusedBodyError: it is malformed, or has a field that is not offered.
    """
    if not isinstance(body, dict):
        raise RefusedBodyError("invalid_request", "The body must be a JSON object.")
    if _has_more_values(body, MAX_VALUES):
        message = f"The body must not have more than {MAX_VALUES} values."
        raise RefusedBodyError("invalid_request", message)
    for field, message in _faults(body, dialect):
        raise RefusedBodyError("invalid_request", f"The field {field} {message}.", field)
    for field, reason in _refused(body, limits_cost=limits_cost):
        message = f"The field {field} is not offered: {reason}."
        raise RefusedBodyError("unsupported_field", message, field)
    return body


def _has_more_values(body: Mapping[str, Any], most: int) -> bool:
    found: list[Any] = [body]
    for value in found:
        inner = value.values() if isinstance(value, dict) else value
        found += inner if isinstance(value, dict | list) else ()
        if len(found) > most:
            return True
    return False


def _faults(body: Mapping[str, Any], dialect: Dialect) -> Iterator[tuple[str, str]]:
    """Yield the fields that the gateway reads and cannot interpret."""
    if not isinstance(body.get("model"), str):
        yield "model", "must be a string"
    if not isinstance(body.get(dialect.field), dialect.field_types):
        yield dialect.field, "must be an array"
    if not isinstance(body.get("stream"), bool | None):
        yield "stream", "must be a boolean"
    if not isinstance(body.get("stream_options"), dict | None):
        yield "stream_options", "must be an object"
    for name in dialect.limit_fields:
        if not _is_count(body.get(name, 0), 0):
            yield name, "must be a whole number"
    if not _is_count(body.get("n", 1), 1, MAX_CHOICES):
        yield "n", f"must be a whole number from 1 to {MAX_CHOICES}"


def _is_count(value: Any, least: int, most: int | None = None) -> bool:
    """Return whether a value is null or a whole number in a range."""
    if value is None:
        return True
    return type(value) is int and value >= least and (most is None or value <= most)


def _refused(body: Mapping[str, Any], *, limits_cost: bool) -> Iterator[tuple[str, str]]:
    """Yield the fields that are not offered, with the reason."""
    for each in REFUSALS:
        value = body.get(each.field)
        is_offered = value is None or value in each.allowed
        if not is_offered and (limits_cost or not each.is_priced):
            yield each.field, each.reason
    given = [*_objects(body.get("input")), {"type": "namespace", "tools": body.get("tools")}]
    for tool in _tools(given) if limits_cost else ():
        if not CLIENT_TOOLS.fullmatch(str(tool.get("type") or "function")):
            yield "tools", f"the provider executes one of them; {_UNPRICED}"


def references_in(body: Mapping[str, Any], dialect: Dialect) -> Iterator[tuple[str, str]]:
    """Yield the fields of a checked body that refer to objects at the provider, with each ID.

    The ID is empty if it cannot be read.
    """
    items = items_in(body, dialect.field)
    parts = ((part, REFERENCES_IN_PARTS) for part in _parts([items, body.get("tools")]))
    for where, names in ((body, REFERENCES), *parts):
        for name in names:
            value = where.get(name)
            if isinstance(value, dict) and value.keys() == {"id"}:
                value = value["id"]
            is_new = where is not body and isinstance(value, dict) and "id" not in value
            if value is not None and not is_new:
                ids = value if isinstance(value, list) else [value]
                yield from ((name, each if isinstance(each, str) else "") for each in ids)
    for item in items if dialect is RESPONSES else ():
        if isinstance(item, dict) and item.get("id") is not None:
            kind = str(item.get("type") or ("message" if "role" in item else ""))
            is_sealed = kind in SEALED_ITEMS and item.get("encrypted_content")
            if not (is_sealed or WHOLE_ITEMS.fullmatch(kind)):
                yield dialect.field, str(item["id"])


def require_known(references: Sequence[tuple[str, str]], known: Container[str]) -> None:
    """Check that the objects to which a body refers are known.

    Raises:
        RefusedBodyError: one of them is not.
    """
    for field, reference in references:
        if reference not in known:
            message = f"The field {field} is not offered: {_UNKNOWN}."
            raise RefusedBodyError("unsupported_field", message, field)


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a JSON value that a provider interprets."""
    if isinstance(value, list):
        for each in value:
            yield from _parts(each)
    elif isinstance(value, dict):
        yield value
        for name, each in value.items():
            if name not in WRITTEN_FIELDS:
                yield from _parts(each)


def _tools(groups: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools in namespaces and in items that add tools, nested ones included."""
    for group in groups:
        if group.get("type") in TOOL_GROUPS:
            tools = _objects(group.get("tools"))
            yield from (each for each in tools if each.get("type") not in TOOL_GROUPS)
            yield from _tools(tools)


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _openai_error(status: int, code: str, message: str, field: str | None) -> Mapping[str, Any]:
    kind = "invalid_request_error" if status < REFUSED else "run_stopped"
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def _openai_models(names: Sequence[str]) -> Mapping[str, Any]:
    about = {"object": "model", "created": 0, "owned_by": "caseworker"}
    return {"object": "list", "data": [{"id": name, **about} for name in names]}


_ANTHROPIC_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    REFUSED: "rate_limit_error",
    503: "overloaded_error",
}


def _anthropic_error(status: int, code: str, message: str, _: str | None) -> Mapping[str, Any]:
    usual = "invalid_request_error" if status < REFUSED else "api_error"
    kind = _ANTHROPIC_ERRORS.get(status, usual)
    return {"type": "error", "error": {"type": kind, "message": message, "code": code}}


def _anthropic_models(names: Sequence[str]) -> Mapping[str, Any]:
    about = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
    data = [{"id": name, "display_name": name, **about} for name in names]
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
    return {"data": data, "has_more": False, "first_id": None, "last_id": None, **ends}


def _mcp_error(_: int, code: str, message: str, __: str | None) -> Mapping[str, Any]:
    error = {"code": STOPPED, "message": message, "data": {"code": code}}
    return {"jsonrpc": "2.0", "id": None, "error": error}


CHAT_COMPLETIONS: Final = Dialect(
    provider="openai",
    base="/openai/v1",
    path="/chat/completions",
    models_path="/models",
    limit_fields=("max_completion_tokens", "max_tokens"),
    needs_usage_option=True,
    error=_openai_error,
    models=_openai_models,
)
RESPONSES: Final = Dialect(
    provider="openai",
    base="/openai/v1",
    path="/responses",
    models_path="/models",
    field="input",
    field_types=(list, str, type(None)),
    limit_fields=("max_output_tokens",),
    error=_openai_error,
    models=_openai_models,
    event="error",
    is_numbered=True,
)
MESSAGES: Final = Dialect(
    provider="anthropic",
    base="/anthropic",
    path="/v1/messages",
    models_path="/v1/models",
    count_path="/v1/messages/count_tokens",
    limit_fields=("max_tokens",),
    error=_anthropic_error,
    models=_anthropic_models,
    event="error",
)
MCP: Final = Dialect(
    provider="mcp",
    base="/mcp",
    path="/mcp",
    models_path="",
    limit_fields=(),
    error=_mcp_error,
    models=_openai_models,
)
"""The protocol of the run's tools, which calls no model."""
DIALECTS: Final = (CHAT_COMPLETIONS, RESPONSES, MESSAGES)
