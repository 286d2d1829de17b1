"""One attempt at a model call through pydantic-ai, whichever protocol is below it."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import httpx2
from genai_prices.data_snapshot import get_snapshot
from pydantic_ai.direct import model_request
from pydantic_ai.models import Model, ModelRequestParameters

from app.adapters.providers.pydantic_ai.failures import model_error
from app.adapters.providers.pydantic_ai.translation import (
    StructuredOutput,
    json_mode,
    messages_of,
    reply_of,
    settings_of,
)
from app.llm.ports import ModelError, ModelReply, ModelRequest

DEFAULT_TIMEOUT_SECONDS = 600.0
"""The limit of an attempt whose request sets none."""

DEFAULT_MAX_IN_FLIGHT = 10_000
"""How many attempts may be under way at once; further ones wait."""

_REMEMBERED_MODELS = 256


class PydanticAIProvider:
    """A `ModelProvider` over one endpoint.

    ``build_model`` turns a model's name into the library's model; all of them share ``http``.
    """

    def __init__(
        self,
        *,
        name: str,
        build_model: Callable[[str], Model[Any]],
        structured_output: StructuredOutput,
        http: httpx2.AsyncClient,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    ) -> None:
        self._name = name
        self._model = lru_cache(maxsize=_REMEMBERED_MODELS)(build_model)
        self._structured_output = structured_output
        self._http = http
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(max_in_flight)
        _warm_up(build_model)

    @property
    def name(self) -> str:
        """The protocol's name."""
        return self._name

    @property
    def external(self) -> bool:
        """Always: an attempt costs money or machine time elsewhere."""
        return True

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Send one request, and only one.

        Waiting for a free slot does not count towards the attempt's time limit.

        Raises:
            ModelError: there is no usable reply.
        """
        async with self._slots:
            outcome = await self._attempt(model, request)
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
            async with asyncio.timeout(self._timeout_seconds if seconds is None else seconds):
                response = await model_request(
                    built,
                    messages_of(request),
                    model_settings=settings_of(request, built.profile),
                    model_request_parameters=self._parameters(built, request),
                    instrument=False,
                )
            return reply_of(response, model)
        except Exception as error:
            structured = request.json_object or request.json_schema is not None
            return model_error(error, self._name, structured=structured)

    def _parameters(self, model: Model[Any], request: ModelRequest) -> ModelRequestParameters:
        if request.json_schema is not None:
            return self._structured_output(request.json_schema, model.profile)
        return json_mode() if request.json_object else ModelRequestParameters()


def _warm_up(build_model: Callable[[str], Model[Any]]) -> None:
    """Do at start-up what the libraries would otherwise do during the first call."""
    build_model("warm-up")  # loads what the SDK puts off until a model is used
    get_snapshot()  # token counts are read by the tables of genai-prices
