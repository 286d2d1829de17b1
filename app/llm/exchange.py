"""One model asked in one form: a call of its own in trace, journal and budget."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from itertools import count
from typing import Any

from app.control.budget import Amount, Dimension
from app.control.retry import RetryPolicy
from app.control.stops import Stop, StopCause, StopKind
from app.engine.call import AttemptError, CallSpec, Reply, Spent
from app.engine.context import FlowContext
from app.engine.step_path import StepPath
from app.llm.forms import StructuredOutput, read_json
from app.llm.ports import (
    ModelError,
    ModelProvider,
    ModelReply,
    ModelRequest,
    RequestOrigin,
    TokenUsage,
)
from app.llm.pricing import ListPrice, PriceUnknownError, TokenPrice, estimate_tokens


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
        request = self.request
        asked = {
            "provider": self.model.provider.name,
            "model": self.model.model,
            "messages": [[message.role, message.content] for message in request.messages],
            "schema": request.json_schema,
            "seed": request.seed,
            "max_output_tokens": request.max_output_tokens,
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


_TOKENS = ("tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning")


class Exchanges:
    """Performs exchanges through the run's gateway, metered and priced."""

    def __init__(self, list_price: ListPrice, retry: RetryPolicy) -> None:
        self._list_price = list_price
        self._retry = retry

    async def perform(
        self, exchange: Exchange, context: FlowContext, *, once: Mapping[Dimension, Amount]
    ) -> Completion:
        """Ask; ``once`` is charged in addition to the attempts, as soon as the first one begins.

        Raises:
            CallFailedError: the model failed, its retries included; its class is a ``ModelFault``
                or ``TimeoutError``.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        estimate, refusal = self._estimate(exchange, context)
        call = self._call(exchange, once, estimate, refusal)

        numbers = count(1)

        async def attempt() -> Reply:
            if refusal is not None:
                raise refusal
            origin = RequestOrigin(
                run_id=context.run_id, call=exchange.key.text, attempt=next(numbers)
            )
            return await self._attempt(exchange, replace(exchange.request, origin=origin), estimate)

        value = await context.calls.perform(
            call, attempt, parent=context.trace_parent, scope=context.scope
        )
        text = value["text"]
        return Completion(
            text=read_json(text) if exchange.wants_json else text,
            provider=exchange.model.provider.name,
            model=value["model"],
            cost_usd=Decimal(value["cost_usd"]),
            **{name: value[name] for name in _TOKENS},
        )

    def _call(
        self,
        exchange: Exchange,
        once: Mapping[Dimension, Amount],
        estimate: Spent,
        refusal: Stop | None,
    ) -> CallSpec:
        """Return the call; one that is refused charges nothing and is not sent."""
        return CallSpec(
            key=exchange.key,
            kind="llm",
            name=exchange.name,
            model=exchange.model.model,
            request_hash=exchange.request_hash,
            once={} if refusal else once,
            per_attempt={} if refusal else {Dimension.API_CALLS: 1},
            estimate=estimate,
            external=exchange.model.provider.external and refusal is None,
            retry=self._retry,
            timeout_seconds=exchange.model.timeout_seconds,
            metadata=exchange.metadata,
        )

    def _estimate(self, exchange: Exchange, context: FlowContext) -> tuple[Spent, Stop | None]:
        """Estimate an attempt from above; refuse it where a cost limit meets an unknown price."""
        if not exchange.model.provider.external:
            return Spent(), None
        tokens = estimate_tokens(exchange.request)
        spent = Spent(tokens_in=tokens.tokens_in, tokens_out=tokens.tokens_out)
        try:
            return replace(spent, cost_usd=self._price(exchange.model, tokens)), None
        except PriceUnknownError as unknown:
            if not context.scope.limits_of(Dimension.COST_USD):
                return spent, None
            return Spent(), _unpriced(unknown, context)

    async def _attempt(self, exchange: Exchange, request: ModelRequest, estimate: Spent) -> Reply:
        chosen = exchange.model
        try:
            reply = await chosen.provider.complete(chosen.model, request)
        except ModelError as error:
            refused = error.status is not None and error.status >= 400
            raise AttemptError(
                str(error),
                error_class=error.fault.value,
                retryable=error.retryable,
                retry_after_seconds=error.retry_after_seconds,
                spent=Spent() if refused else None,
            ) from error
        spent = self._spent(chosen, reply) or estimate
        return Reply(_value(reply, spent), spent)

    def _spent(self, chosen: TierModel, reply: ModelReply) -> Spent | None:
        if reply.usage is None:
            return None
        spent = Spent(tokens_in=reply.usage.tokens_in, tokens_out=reply.usage.tokens_out)
        if not chosen.provider.external:
            return spent
        try:
            return replace(spent, cost_usd=self._price(chosen, reply.usage))
        except PriceUnknownError:
            return spent

    def _price(self, chosen: TierModel, usage: TokenUsage) -> Decimal:
        if chosen.price is not None:
            return chosen.price.cost_usd(usage)
        return self._list_price(chosen.provider.name, chosen.model, usage)


def _value(reply: ModelReply, spent: Spent) -> dict[str, Any]:
    """Return a reply as the journal stores it."""
    usage = reply.usage or TokenUsage(tokens_in=spent.tokens_in, tokens_out=spent.tokens_out)
    tokens = {name: getattr(usage, name) for name in _TOKENS}
    return {"text": reply.text, "model": reply.model, "cost_usd": str(spent.cost_usd), **tokens}


def _unpriced(unknown: PriceUnknownError, context: FlowContext) -> Stop:
    return Stop(
        StopCause(
            kind=StopKind.BUDGET,
            dimension=Dimension.COST_USD,
            scope=context.scope.name,
            reason=f"The run limits its cost, and {unknown}",
        )
    )
