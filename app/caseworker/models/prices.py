"""List prices of public model providers, from the genai-prices package.

Nothing is downloaded. Loading the price tables takes about a second and some memory, and happens
when this module is imported, before the process serves requests. A configuration without a paid
provider does not import it.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import PriceCalculation, TieredPrices

from caseworker.models.ports import TokenUsage
from caseworker.models.pricing import Cost, PriceUnknownError

get_snapshot()

_PRICED_AS: Final[dict[str, str | None]] = {"recorded": None}
"""A recording costs what its model costs; the price is looked up by the model's name alone."""

_USES: Final = {"web_search": "web_searches", "file_search": "storage_searches"}
"""Names of tools of providers whose uses have list prices, and the names of these prices."""

_PROBE: Final = 1_000_000
_NOTHING: Final = TokenUsage(tokens_in=0, tokens_out=0)
_PROBES: Final = (
    _NOTHING,
    replace(_NOTHING, tokens_in=_PROBE),
    replace(_NOTHING, tokens_in=_PROBE, tokens_cached=_PROBE),
    replace(_NOTHING, tokens_in=_PROBE, tokens_cache_written=_PROBE),
    replace(
        _NOTHING, tokens_in=_PROBE, tokens_cache_written=_PROBE, tokens_cache_written_1h=_PROBE
    ),
    replace(_NOTHING, tokens_in=_PROBE, tokens_audio_in=_PROBE),
    replace(_NOTHING, tokens_out=_PROBE),
    replace(_NOTHING, tokens_out=_PROBE, tokens_audio_out=_PROBE),
    *(replace(_NOTHING, provider_tool_uses={tool: _PROBE}) for tool in _USES),
)


class _Rates(NamedTuple):
    """Prices in US dollars: of a request, of one token of each kind, and of a use of a tool."""

    request: Decimal
    input: Decimal
    cached: Decimal
    written: Decimal
    written_1h: Decimal
    audio_in: Decimal
    output: Decimal
    audio_out: Decimal
    web_search: Decimal
    file_search: Decimal

    def cost_of(self, usage: TokenUsage) -> Cost:
        """Return the cost of an attempt."""
        output = usage.tokens_out * self.output
        if usage.tokens_audio_out:
            output += usage.tokens_audio_out * (self.audio_out - self.output)
        cost = self.request + output
        if usage.tokens_audio_in:
            cost += usage.tokens_audio_in * (self.audio_in - self.input)
        for tool, uses in usage.provider_tool_uses.items():
            cost += uses * getattr(self, tool) if tool in _USES else 0
        cached, written = min(usage.tokens_cached, usage.tokens_in), usage.tokens_cache_written
        if cached or written:
            cost += cached * self.cached + usage.tokens_cache_written_1h * self.written_1h
            cost += (written - usage.tokens_cache_written_1h) * self.written
        return Cost(cost + (usage.tokens_in - cached - written) * self.input, output)


def list_price(provider: str, model: str, usage: TokenUsage) -> Cost:
    """Return today's list price of an attempt, including the prices of the prompt cache.

    A self-hosted server that serves a model under a public name is charged at the public price,
    unless the configuration sets another one.

    Raises:
        PriceUnknownError: the model has no list price.
    """
    # Prices change at whole minutes: some providers charge less at night.
    cost_of = _pricing(provider, model, int(time.time() // 60))
    if cost_of is None:
        raise PriceUnknownError(provider, model)
    return cost_of(usage)


@lru_cache(maxsize=1024)
def _pricing(provider: str, model: str, minute: int) -> Callable[[TokenUsage], Cost] | None:
    """Return the function that computes costs of a model; None if it has no list price.

    A look-up in the tables takes 50 microseconds, so rates are kept. ``minute`` limits for how
    long. A price that depends on the number of input tokens is looked up each time.
    """

    def looked_up(usage: TokenUsage) -> Cost:
        calculation = _calculation(provider, model, usage)
        return Cost(calculation.total_price, calculation.output_price)

    try:
        probes = [_calculation(provider, model, usage) for usage in _PROBES]
    except LookupError:
        return None
    if any(isinstance(price, TieredPrices) for price in vars(probes[0].model_price).values()):
        return looked_up
    request = probes[0].total_price
    return _Rates(request, *((one.total_price - request) / _PROBE for one in probes[1:])).cost_of


def _calculation(provider: str, model: str, usage: TokenUsage) -> PriceCalculation:
    tokens = Usage(
        input_tokens=usage.tokens_in,
        cache_read_tokens=min(usage.tokens_cached, usage.tokens_in),
        cache_write_tokens=usage.tokens_cache_written,
        cache_write_1h_tokens=usage.tokens_cache_written_1h,
        output_tokens=usage.tokens_out,
        **_more(usage),
    )
    return calc_price(tokens, model, provider_id=_PRICED_AS.get(provider, provider))


def _more(usage: TokenUsage) -> dict[str, int]:
    """Return the counts of sound and tools, if there are any: they make a look-up slower.

    Providers read no sound from their caches, as far as they count it.
    """
    uses = {_USES[tool]: uses for tool, uses in usage.provider_tool_uses.items() if tool in _USES}
    sound = {
        "input_audio_tokens": usage.tokens_audio_in,
        "output_audio_tokens": usage.tokens_audio_out,
        "cache_audio_read_tokens": 0,
        "cache_audio_write_tokens": 0,
    }
    has_sound = usage.tokens_audio_in or usage.tokens_audio_out
    return {**uses, **sound} if has_sound else uses
