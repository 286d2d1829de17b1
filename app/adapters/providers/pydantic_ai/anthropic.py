"""Anthropic's Messages, and every server that speaks the same protocol."""

import logging
from typing import Any, Self

import httpx2
from anthropic import AsyncAnthropic
from anthropic.types.beta import BetaMessage, BetaMessageDeltaUsage, BetaUsage
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicStreamedResponse
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.settings import ModelSettings

from app.adapters.providers.pydantic_ai.provider import (
    MAX_IN_FLIGHT,
    PydanticAIProvider,
    tool_output,
)
from app.adapters.providers.pydantic_ai.transport import ModelTransport
from app.llm.ports import ModelEndpoint

DEFAULT_BASE_URL = "https://api.anthropic.com"

DEFAULT_MAX_OUTPUT_TOKENS = 4096
"""The protocol demands a limit; this one is sent with requests that set none."""

_NAME = "anthropic"
_NO_KEY = "none"


def from_endpoint(endpoint: ModelEndpoint) -> PydanticAIProvider:
    """Return the provider ``anthropic`` as it is configured."""
    http = ModelTransport(endpoint.max_reply_bytes)
    return anthropic_provider(base_url=endpoint.base_url, api_key=endpoint.api_key, http=http)


def anthropic_provider(
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    http: httpx2.AsyncBaseTransport | None = None,
) -> PydanticAIProvider:
    """Return the provider ``anthropic``: Anthropic itself, or the server at ``base_url``.

    The key is exactly the one given; none of the environment is sent to another server. The
    provider closes ``http``, which is by default a transport of its own.
    """
    logging.getLogger("anthropic").setLevel(logging.INFO)  # below that it writes out prompts
    http = http or ModelTransport()
    client = _Client(
        base_url=base_url or DEFAULT_BASE_URL,
        api_key=api_key or _NO_KEY,
        http_client=httpx2.AsyncClient(transport=http, timeout=None),
        max_retries=0,
        timeout=None,  # a time limit of its own would make the SDK refuse or stream long replies
        open_telemetry=False,
    )
    endpoint = AnthropicProvider(anthropic_client=client)
    limits = ModelSettings(max_tokens=DEFAULT_MAX_OUTPUT_TOKENS)
    return PydanticAIProvider(
        name=_NAME,
        build_model=lambda model: _TolerantModel(model, provider=endpoint, settings=limits),
        structured_output=tool_output,
        http=http,
        max_in_flight=max_in_flight,
    )


class _Client(AsyncAnthropic):
    """A client without the headers that the environment has for every server."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._custom_headers = {}  # those of ANTHROPIC_CUSTOM_HEADERS; we give none


class _TolerantModel(AnthropicModel):
    """Reads replies without token counts, which some gateways omit and the library relies on."""

    def _process_response(
        self, response: BetaMessage, *arguments: Any, **options: Any
    ) -> ModelResponse:
        if not _counts_tokens(response):
            response.usage = BetaUsage(input_tokens=0, output_tokens=0)
        return super()._process_response(response, *arguments, **options)

    async def _process_streamed_response(
        self, response: Any, *arguments: Any, **options: Any
    ) -> AnthropicStreamedResponse:
        events: Any = _TolerantEvents(response)
        return await super()._process_streamed_response(events, *arguments, **options)


class _TolerantEvents:
    """The events of a stream, of which those that should count tokens do."""

    def __init__(self, events: Any) -> None:
        self._events = events
        self.source = events.source

    async def peek(self) -> Any:
        return _with_counts(await self._events.peek())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return _with_counts(await anext(self._events))


def _with_counts(event: Any) -> Any:
    kind = getattr(event, "type", None)
    if kind == "message_start" and event.message is not None and not _counts_tokens(event.message):
        event.message.usage = BetaUsage(input_tokens=0, output_tokens=0)
    elif kind == "message_delta" and event.usage is None:
        event.usage = BetaMessageDeltaUsage(output_tokens=0)
    return event


def _counts_tokens(response: BetaMessage) -> bool:
    usage: object = getattr(response, "usage", None)  # the SDK does not validate replies
    counts = (getattr(usage, "input_tokens", None), getattr(usage, "output_tokens", None))
    return all(isinstance(count, int) for count in counts)
