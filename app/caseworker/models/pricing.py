"""Model prices, and token estimates made before a call."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from caseworker.models.forms import StatedSchema
from caseworker.models.ports import Message, ModelRequest, TokenUsage, ToolDefinition


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

DEFAULT_OUTPUT_TOKENS = 1024
"""Number of output tokens assumed for a request that sets no limit."""

CACHE_WRITE_FACTOR = Decimal("1.25")
"""Price of an input token that is written to the cache, as a multiple of the usual price."""
CACHE_WRITE_1H_FACTOR = Decimal(2)
"""The same for a token that is kept for an hour."""

USD_PER_USE = {"web_search": Decimal("0.01")}
"""Prices of the tools that providers execute: OpenAI's and Anthropic's list, November 2026."""

_MILLION = Decimal(1_000_000)
BYTES_PER_TOKEN = 3
"""Assumed size of a token in UTF-8 bytes; English text has more."""
_TOKENS_PER_MESSAGE = 8


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
    usd_per_use: Mapping[str, Decimal] = field(default_factory=lambda: USD_PER_USE)
    """Prices of the tools that the provider executes, by name; others are free."""

    def __post_init__(self) -> None:
        optional = (
            self.usd_per_million_cached,
            self.usd_per_million_audio_in,
            self.usd_per_million_audio_out,
        )
        prices = (self.usd_per_million_in, self.usd_per_million_out, *self.usd_per_use.values())
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
        tools = sum(
            (
                uses * self.usd_per_use.get(tool, Decimal(0))
                for tool, uses in usage.provider_tool_uses.items()
            ),
            Decimal(0),
        )
        return Cost((cost + output) / _MILLION + tools, output / _MILLION)


def message_bytes(message: Message) -> int:
    """Return the size of a message in UTF-8 bytes."""
    extras = message.extras()
    return _bytes(message.content) + (_bytes(_json(extras)) if extras else 0)


def estimate_tokens(request: ModelRequest, *, messages_bytes: int | None = None) -> TokenUsage:
    """Estimate the maximum token usage of an attempt before it is made.

    Input is estimated at one token for every three UTF-8 bytes of messages, schema and tools. Eight
    tokens of overhead are added for each message and tool. English text has four or more characters
    per token, so it is overestimated by about a third. Digits, JSON and code have about three. A
    Chinese character has three bytes and is about one token. Output is estimated at the request's
    limit, or at ``DEFAULT_OUTPUT_TOKENS`` without a limit.

    ``messages_bytes`` is the size of the messages in bytes, if known.
    """
    if messages_bytes is None:
        messages_bytes = sum(map(message_bytes, request.messages))
    size_bytes = messages_bytes + sum(tool.form(_tool_bytes) for tool in request.tools)
    schema = request.json_schema
    if schema is not None:
        text = schema.text if isinstance(schema, StatedSchema) else _json(dict(schema))
        size_bytes += _bytes(text)
    frames = _TOKENS_PER_MESSAGE * (len(request.messages) + len(request.tools) + 1)
    limit = request.max_output_tokens
    return TokenUsage(
        tokens_in=_tokens(size_bytes) + frames,
        tokens_out=DEFAULT_OUTPUT_TOKENS if limit is None else limit,
    )


def _tool_bytes(tool: ToolDefinition) -> int:
    return _bytes(_json(tool.to_json()))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _tokens(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)
