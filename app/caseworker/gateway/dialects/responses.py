"""OpenAI's Responses API."""

from typing import Final

from caseworker.gateway.dialects.chat_completions import openai_error, openai_models
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.models.fields.responses import RESPONSES as FIELDS

RESPONSES: Final = Dialect(
    provider="openai",
    base="/openai/v1",
    path="/responses",
    models_path="/models",
    fields=FIELDS,
    field="input",
    field_types=(list, str, type(None)),
    limit_fields=("max_output_tokens",),
    uses_field="max_tool_calls",
    error=openai_error,
    models=openai_models,
    event="error",
    is_numbered=True,
)
