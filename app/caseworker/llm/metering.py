"""What the attempts of one exchange cost, before they are made and after.

Before: an estimate from above, made smaller where the budget has no room for it. After: what the
provider counted; an estimate where it was sent and the answer, or its counts, were lost; nothing
where nothing was sent.
"""

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

from caseworker.control.budget import Dimension, money
from caseworker.control.ledger import Room, Scope
from caseworker.control.stops import Stop, StopCause, StopKind
from caseworker.engine.call import FREE, Spent
from caseworker.llm.ports import (
    Delivery,
    ModelError,
    ModelFault,
    ModelReply,
    ModelRequest,
    TokenUsage,
)
from caseworker.llm.pricing import (
    ListPrice,
    PriceUnknownError,
    estimate_lost,
    estimate_tokens,
    estimate_unmetered,
)
from caseworker.llm.table import ChatModel


class Metering:
    """The request of one exchange, as large as its budget allows, and what it costs.

    An attempt at a provider that is not external costs nothing.
    """

    def __init__(
        self,
        model: ChatModel,
        request: ModelRequest,
        list_price: ListPrice,
        *,
        messages_bytes: int | None = None,
    ) -> None:
        """Meter attempts at ``request``, which asks for ``model.min_output_tokens`` at least.

        Fewer only where the request itself asks for fewer. ``messages_bytes`` is the size of its
        messages, where it is known.
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
        """The estimate of the next attempt, or of the one that is made."""
        self._delivery = Delivery()
        self._began = 0.0
        self.estimate = self._spent(self._full)
        """Of the request as it is."""

    def refusal(self, scope: Scope) -> Stop | None:
        """Return the stop of a call whose cost is limited and whose price is not known."""
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
        """Ask for as many output tokens as there is room for; return the estimate of that.

        The cost is linear in them.
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
        """Return the request of an attempt that begins now."""
        self._delivery = Delivery()
        self._began = asyncio.get_running_loop().time()
        request = replace(self._request, delivery=self._delivery)
        if self._allowed.tokens_out < self._full.tokens_out:
            request = replace(request, max_output_tokens=self._allowed.tokens_out)
        return request

    def lost(self) -> Spent:
        """Return what the attempt has cost if there is no answer to it any more."""
        if not self._delivery.sent or not self._external:
            return FREE
        seconds = asyncio.get_running_loop().time() - self._began
        return self._spent(estimate_lost(self._allowed, seconds), estimated=True)

    def failed(self, error: ModelError) -> Spent:
        """Return what a failed attempt has cost: nothing, if the provider refused the request."""
        written = error.fault is ModelFault.UNREADABLE_REPLY
        refused = error.status is not None and error.status >= 400 and not written
        return FREE if refused else self.lost()

    def answered(self, reply: ModelReply) -> tuple[TokenUsage, Spent]:
        """Return the tokens of an answer and what they cost."""
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
        """Return what tokens cost; None if that is not known."""
        if not self._external:
            return Decimal(0)
        if (price := self._model.price) is not None:
            return price.cost_usd(usage)
        with suppress(PriceUnknownError):
            return self._list_price(self._model.provider.name, self._model.model, usage)
        return None
