"""Prices of models, and the sizes of messages."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from caseworker.models.ports import Message, TokenUsage
from caseworker.models.tokens import utf8


class Cost(NamedTuple):
    """The cost of one attempt, in US dollars.

    The price of a token may depend on the number of input tokens, but never on the number of output
    tokens. The cost of the output is therefore proportional to its tokens.
    """

    total: Decimal
    output: Decimal
    """The part of ``total`` that pays for output tokens."""


ListPrice = Callable[[str, str, TokenUsage], Cost]
"""Function that returns the list price of one attempt to call a provider's model. It raises
``PriceUnknownError`` for an unlisted model; an unknown price is never treated as zero."""

CACHE_WRITE_FACTOR = Decimal("1.25")
"""Price of an input token that is written to the cache, as a multiple of the usual price."""
CACHE_WRITE_1H_FACTOR = Decimal(2)
"""The same for a token that is kept for an hour."""

_MILLION = Decimal(1_000_000)


class PriceUnknownError(LookupError):
    """A model's price is unknown, so a cost limit cannot be enforced for it."""

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(
            f"the price of the model {model!r} of {provider} is not known: configure its"
            " price_per_million_in_usd and price_per_million_out_usd"
        )


def no_list_price(provider: str, model: str, usage: TokenUsage) -> Cost:
    """Raise PriceUnknownError; used as the ``ListPrice`` of a process without a price list."""
    raise PriceUnknownError(provider, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """A model's price in US dollars per million tokens.

    Raises:
        ValueError: a price is negative, NaN or infinite.
    """

    usd_per_million_in: Decimal
    usd_per_million_out: Decimal
    usd_per_million_cached: Decimal | None = None
    """Price of a million input tokens read from the provider's cache; None means no discount."""
    usd_per_million_audio_in: Decimal | None = None
    """Price of a million input tokens of sound; None means that of text."""
    usd_per_million_audio_out: Decimal | None = None
    """Price of a million output tokens of sound; None means that of text."""

    def __post_init__(self) -> None:
        optional = (
            self.usd_per_million_cached,
            self.usd_per_million_audio_in,
            self.usd_per_million_audio_out,
        )
        prices = (self.usd_per_million_in, self.usd_per_million_out)
        for price in (*prices, *(each for each in optional if each is not None)):
            if not (price.is_finite() and price >= 0):
                raise ValueError("A price must be a finite number of dollars, zero or more.")

    def cost_of(self, usage: TokenUsage) -> Cost:
        """Return the cost of the given token usage."""
        cached = min(usage.tokens_cached, usage.tokens_in)
        price = self.usd_per_million_cached
        price_cached = self.usd_per_million_in if price is None else price
        written = usage.tokens_cache_written * (CACHE_WRITE_FACTOR - 1)
        written += usage.tokens_cache_written_1h * (CACHE_WRITE_1H_FACTOR - CACHE_WRITE_FACTOR)
        cost = (usage.tokens_in - cached + written) * self.usd_per_million_in
        cost += cached * price_cached
        output = usage.tokens_out * self.usd_per_million_out
        if (price := self.usd_per_million_audio_in) is not None:
            cost += usage.tokens_audio_in * (price - self.usd_per_million_in)
        if (price := self.usd_per_million_audio_out) is not None:
            output += usage.tokens_audio_out * (price - self.usd_per_million_out)
        return Cost((cost + output) / _MILLION, output / _MILLION)


def message_bytes(message: Message) -> int:
    """Return the size of a message in UTF-8 bytes."""
    text = message.content
    size = len(text) if text.isascii() else len(utf8(text))
    return size if message.is_plain else size + len(utf8(json_text(message.extras())))


def json_text(value: Any) -> str:
    """Return a value as JSON text."""
    return json.dumps(value, ensure_ascii=False)
