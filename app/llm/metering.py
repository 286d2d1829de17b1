"""What the attempts of one exchange cost, before they are made and after.

Before: an estimate from above, made smaller where the budget has no room for it. After: what the
provider counted; an estimate where it was sent and the answer, or its counts, were lost; nothing
where nothing was sent.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from app.control.budget import Dimension
from app.control.ledger import Room
from app.engine.call import FREE, Spent
from app.llm.ports import Delivery, ModelError, ModelFault, ModelReply, ModelRequest, TokenUsage
from app.llm.pricing import (
    PriceUnknownError,
    estimate_lost,
    estimate_tokens,
    estimate_unmetered,
)

Price = Callable[[TokenUsage], Decimal]
"""Returns what tokens of one model cost, or raises PriceUnknownError."""


class Metering:
    """The request of one exchange, as large as its budget allows, and what it costs."""

    def __init__(
        self,
        request: ModelRequest,
        price: Price,
        *,
        min_output_tokens: int,
        messages_bytes: int | None = None,
    ) -> None:
        """Meter attempts at ``request``; no fewer than ``min_output_tokens`` are ever asked for.

        Fewer only where the request itself asks for fewer. ``messages_bytes`` is the size of its
        messages, where it is known.
        """
        self._request = request
        self._price = price
        self._full = estimate_tokens(request, messages_bytes=messages_bytes)
        self._least = min(min_output_tokens, self._full.tokens_out)
        self._allowed = self._full
        """The estimate of the next attempt, or of the one that is made."""
        self._delivery = Delivery()
        self._began = 0.0
        self.estimate = self._spent(self._full)
        """Of the request as it is."""

    @property
    def price_is_known(self) -> bool:
        """False if nobody can say what an attempt costs."""
        return self.estimate.cost_usd is not None

    def fit(self, room: Room) -> Spent:
        """Ask for as many output tokens as there is room for; return the estimate of that."""
        low, high = self._least, self._full.tokens_out
        while low < high:
            middle = (low + high + 1) // 2 if high < self._full.tokens_out else high
            if self._has_room(middle, room):
                low = middle
            else:
                high = middle - 1
        self._allowed = replace(self._full, tokens_out=low)
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
        if not self._delivery.sent:
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
        return usage, self._spent(usage, estimated=True)

    def _has_room(self, tokens_out: int, room: Room) -> bool:
        spent = self._spent(replace(self._full, tokens_out=tokens_out))
        tokens, cost = room(Dimension.TOKENS), room(Dimension.COST_USD)
        if tokens is not None and spent.tokens_in + spent.tokens_out > tokens:
            return False
        return cost is None or spent.cost_usd is None or spent.cost_usd <= cost

    def _spent(self, usage: TokenUsage, *, estimated: bool = False) -> Spent:
        try:
            cost_usd = self._price(usage)
        except PriceUnknownError:
            cost_usd = None
        return Spent(
            tokens_in=usage.tokens_in,
            tokens_out=usage.tokens_out,
            cost_usd=cost_usd,
            estimated=estimated,
        )
