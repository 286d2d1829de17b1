"""OpenAI's Chat Completions, and every server that speaks the same protocol."""

from typing import Any
from urllib.parse import urlsplit

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile, merge_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from app.adapters.providers.pydantic_ai.chat_completions import ChatCompletions
from app.adapters.providers.pydantic_ai.provider import (
    MAX_IN_FLIGHT,
    PydanticAIProvider,
    native_output,
)
from app.adapters.providers.pydantic_ai.transport import ModelTransport
from app.llm.ports import ModelEndpoint

DEFAULT_BASE_URL = "https://api.openai.com/v1"

_NAME = "openai"
_NO_KEY = "none"  # the SDK insists on a key, a local server does not look at it
_STREAMS = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
"""A stream that ends without a reason was cut off somewhere on its way."""


def from_endpoint(endpoint: ModelEndpoint) -> PydanticAIProvider:
    """Return the provider ``openai`` as it is configured."""
    http = ModelTransport(endpoint.max_reply_bytes)
    return openai_provider(base_url=endpoint.base_url, api_key=endpoint.api_key, http=http)


def openai_provider(
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    http: httpx2.AsyncBaseTransport | None = None,
) -> PydanticAIProvider:
    """Return the provider ``openai``: OpenAI itself, or the server at ``base_url``.

    The key is exactly the one given; none of the environment is sent to another server. The
    provider closes ``http``, which is by default a transport of its own.
    """
    http = http or ModelTransport()
    url, key = base_url or DEFAULT_BASE_URL, api_key or _NO_KEY
    client = AsyncOpenAI(
        base_url=url, api_key=key, http_client=httpx2.AsyncClient(transport=http), max_retries=0
    )
    completions: Any = client.chat.completions
    completions.create = ChatCompletions(url, key, http).create
    endpoint = _endpoint(client, url)
    return PydanticAIProvider(
        name=_NAME,
        build_model=lambda model: OpenAIChatModel(model, provider=endpoint, profile=_STREAMS),
        structured_output=native_output,
        http=http,
        max_in_flight=max_in_flight,
    )


def _endpoint(client: AsyncOpenAI, url: str) -> Provider[Any]:
    if urlsplit(url).hostname == urlsplit(DEFAULT_BASE_URL).hostname:
        return OpenAIProvider(openai_client=client)
    return OpenAICompatibleProvider(_NAME, openai_client=client, profile=_compatible_profile)


def _compatible_profile(model: str) -> ModelProfile:
    """Return what to expect of a model behind a server that is not OpenAI's.

    All of them know ``max_tokens``, not all its successor; OpenAI's reasoning models, which such a
    server may pass on to, know the successor only. Which ways to ask for JSON the server has
    cannot be told from the model's name and is found out by asking.
    """
    profile = OpenAICompatibleProvider.model_profile(model) or ModelProfile()
    reasons = bool(profile.get("openai_supports_reasoning", False))
    expected = OpenAIModelProfile(
        openai_chat_supports_max_completion_tokens=reasons,
        supports_json_schema_output=True,
        supports_json_object_output=True,
    )
    return merge_profile(profile, expected)
