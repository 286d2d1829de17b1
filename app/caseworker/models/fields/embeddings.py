"""Fields of OpenAI's embeddings, and what other providers added to them."""

from typing import Final

from caseworker.models.fields.provider_options import (
    DETACHED,
    OTHER_MODEL,
    OVERRIDES,
    SENDS_KEY_AWAY,
    STORED,
)
from caseworker.models.fields.table import Fields, FieldSection, Table, Use

_OPTIONS: Final = (
    Fields(Use.FREE, "encoding_format dimensions user", "OpenAI"),
    Fields(
        Use.FREE,
        "input_type output_dimension output_dtype truncation truncate truncate_prompt_tokens"
        " truncation_side add_special_tokens normalize normalized embedding_type task priority"
        " request_id keep_alive",
        "vLLM, Ollama, Voyage, Jina, NVIDIA",
    ),
    Fields(Use.PRICED, "models route provider fallbacks", OTHER_MODEL),
    Fields(
        Use.REFUSED,
        "api_base base_url api_key api_version organization custom_llm_provider extra_headers"
        " headers model_list litellm_credential_name user_config",
        SENDS_KEY_AWAY,
    ),
    Fields(Use.REFUSED, "background deferred", DETACHED, unless=(False,)),
    Fields(Use.REFUSED, "prompt prompt_id", STORED),
)

EMBEDDINGS: Final = Table(
    "embeddings",
    FieldSection(
        title="The body",
        at=("",),
        rows=(Fields(Use.FREE, "model"), Fields(Use.TEXT, "input"), *_OPTIONS),
    ),
    FieldSection(
        title="`extra_body`",
        at=("extra_body",),
        rows=(Fields(Use.PRICED, "model input", OVERRIDES), *_OPTIONS),
    ),
)
