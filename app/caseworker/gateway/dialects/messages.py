"""Anthropic's Messages API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from caseworker.gateway.dialects.dialect import Dialect, mappings
from caseworker.gateway.refusals import Refusal
from caseworker.models.fields.messages import MESSAGES as FIELDS

_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
}


def _error(refusal: Refusal) -> Mapping[str, Any]:
    usual = _ERRORS.get(refusal.status, "invalid_request_error")
    # Claude Code repeats 400 without its newest features, unless it is about billing. Cline takes
    # an invalid request for a full context window.
    kind = "billing_error" if refusal.is_stop else usual
    about = {"type": kind, "message": refusal.message, "code": refusal.code}
    return {"type": "error", "error": {**about, **refusal.period}}


def _models(names: Sequence[str]) -> Mapping[str, Any]:
    about = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
    data = [{"id": name, "display_name": name, **about} for name in names]
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
    return {"data": data, "has_more": False, "first_id": None, "last_id": None, **ends}


def _objects_in(part: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(container := part.get("container"), dict):
        yield container.get("id")
    for block in (part, *mappings(part.get("content"))):
        if str(block.get("type")).endswith("_tool_result"):  # tools that the provider executes
            result = block.get("content")
            for file in mappings(result.get("content") if isinstance(result, dict) else 0):
                yield file.get("file_id")


MESSAGES: Final = Dialect(
    provider="anthropic",
    base="/anthropic",
    path="/v1/messages",
    models_path="/v1/models",
    count_path="/v1/messages/count_tokens",
    fields=FIELDS,
    limit_fields=("max_tokens",),
    error=_error,
    models=_models,
    event="error",
    passed_on=frozenset({"anthropic-version", "anthropic-beta"}),
    objects_in=_objects_in,
)
