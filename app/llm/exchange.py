"""One model asked in one form: a call of its own in trace, journal and budget."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from enum import StrEnum
from itertools import count
from typing import Any

import structlog

from app.control.budget import Amount, Dimension
from app.control.retry import RetryPolicy
from app.control.stops import Stop, StopCause, StopKind
from app.engine.call import AttemptError, CallSpec, Reply, Spent
from app.engine.context import FlowContext
from app.engine.step_path import StepPath
from app.llm.forms import StatedSchema, StructuredOutput, read_json, storable
from app.llm.ports import (
    ModelError,
    ModelProvider,
    ModelRequest,
    RequestOrigin,
    TokenUsage,
)
from app.llm.pricing import ListPrice, PriceUnknownError, TokenPrice, estimate_tokens
from app.trace.payloads import Payloads

log = structlog.get_logger(__name__)


class Tier(StrEnum):
    """Which of the two configured tiers is asked."""

    SMALL = "small"
    BIG = "big"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierModel:
    """A model of a tier and how it is asked."""

    provider: ModelProvider
    model: str
    max_output_tokens: int
    timeout_seconds: float
    structured_output: StructuredOutput
    """How it is asked for JSON."""
    temperature: float | None = None
    price: TokenPrice | None = None
    """The stated price; None leaves that to the list of prices."""
    fallbacks: tuple["TierModel", ...] = ()
    """Models that are asked, in this order, when this one cannot answer."""

    @property
    def chain(self) -> tuple["TierModel", ...]:
        """This model and its fallbacks."""
        return (self, *self.fallbacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model answered and what that cost; it may be replayed from the journal."""

    text: str
    """Where JSON was asked for, the JSON alone if there is any."""
    provider: str
    """The provider of the model that answered, which may be a fallback."""
    model: str
    """The model that answered, as its provider names it."""
    tokens_in: int
    tokens_out: int
    tokens_cached: int = 0
    """The part of ``tokens_in`` that the provider read from its cache."""
    tokens_reasoning: int = 0
    """The part of ``tokens_out`` that was spent on reasoning."""
    cost_usd: Decimal
    finish_reason: str | None = None
    """Why the model stopped writing, in its provider's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request to one model in one form."""

    model: TierModel
    request: ModelRequest
    name: str
    """Its name in the trace."""
    key: StepPath
    """Its path in the run, the same whenever the run is executed again."""
    metadata: Mapping[str, Any]
    wants_json: bool = False
    """Whether the reply must be JSON, in whatever form it is asked for."""

    @property
    def request_hash(self) -> str:
        """Identifies the request; a recorded reply to another request is not replayed."""
        request, schema = self.request, self.request.json_schema
        asked = {
            "provider": self.model.provider.name,
            "model": self.model.model,
            "messages": [[message.role, message.content] for message in request.messages],
            "schema": schema.digest if isinstance(schema, StatedSchema) else schema,
            "seed": request.seed,
            "max_output_tokens": request.max_output_tokens,
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class Exchanges:
    """Performs exchanges through the run's gateway, metered and priced."""

    def __init__(self, list_price: ListPrice, retry: RetryPolicy, payloads: Payloads) -> None:
        self._list_price = list_price
        self._retry = retry
        self._payloads = payloads

    async def perform(
        self, exchange: Exchange, context: FlowContext, *, once: Mapping[Dimension, Amount]
    ) -> Completion:
        """Ask; ``once`` is charged in addition to the attempts, as soon as the first one begins.

        Raises:
            CallFailedError: the model failed, its retries included; its class is a ``ModelFault``
                or ``TimeoutError``.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        chosen = exchange.model
        estimate, refusal = self._estimate(exchange, context)
        call = CallSpec(
            key=exchange.key,
            kind="llm",
            name=exchange.name,
            model=chosen.model,
            request_hash=exchange.request_hash,
            once={} if refusal else once,
            per_attempt={} if refusal else {Dimension.API_CALLS: 1},
            estimate=estimate,
            external=chosen.provider.external and refusal is None,
            retry=self._retry,
            timeout_seconds=chosen.timeout_seconds,
            metadata=exchange.metadata,
            request=self._shown(exchange),
        )
        numbers = count(1)

        async def attempt() -> Reply:
            if refusal is not None:
                raise refusal
            run_id, number = context.run_id, next(numbers)
            origin = RequestOrigin(run_id=run_id, call=exchange.key.text, attempt=number)
            return await self._attempt(chosen, replace(exchange.request, origin=origin), estimate)

        value = await context.calls.perform(
            call, attempt, parent=context.trace_parent, scope=context.scope
        )
        text = read_json(value["text"]) if exchange.wants_json else value["text"]
        cost_usd, provider = Decimal(value["cost_usd"]), chosen.provider.name
        return Completion(**{**value, "text": text, "cost_usd": cost_usd, "provider": provider})

    def _shown(self, exchange: Exchange) -> Mapping[str, Any] | None:
        """Return what a trace keeps of a request."""
        request, external = exchange.request, exchange.model.provider.external
        parameters = {
            "max_output_tokens": request.max_output_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "json_schema": request.json_schema if external else None,  # others do not read it
        }
        messages = [(message.role, message.content) for message in request.messages]
        return self._payloads.prompt(messages, parameters)

    def _estimate(self, exchange: Exchange, context: FlowContext) -> tuple[Spent, Stop | None]:
        """Estimate an attempt from above; refuse it where a cost limit meets an unknown price."""
        if not exchange.model.provider.external:
            return Spent(), None
        tokens = estimate_tokens(exchange.request)
        try:
            return self._spent(exchange.model, tokens), None
        except PriceUnknownError as unknown:
            if not context.scope.requires_prices():
                return _unpriced(tokens), None
            cause = StopCause(
                kind=StopKind.BUDGET,
                dimension=Dimension.COST_USD,
                scope=context.scope.name,
                reason=f"The run limits its cost, and {unknown}",
            )
            return Spent(), Stop(cause)

    async def _attempt(self, chosen: TierModel, request: ModelRequest, estimate: Spent) -> Reply:
        try:
            reply = await chosen.provider.complete(chosen.model, request)
        except ModelError as error:
            refused = error.status is not None and error.status >= 400
            log.warning(
                "model.failed",
                model=chosen.model,
                provider=chosen.provider.name,
                call_key=None if request.origin is None else request.origin.call,
                attempt=None if request.origin is None else request.origin.attempt,
                error_class=error.fault.value,
                error=str(error),
                status=error.status,
            )
            raise AttemptError(
                str(error),
                error_class=error.fault.value,
                retryable=error.retryable,
                retry_after_seconds=error.retry_after_seconds,
                spent=Spent() if refused else None,
            ) from error
        usage, spent = reply.usage, estimate
        if usage is None:
            usage = TokenUsage(tokens_in=estimate.tokens_in, tokens_out=estimate.tokens_out)
        else:
            try:
                spent = self._spent(chosen, usage)
            except PriceUnknownError:
                spent = _unpriced(usage)
        value: dict[str, Any] = {
            "text": storable(reply.text),
            "model": storable(reply.model),
            "cost_usd": str(spent.cost_usd),
            "finish_reason": reply.finish_reason and storable(reply.finish_reason),
        }
        return Reply(value | asdict(usage), spent)

    def _spent(self, chosen: TierModel, usage: TokenUsage) -> Spent:
        """Return what tokens cost, or raise PriceUnknownError."""
        if not chosen.provider.external:
            return _unpriced(usage)
        if chosen.price is not None:
            cost_usd = chosen.price.cost_usd(usage)
        else:
            cost_usd = self._list_price(chosen.provider.name, chosen.model, usage)
        return replace(_unpriced(usage), cost_usd=cost_usd)


def _unpriced(usage: TokenUsage) -> Spent:
    return Spent(tokens_in=usage.tokens_in, tokens_out=usage.tokens_out)
