"""Model providers over pydantic-ai: one attempt, whichever protocol is below it.

Requests, replies and failures are translated here. A failure is described by its kind, its HTTP
status and the names of its classes, and by the message in the provider's error document, redacted
and cut. What else the libraries put into their messages, such as the prompt, is not repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import httpx2
from genai_prices.data_snapshot import get_snapshot
from pydantic_ai import exceptions
from pydantic_ai import messages as ai
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from app.adapters.providers.pydantic_ai.messages import Deltas, history, offered, reply_of
from app.adapters.providers.pydantic_ai.transport import (
    DELIVERY,
    ProxyUnusableError,
    ReplyRefusedError,
)
from app.llm.ports import ModelError, ModelFault, ModelReply, ModelRequest
from app.observability.redaction import redact_text

Schema = Mapping[str, Any]
StructuredOutput = Callable[[Schema, ModelProfile], ModelRequestParameters]
"""How a model with such a profile is asked for a reply that follows a JSON Schema."""

MAX_IN_FLIGHT = 10_000
"""How many attempts may be under way at once; further ones wait."""

_DEFAULT_TIMEOUT_SECONDS = 600.0
"""The limit of an attempt whose request sets none."""

_REMEMBERED_MODELS = 256
_REPLY_NAME = "reply"

_RETRYABLE_STATUSES = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
)

# The first class that fits is the most specific one.
_HTTP_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.ModelQuotaExceededError, "the account's quota is used up"),
    (exceptions.ModelRateLimitError, "too many requests"),
    (exceptions.ModelOverloadedError, "the provider is overloaded"),
    (exceptions.ModelContextWindowExceededError, "the prompt is too long for the model"),
    (exceptions.ModelAuthenticationError, "the API key was not accepted"),
    (exceptions.ModelNotFoundError, "the model or the endpoint does not exist"),
    (exceptions.ModelRequestRejectedError, "the request was rejected"),
)

_FORM_STATUSES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})

# The names of the parameters by which JSON is asked for, and how endpoints complain of them.
_FORM_WORDS = (
    *("response_format", "json_schema", "json_object", "tool_choice", "output_format"),
    *("output_config", "structured output", "tools"),
)
_SCHEMA_WORDS = ("invalid schema", "invalid_json_schema", "schema is invalid")
_UNREADABLE_WORDS = ("model produced output that does not match", "failed to parse input at pos")
"""How llama.cpp says that what its model has written is neither text nor the call of a tool."""
_SEARCHED_CHARS = 20_000
_SAID_CHARS = 300
"""How much of a provider's message is repeated."""


class PydanticAIProvider:
    """A `ModelProvider` over one endpoint.

    ``build_model`` turns a model's name into the library's model; all of them share ``http``.
    """

    external = True
    """Always: an attempt costs money or machine time elsewhere."""

    def __init__(
        self,
        *,
        name: str,
        build_model: Callable[[str], Model[Any]],
        structured_output: StructuredOutput,
        http: httpx2.AsyncBaseTransport,
        max_in_flight: int,
    ) -> None:
        self.name = name
        self._model = lru_cache(maxsize=_REMEMBERED_MODELS)(build_model)
        self._structured_output = structured_output
        self._http = http
        self._slots = asyncio.Semaphore(max_in_flight)
        _warm_up(build_model)

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Send one request, and only one.

        Waiting for a free slot does not count towards the attempt's time limit.

        Raises:
            ModelError: there is no usable reply.
        """
        if request.delivery is not None:
            request.delivery.sent = False
        outer = DELIVERY.set(request.delivery)
        try:
            async with self._slots:
                outcome = await self._attempt(model, request)
        finally:
            DELIVERY.reset(outer)
        if isinstance(outcome, ModelError):
            # Raised out here so that it carries no context: the library's message in a traceback
            # would show what the provider wrote.
            raise outcome
        return outcome

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _attempt(self, model: str, request: ModelRequest) -> ModelReply | ModelError:
        seconds = request.timeout_seconds
        try:
            built = self._model(model)
            parameters = self._parameters(built, request)
            async with asyncio.timeout(_DEFAULT_TIMEOUT_SECONDS if seconds is None else seconds):
                response = await self._response(built, request, parameters)
            replying = {tool.name for tool in parameters.output_tools}
            return reply_of(response, model, self.name, replying)
        except _BrokenStreamError as broken:
            return _model_error(broken.error, self.name, within_reply=True)
        except Exception as error:
            structured = request.json_object or request.json_schema is not None
            return _model_error(error, self.name, structured=structured)

    async def _response(
        self, model: Model[Any], request: ModelRequest, parameters: ModelRequestParameters
    ) -> ai.ModelResponse:
        asked = model, history(request.messages, self.name)
        settings = _settings_of(request, model.profile)
        if (on_delta := request.on_delta) is None:
            return await model_request(
                *asked,
                model_settings=settings,
                model_request_parameters=parameters,
                instrument=False,
            )
        deltas = Deltas({tool.name for tool in parameters.output_tools})
        async with model_request_stream(
            *asked, model_settings=settings, model_request_parameters=parameters, instrument=False
        ) as stream:
            async for event in _within_stream(stream):
                if (delta := deltas.of(event)) is not None:
                    on_delta(delta)
            return stream.get()

    def _parameters(self, model: Model[Any], request: ModelRequest) -> ModelRequestParameters:
        parameters = ModelRequestParameters()
        if request.json_schema is not None:
            parameters = self._structured_output(request.json_schema, model.profile)
        elif request.json_object:
            parameters = _json_mode()
        if not request.tools:
            return parameters
        tools = [
            offered(tool, strict=None if _is_closed(tool.parameters) else False)
            for tool in request.tools
        ]
        names, replying = {tool.name for tool in tools}, parameters.output_tools
        while any(tool.name in names for tool in replying):
            replying = [replace(tool, name=f"{tool.name}_") for tool in replying]
        return replace(parameters, function_tools=tools, output_tools=replying)


class _BrokenStreamError(Exception):
    """A stream that has begun and does not end as it should."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


