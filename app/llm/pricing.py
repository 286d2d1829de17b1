"""What model calls cost: the port that knows prices, and estimates made before a call."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from app.llm.messages import ModelRequest, TokenUsage

DEFAULT_OUTPUT_TOKENS = 1024
"""Output tokens assumed for a request that sets no limit."""

_MILLION = Decimal(1_000_000)
_BYTES_PER_TOKEN = 3
_TOKENS_PER_MESSAGE = 8


class PriceUnknownError(LookupError):
    """Nobody has said what a model costs, so a limit on cost cannot be kept with it."""

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(f"the price of the model {model!r} of {provider} is not known")
        self.provider = provider
        self.model = model


class Prices(Protocol):
    """Knows what tokens cost."""

    def cost_usd(self, provider: str, model: str, usage: TokenUsage) -> Decimal:
        """Return the price of one attempt in US dollars; never negative.

        Raises:
            PriceUnknownError: the model has no price; the price is never taken to be zero.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """What a model costs, in US dollars per million tokens.

    Raises:
        ValueError: a price is negative, NaN or infinite.
    """

    usd_per_million_in: Decimal
    usd_per_million_out: Decimal
    usd_per_million_cached: Decimal | None = None
    """Input tokens that the provider read from its cache; None: no discount."""

    def __post_init__(self) -> None:
        for price in (self.usd_per_million_in, self.usd_per_million_out, self._cached):
            if not (price.is_finite() and price >= 0):
                raise ValueError("A price must be a finite number of dollars, zero or more.")

    @property
    def _cached(self) -> Decimal:
        cached = self.usd_per_million_cached
        return self.usd_per_million_in if cached is None else cached

    def cost_usd(self, usage: TokenUsage) -> Decimal:
        """Return the price of these tokens."""
        cached = min(usage.tokens_cached, usage.tokens_in)
        fresh = usage.tokens_in - cached
        cost = fresh * self.usd_per_million_in + cached * self._cached
        return (cost + usage.tokens_out * self.usd_per_million_out) / _MILLION


class FixedPrices:
    """The prices that the configuration states, by provider and model, and no others."""

    def __init__(
        self,
        prices: Mapping[tuple[str, str], TokenPrice] | None = None,
        *,
        free_providers: Collection[str] = (),
    ) -> None:
        self._prices = dict(prices or {})
        self._free_providers = frozenset(free_providers)

    def cost_usd(self, provider: str, model: str, usage: TokenUsage) -> Decimal:
        """Return the stated price.

        Raises:
            PriceUnknownError: none is stated.
        """
        if provider in self._free_providers:
            return Decimal(0)
        price = self._prices.get((provider, model))
        if price is None:
            raise PriceUnknownError(provider, model)
        return price.cost_usd(usage)


def estimate_tokens(
    request: ModelRequest, *, default_output_tokens: int = DEFAULT_OUTPUT_TOKENS
) -> TokenUsage:
    """Estimate the tokens of an attempt from above, before it is made.

    Input: the UTF-8 bytes of the messages and the schema, three to a token, and eight tokens a
    message for its frame. English comes to four characters a token and more, so it is overstated
    by a third; digits, JSON and code come to three; a Chinese character has three bytes and is
    about one token. Output: all that the request allows, or ``default_output_tokens``.
    """
    text_bytes = sum(_bytes(message.content) for message in request.messages)
    if request.json_schema is not None:
        text_bytes += _bytes(json.dumps(dict(request.json_schema), ensure_ascii=False))
    limit = request.max_output_tokens
    return TokenUsage(
        tokens_in=-(-text_bytes // _BYTES_PER_TOKEN)
        + _TOKENS_PER_MESSAGE * (len(request.messages) + 1),
        tokens_out=default_output_tokens if limit is None else limit,
    )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
