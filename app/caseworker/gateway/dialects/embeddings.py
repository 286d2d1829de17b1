"""OpenAI's embeddings, which are paid by their input alone."""

from array import array
from typing import Final

from caseworker.gateway.dialects.chat_completions import PASSED_ON, openai_error, openai_models
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.models.fields.embeddings import EMBEDDINGS as FIELDS
from caseworker.models.token_arrays import TOKEN_BYTES, document_with_tokens

EMBEDDINGS: Final = Dialect(
    provider="openai",
    base="/openai/v1",
    path="/embeddings",
    models_path="/models",
    fields=FIELDS,
    field="input",
    field_types=(list, str, array),
    limit_fields=(),
    error=openai_error,
    models=openai_models,
    passed_on=PASSED_ON,
    document=document_with_tokens,
    value_bytes=TOKEN_BYTES,
)