async def _within_stream(
    stream: StreamedResponse,
) -> AsyncIterator[ai.ModelResponseStreamEvent]:
    """Pass the events of a stream on.

    Raises:
        _BrokenStreamError: it failed, or ended before the provider said why it does.
    """
    try:
        async for event in stream:
            yield event
    except Exception as error:
        raise _BrokenStreamError(error) from error
    if stream.finish_reason is None:
        raise _BrokenStreamError(EOFError())


def _warm_up(build_model: Callable[[str], Model[Any]]) -> None:
    """Do at start-up what the libraries would otherwise do during the first call."""
    build_model("warm-up")  # loads what the SDK puts off until a model is used
    get_snapshot()  # token counts are read by the tables of genai-prices


def _settings_of(request: ModelRequest, profile: ModelProfile) -> ModelSettings:
    """Return what the request sets; the rest is the provider's default.

    Models that reason take no temperature, so none is sent to them.
    """
    settings = ModelSettings()
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    if request.temperature is not None and _takes_temperature(profile):
        settings["temperature"] = request.temperature
    if request.seed is not None:
        settings["seed"] = request.seed
    return settings


def _takes_temperature(profile: ModelProfile) -> bool:
    reasons = profile.get("openai_supports_reasoning", False) and profile.get(
        "thinking_enabled_by_default", False
    )
    return not (reasons or profile.get("anthropic_disallows_sampling_settings", False))


def native_output(schema: Schema, profile: ModelProfile) -> ModelRequestParameters:
    """Ask through the protocol's own field, constrained by the schema where it is closed.

    A strict provider treats every object as closed. For a schema with an open object, such as the
    arguments of a tool yet to be chosen, that would allow only ``{}`` there, so such a schema is
    sent as advice.
    """
    if not profile.get("supports_json_schema_output", False):
        return _prompted_output(schema)
    return ModelRequestParameters(
        output_mode="native",
        output_object=_output_object(schema, strict=None if _is_closed(schema) else False),
    )


def tool_output(schema: Schema, _profile: ModelProfile) -> ModelRequestParameters:
    """Ask for the call of a tool with these arguments, or natively where the model prefers it."""
    if schema.get("type") != "object":
        return _prompted_output(schema)
    tool = ToolDefinition(
        name=_REPLY_NAME,
        description="Give the reply.",
        parameters_json_schema=dict(schema),
        kind="output",
    )
    return ModelRequestParameters(
        output_mode="auto", output_object=_output_object(schema), output_tools=[tool]
    )


def _json_mode() -> ModelRequestParameters:
    """Ask for any JSON object, where the protocol can; the prompt describes it."""
    return ModelRequestParameters(
        output_mode="prompted",
        output_object=_output_object({"type": "object"}),
        prompted_output_template=False,
    )


def _prompted_output(schema: Schema) -> ModelRequestParameters:
    return ModelRequestParameters(output_mode="prompted", output_object=_output_object(schema))


def _output_object(schema: Schema, *, strict: bool | None = None) -> OutputObjectDefinition:
    return OutputObjectDefinition(json_schema=dict(schema), name=_REPLY_NAME, strict=strict)


