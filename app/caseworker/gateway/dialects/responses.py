"""OpenAI's Responses API."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from caseworker.gateway.dialects.chat_completions import PASSED_ON, openai_error, openai_models
from caseworker.gateway.dialects.dialect import Dialect, mappings
from caseworker.models.fields.responses import RESPONSES as FIELDS


def _objects_in(part: Mapping[str, Any]) -> Iterator[Any]:
    if part.get("object") == "response":
        yield part.get("id")
    for item in mappings(part.get("output")):
        yield from (item.get("id"), item.get("container_id"))
        for content in mappings(item.get("content")):
            for note in mappings(content.get("annotations")):
                yield from (note.get("file_id"), note.get("container_id"))


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
    passed_on=PASSED_ON,
    objects_in=_objects_in,
    event="error",
    is_numbered=True,
)
