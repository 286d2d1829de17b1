"""The APIs that the gateway offers: their errors, and how the gateway reads their requests.

Some client libraries take a stream that ends without an error event for a complete answer, so an
interrupted stream ends with the event of its API.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caseworker.gateway.refusals import Refusal
from caseworker.models.fields.chat_completions import CHAT_COMPLETIONS as CHAT_FIELDS
from caseworker.models.fields.messages import MESSAGES as MESSAGES_FIELDS
from caseworker.models.fields.responses import RESPONSES as RESPONSES_FIELDS
from caseworker.models.fields.table import Table

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
    fields: Table
    """The fields of its requests."""
    field: str = "messages"
    """Body field with the conversation."""
    field_types: tuple[type, ...] = (list,)
    """Types of values of this field."""
    limit_fields: tuple[str, ...]
    """Body fields that limit the number of output tokens."""
    uses_field: str = ""
    """Body field that limits the uses of all tools that the provider executes; empty if each tool
    has a limit."""
    needs_usage_option: bool = False
    """Whether a stream has token counts only if the body requests them."""
    error: Callable[[Refusal], Mapping[str, Any]]
    """Builds the error document of a refusal."""
    models: Callable[[Sequence[str]], Mapping[str, Any]]
    """Builds a list of models from their names."""
    event: str = ""
    """Name of the event that reports an error in a stream; empty for events without a name."""
    is_numbered: bool = False
    """Whether the events of a stream have numbers."""

    def provider_body(self, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Return the body for the provider, and whether the client did not request token counts."""
        if not (document.get("stream") and self.needs_usage_option):
            return document, False
        options = document.get("stream_options") or {}
        counted = {**document, "stream_options": {**options, "include_usage": True}}
        return counted, not options.get("include_usage")

    def error_event(self, refusal: Refusal, number: int) -> bytes:
        """Return the event that ends an interrupted stream after ``number`` events."""
        name = f"event: {self.event}\n" if self.event else ""
        document = self.error(refusal)
        if self.is_numbered:  # clients read the error in the event itself or in its field `error`
            about = {"type": "error", "sequence_number": number}
            document = {**document["error"], **document, **about}
        return f"{name}data: {json.dumps(document)}\n\n".encode()


_OPENAI_ERRORS: Final = {429: "rate_limit_error", 502: "server_error", 503: "server_error"}


def _openai_error(refusal: Refusal) -> Mapping[str, Any]:
    usual = _OPENAI_ERRORS.get(refusal.status, "invalid_request_error")
    kind = "run_stopped" if refusal.is_stop else usual
    about = {"message": refusal.message, "type": kind}
    return {"error": {**about, "param": refusal.field, "code": refusal.code, **refusal.period}}


def _openai_models(names: Sequence[str]) -> Mapping[str, Any]:
    about = {"object": "model", "created": 0, "owned_by": "caseworker"}
    return {"object": "list", "data": [{"id": name, **about} for name in names]}


_ANTHROPIC_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
}


def _anthropic_error(refusal: Refusal) -> Mapping[str, Any]:
    usual = _ANTHROPIC_ERRORS.get(refusal.status, "invalid_request_error")
    # Claude Code repeats 400 without its newest features, unless it is about billing. Cline takes
    # an invalid request for a full context window.
    kind = "billing_error" if refusal.is_stop else usual
    about = {"type": kind, "message": refusal.message, "code": refusal.code}
    return {"type": "error", "error": {**about, **refusal.period}}


def _anthropic_models(names: Sequence[str]) -> Mapping[str, Any]:
    about = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
    data = [{"id": name, "display_name": name, **about} for name in names]
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
    return {"data": data, "has_more": False, "first_id": None, "last_id": None, **ends}


def error_data(refusal: Refusal) -> Mapping[str, str]:
    """Return the field ``data`` of a JSON-RPC error."""
    return {"code": refusal.code, **refusal.period}


def _mcp_error(refusal: Refusal) -> Mapping[str, Any]:
    error = {"code": STOPPED, "message": refusal.message, "data": error_data(refusal)}
    return {"jsonrpc": "2.0", "id": None, "error": error}


CHAT_COMPLETIONS: Final = Dialect(
    provider="openai",
    base="/openai/v1",
    path="/chat/completions",
    models_path="/models",
    fields=CHAT_FIELDS,
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
    fields=RESPONSES_FIELDS,
    field="input",
    field_types=(list, str, type(None)),
    limit_fields=("max_output_tokens",),
    uses_field="max_tool_calls",
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
    fields=MESSAGES_FIELDS,
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
    fields=Table("mcp"),
    limit_fields=(),
    error=_mcp_error,
    models=_openai_models,
)
"""The protocol of the run's tools, which calls no model."""
DIALECTS: Final = (CHAT_COMPLETIONS, RESPONSES, MESSAGES)
