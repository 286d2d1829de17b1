"""List prices of public model providers, from the genai-prices package.

Nothing is downloaded. Loading the price tables takes about a second and some memory, and happens
when this module is imported, before the process serves requests. A configuration without a paid
provider does not import it.
"""

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot

from caseworker.models.ports import TokenUsage
from caseworker.models.pricing import Cost, PriceUnknownError

get_snapshot()

_PRICED_AS: dict[str, str | None] = {"recorded": None}
"""A recording costs what its model costs; the price is looked up by the model's name alone."""


def list_price(provider: str, model: str, usage: TokenUsage) -> Cost:
    """Return today's list price of an attempt, including the prices of the prompt cache.

    A self-hosted server that serves a model under a public name is charged at the public price,
    unless the configuration sets another one.

    Raises:
        PriceUnknownError: the model has no list price.
    """
    tokens = Usage(
        input_tokens=usage.tokens_in,
        cache_read_tokens=min(usage.tokens_cached, usage.tokens_in),
        cache_write_tokens=usage.tokens_cache_written,
        cache_write_1h_tokens=usage.tokens_cache_written_1h,
        output_tokens=usage.tokens_out,
    )
    try:
        found = calc_price(tokens, model, provider_id=_PRICED_AS.get(provider, provider))
    except LookupError:
        raise PriceUnknownError(provider, model) from None
    return Cost(found.total_price, found.output_price)
