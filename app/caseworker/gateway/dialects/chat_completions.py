"""OpenAI's chat completions, which most providers offer, and the errors of all OpenAI APIs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from caseworker.gateway.dialects.dialect import Dialect, mappings
from caseworker.gateway.refusals import Refusal
from caseworker.models.fields.chat_completions import CHAT_COMPLETIONS as FIELDS

PASSED_ON: Final = frozenset({"openai-beta"})
_OPENAI_ERRORS: Final = {429: "rate_limit_error", 502: "server_error", 503: "server_error"}


def openai_error(refusal: Refusal) -> Mapping[str, Any]:
    """Return the error document of a refusal."""
    usual = _OPENAI_ERRORS.get(refusal.status, "invalid_request_error")
    kind = "run_stopped" if refusal.is_stop else usual
    about = {"message": refusal.message, "type": kind}
    return {"error": {**about, "param": refusal.field, "code": refusal.code, **refusal.period}}


def openai_models(names: Sequence[str]) -> Mapping[str, Any]:
    """Return the list of models with these names."""
    about = {"object": "model", "created": 0, "owned_by": "caseworker"}
    return {"object": "list", "data": [{"id": name, **about} for name in names]}


def _objects_in(part: Mapping[str, Any]) -> Iterator[Any]:
    for choice in mappings(part.get("choices")):
        for message in mappings([choice.get("message"), choice.get("delta")]):
            yield from (audio.get("id") for audio in mappings([message.get("audio")]))


CHAT_COMPLETIONS: Final = Dialect(
    provider="openai",
    base="/openai/v1",
    path="/chat/completions",
    models_path="/models",
    fields=FIELDS,
    limit_fields=("max_completion_tokens", "max_tokens"),
    needs_usage_option=True,
    error=openai_error,
    models=openai_models,
    passed_on=PASSED_ON,
    objects_in=_objects_in,
)