def _is_closed(schema: object) -> bool:
    """Return whether every object in the schema forbids further properties."""
    if isinstance(schema, Mapping):
        open_object = schema.get("type") == "object" and (
            schema.get("additionalProperties") is not False
        )
        return not open_object and all(map(_is_closed, schema.values()))
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(map(_is_closed, schema))
    return True


def _model_error(
    error: Exception, provider: str, *, structured: bool = False, within_reply: bool = False
) -> ModelError:
    """Translate whatever an attempt raised; ``structured`` if it asked for JSON by a parameter.

    A failure within a reply that has begun has no status: what was written so far was charged.

    A reply that cannot be read counts as retryable although its status was 200: like a 502 it is
    mostly a passing problem of a gateway. A reply that was refused for its size would be as long
    the next time, so that one is not.
    """
    if (unreadable := _unreadable_reply(error, provider)) is not None:
        return unreadable
    if within_reply and isinstance(error, EOFError | exceptions.ModelHTTPError):
        said = _said_in(getattr(error, "body", None))
        return ModelError(f"{provider}: the stream broke off{said}", retryable=True)
    if isinstance(error, exceptions.ModelHTTPError):
        return _of_status(error, provider, structured=structured)
    if any(isinstance(cause, ReplyRefusedError) for cause in _causes(error)):
        return ModelError(f"{provider}: the reply is too long or compressed", retryable=False)
    if any(isinstance(cause, ProxyUnusableError) for cause in _causes(error)):
        said = "the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names must be one of http://"
        return ModelError(f"{provider}: {said}", retryable=False)
    if isinstance(error, TimeoutError | exceptions.ModelTimeoutError):
        return ModelError(f"{provider}: no answer in time", retryable=True)
    if isinstance(error, exceptions.ModelConnectionError):
        return ModelError(f"{provider}: the connection failed or was cut", retryable=True)
    if isinstance(error, exceptions.UserError | UnicodeEncodeError):
        kind = type(error).__name__
        return ModelError(f"{provider}: the request cannot be sent ({kind})", retryable=False)
    if (status := _redirect_status(error)) is not None:
        message = f"{provider}: the endpoint redirects elsewhere (HTTP {status})"
        return ModelError(message, retryable=False, status=status)
    kind = type(error).__name__
    return ModelError(f"{provider}: the reply cannot be read ({kind})", retryable=True)


def _unreadable_reply(error: Exception, provider: str) -> ModelError | None:
    """Return the failure, if an endpoint says that it cannot read what its model has written."""
    for cause in _causes(error):
        said = _said_in(body) if (body := getattr(cause, "body", None)) is not None else ""
        if any(words in said.lower() for words in _UNREADABLE_WORDS):
            return ModelError(
                f"{provider}: the endpoint cannot read what the model has written{said}",
                retryable=False,
                status=getattr(cause, "status_code", None),
                fault=ModelFault.UNREADABLE_REPLY,
            )
    return None


def _of_status(error: exceptions.ModelHTTPError, provider: str, *, structured: bool) -> ModelError:
    status = error.status_code
    fault = _form_fault(error) if structured and status in _FORM_STATUSES else None
    if fault is not None:
        message = f"{provider}: JSON cannot be asked for in this way (HTTP {status})"
        message += _said_in(error.body)
        return ModelError(message, retryable=False, status=status, fault=fault)
    fitting = (words for kind, words in _HTTP_FAILURES if isinstance(error, kind))
    words = next(fitting, "the provider failed" if status >= 500 else "the request was refused")
    return ModelError(
        f"{provider}: {words} (HTTP {status}){_said_in(error.body)}",
        retryable=status in _RETRYABLE_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR,
        status=status,
        retry_after_seconds=error.retry_after,
    )


def _said_in(body: object) -> str:
    """Return what the provider says of a failure, as it may be shown; "" if it says nothing."""
    said = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(said, Mapping):
        said = said.get("message", said.get("detail"))
    if not isinstance(said, str) or not said.strip():
        return ""
    text = " ".join(said[:_SEARCHED_CHARS].split())
    return f": {redact_text(text, max_chars=_SAID_CHARS)}"


def _form_fault(error: exceptions.ModelHTTPError) -> ModelFault | None:
    """Return the fault, if the endpoint names the parameter by which it was asked for JSON."""
    body = str(error.body)[:_SEARCHED_CHARS].lower()
    if any(words in body for words in _SCHEMA_WORDS):
        return ModelFault.SCHEMA_REFUSED
    return ModelFault.FORM_UNSUPPORTED if any(word in body for word in _FORM_WORDS) else None


def _redirect_status(error: Exception) -> int | None:
    for cause in _causes(error):
        status = getattr(cause, "status_code", None)
        if isinstance(status, int) and 300 <= status < 400:
            return status
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__
