"""Estimated and actual cost of the attempts of one exchange.

Before an attempt, the cost is estimated at its maximum; the output limit is lowered if less budget
remains. After an attempt, it is computed from the provider's token counts. It is estimated if the
request was sent but the answer or its counts were lost. It is zero if nothing was sent.
"""

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

from caseworker.core.budget.budget import Dimension, money
from caseworker.core.budget.ledger import Room, Scope
from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.engine.call import FREE, Spent
from caseworker.models.ports import (
    ModelError,
    ModelFault,
    ModelReply,
    ModelRequest,
    SendState,
    TokenUsage,
)
from caseworker.models.pricing import (
    ListPrice,
    PriceUnknownError,
    estimate_lost,
    estimate_tokens,
    estimate_unmetered,
)
from caseworker.models.table import ChatModel


class Metering:
    """Fits a request into the remaining budget and computes the cost of each attempt.

    Attempts are free if the provider is local to this process (its ``external`` is False).
    """

    def __init__(
        self,
        model: ChatModel,
        request: ModelRequest,
        list_price: ListPrice,
        *,
        messages_bytes: int | None = None,
    ) -> None:
        """Prepare attempts that request at least ``model.min_output_tokens`` output tokens.

        They request fewer only if ``request`` itself sets a lower limit. ``messages_bytes`` is the
        size of the messages, if known.
        """
        self._model = model
        self._request = request
        self._list_price = list_price
        self._external = model.provider.external
        self._full = TokenUsage(tokens_in=0, tokens_out=0)
        if self._external:
            self._full = estimate_tokens(request, messages_bytes=messages_bytes)
        self._least = min(model.min_output_tokens, self._full.tokens_out)
        self._allowed = self._full
        """The estimate for the current or the next attempt."""
        self._delivery = SendState()
        self._began = 0.0
        self.estimate = self._spent(self._full)
        """The estimate for the full request, before it is fitted to a budget."""

    def refusal(self, scope: Scope) -> Stop | None:
        """Return a stop if cost is limited but the model's price is unknown; otherwise None."""
        if self.estimate.cost_usd is not None or not scope.requires_prices():
            return None
        unknown = PriceUnknownError(self._model.provider.name, self._model.model)
        cause = StopCause(
            kind=StopKind.BUDGET,
            dimension=Dimension.COST_USD,
            scope=scope.name,
            reason=f"The run limits its cost, and {unknown}",
        )
        return Stop(cause)

    def fit(self, room: Room) -> Spent:
        """Lower the output limit so that the request fits the budget; return its estimated usage.

        ``room`` returns the remaining budget for a dimension. The cost is linear in the number of
        output tokens.
        """
        most, tokens, cost = self._full.tokens_out, room(Dimension.TOKENS), room(Dimension.COST_USD)
        if tokens is not None:
            most = min(most, math.floor(tokens) - self._full.tokens_in)
        dear = self.estimate.cost_usd
        if cost is not None and dear is not None and dear > cost:
            of_input = self._spent(replace(self._full, tokens_out=0)).cost_usd or Decimal(0)
            each = (dear - of_input) / (self._full.tokens_out or 1)
            most = min(most, math.floor((money(cost) - of_input) / each) if each else 0)
        self._allowed = replace(self._full, tokens_out=max(self._least, most))
        return self._spent(self._allowed)

    def next_attempt(self) -> ModelRequest:
        """Record the start of an attempt and return the request to send."""
        self._delivery = SendState()
        self._began = asyncio.get_running_loop().time()
        request = replace(self._request, delivery=self._delivery)
        if self._allowed.tokens_out < self._full.tokens_out:
            request = replace(request, max_output_tokens=self._allowed.tokens_out)
        return request

    def lost(self) -> Spent:
        """Return the charge for an attempt whose answer will never arrive: an estimate, or zero.

        Nothing is charged if the request was not sent.
        """
        if not self._delivery.sent or not self._external:
            return FREE
        seconds = asyncio.get_running_loop().time() - self._began
        return self._spent(estimate_lost(self._allowed, seconds), estimated=True)

    def failed(self, error: ModelError) -> Spent:
        """Return the charge for a failed attempt: nothing if the provider rejected the request."""
        written = error.fault is ModelFault.UNREADABLE_REPLY
        refused = error.status is not None and error.status >= 400 and not written
        return FREE if refused else self.lost()

    def answered(self, reply: ModelReply) -> tuple[TokenUsage, Spent]:
        """Return a reply's token usage and cost; both are estimates if it has no token counts."""
        if reply.usage is not None:
            return reply.usage, self._spent(reply.usage)
        usage = estimate_unmetered(self._allowed, reply)
        return usage, self._spent(usage, estimated=self._external)

    def _spent(self, usage: TokenUsage, *, estimated: bool = False) -> Spent:
        return Spent(
            tokens_in=usage.tokens_in,
            tokens_out=usage.tokens_out,
            cost_usd=self._cost_usd(usage),
            estimated=estimated,
        )

    def _cost_usd(self, usage: TokenUsage) -> Decimal | None:
        """Return the cost in US dollars, or None if the price is unknown."""
        if not self._external:
            return Decimal(0)
        if (price := self._model.price) is not None:
            return price.cost_usd(usage)
        with suppress(PriceUnknownError):
            return self._list_price(self._model.provider.name, self._model.model, usage)
        return None
