"""How agents ask models: by tier, through the run's call gateway, metered."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from app.control.budget import Dimension
from app.control.retry import RetryPolicy
from app.control.stops import Stop, StopCause, StopKind
from app.engine.call import AttemptError, Call, Reply, Spent
from app.engine.context import FlowContext
from app.llm.messages import Message, ModelReply, ModelRequest, TokenUsage
from app.llm.ports import ModelError, ModelProvider
from app.llm.pricing import Prices, PriceUnknownError, estimate_tokens


class Tier(StrEnum):
    """Which of the two configured models is asked."""

    SMALL = "small"
    BIG = "big"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierModel:
    """The model of a tier and how it is asked."""

    provider: ModelProvider
    model: str
    temperature: float | None = None
    max_output_tokens: int = 1024
    timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model answered and what it cost, retries included or replayed from the journal."""

    text: str
    provider: str
    model: str
    tokens_in: int
    tokens_out: int
    cost_usd: Decimal


_LOGICAL_CALL = {Tier.SMALL: Dimension.LLM_CALLS_SMALL, Tier.BIG: Dimension.LLM_CALLS_BIG}


class ModelGateway:
    """Asks the models of both tiers."""

    def __init__(self, tiers: Mapping[Tier, TierModel], prices: Prices, retry: RetryPolicy) -> None:
        self._tiers = tiers
        self._prices = prices
        self._retry = retry

    def model_of(self, tier: Tier) -> TierModel:
        """Return the configuration of a tier."""
        return self._tiers[tier]

    async def aclose(self) -> None:
        """Close the providers' connections."""
        for provider in {
            id(chosen.provider): chosen.provider for chosen in self._tiers.values()
        }.values():
            await provider.aclose()

    async def complete(
        self,
        context: FlowContext,
        *,
        tier: Tier,
        name: str,
        key: str,
        messages: Sequence[Message],
        json_schema: Mapping[str, Any] | None = None,
        seed: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Completion:
        """Ask the model of a tier; ``max_output_tokens`` can only narrow what is configured.

        ``name`` is what the trace calls it; ``key`` is its path inside the step, the same whenever
        the run is executed again.

        Raises:
            CallFailedError: the provider failed, its retries included.
            Stop: a limit or somebody's wish keeps it from being asked, or ended it.
        """
        chosen = self._tiers[tier]
        request = ModelRequest(
            messages=tuple(messages),
            json_schema=json_schema,
            max_output_tokens=min(
                chosen.max_output_tokens, max_output_tokens or chosen.max_output_tokens
            ),
            temperature=chosen.temperature,
            seed=seed,
            timeout_seconds=chosen.timeout_seconds,
        )
        call = self._call(context, tier, chosen, request, name, f"{context.path}/{key}")

        async def attempt() -> Reply:
            return await self._attempt(chosen, request, call.estimate)

        value = await context.calls.perform(
            call, attempt, parent=context.trace_parent, scope=context.scope
        )
        return Completion(
            text=value["text"],
            provider=chosen.provider.name,
            model=value["model"],
            tokens_in=value["tokens_in"],
            tokens_out=value["tokens_out"],
            cost_usd=Decimal(value["cost_usd"]),
        )

    def _call(
        self,
        context: FlowContext,
        tier: Tier,
        chosen: TierModel,
        request: ModelRequest,
        name: str,
        key: str,
    ) -> Call:
        return Call(
            key=key,
            kind="llm",
            name=name,
            model=chosen.model,
            request_hash=_hash(chosen, request),
            once={_LOGICAL_CALL[tier]: 1},
            per_attempt={Dimension.API_CALLS: 1},
            estimate=self._estimate(context, chosen, request),
            external=chosen.provider.external,
            retry=self._retry,
            timeout_seconds=chosen.timeout_seconds,
            metadata={"tier": tier.value, "provider": chosen.provider.name},
        )

    def _estimate(self, context: FlowContext, chosen: TierModel, request: ModelRequest) -> Spent:
        """Estimate an attempt from above; refuse it where a cost limit meets an unknown price."""
        if not chosen.provider.external:
            return Spent()
        tokens = estimate_tokens(request)
        spent = Spent(tokens_in=tokens.tokens_in, tokens_out=tokens.tokens_out)
        try:
            return replace(spent, cost_usd=self._price(chosen, spent))
        except PriceUnknownError as unknown:
            if not context.scope.limits_of(Dimension.COST_USD):
                return spent
            raise Stop(
                StopCause(
                    kind=StopKind.BUDGET,
                    dimension=Dimension.COST_USD,
                    scope=context.scope.name,
                    reason=f"The run limits its cost, and {unknown}",
                )
            ) from None

    async def _attempt(self, chosen: TierModel, request: ModelRequest, estimate: Spent) -> Reply:
        try:
            reply = await chosen.provider.complete(chosen.model, request)
        except ModelError as error:
            refused = error.status is not None and error.status >= 400
            raise AttemptError(
                str(error),
                error_class=type(error).__name__,
                retryable=error.retryable,
                retry_after_seconds=error.retry_after_seconds,
                spent=Spent() if refused else None,
            ) from error
        spent = self._spent(chosen, reply) or estimate
        value = {
            "text": reply.text,
            "model": reply.model,
            "tokens_in": spent.tokens_in,
            "tokens_out": spent.tokens_out,
            "cost_usd": str(spent.cost_usd),
        }
        return Reply(value, spent)

    def _spent(self, chosen: TierModel, reply: ModelReply) -> Spent | None:
        if reply.usage is None:
            return None
        spent = Spent(tokens_in=reply.usage.tokens_in, tokens_out=reply.usage.tokens_out)
        if not chosen.provider.external:
            return spent
        try:
            cost = self._prices.cost_usd(chosen.provider.name, chosen.model, reply.usage)
        except PriceUnknownError:
            return spent
        return replace(spent, cost_usd=cost)

    def _price(self, chosen: TierModel, spent: Spent) -> Decimal:
        usage = TokenUsage(tokens_in=spent.tokens_in, tokens_out=spent.tokens_out)
        return self._prices.cost_usd(chosen.provider.name, chosen.model, usage)


def _hash(chosen: TierModel, request: ModelRequest) -> str:
    asked = {
        "provider": chosen.provider.name,
        "model": chosen.model,
        "messages": [[message.role, message.content] for message in request.messages],
        "schema": request.json_schema,
        "seed": request.seed,
        "max_output_tokens": request.max_output_tokens,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
