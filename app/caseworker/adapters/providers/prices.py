"""List prices of public model providers, as genai-prices packages them; nothing is downloaded.

Loading the tables takes a second and memory. It happens when this module is imported, before a
process serves, and a configuration without a paid provider does not import it.
"""

from decimal import Decimal

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot

from caseworker.llm.ports import TokenUsage
from caseworker.llm.pricing import PriceUnknownError

get_snapshot()

_PRICED_AS: dict[str, str | None] = {"recorded": None}
"""A recording costs what its model costs, which is then found by the model's name alone."""


def list_price(provider: str, model: str, usage: TokenUsage) -> Decimal:
    """Return today's list price of an attempt in US dollars, cached input at its discount.

    A server that serves a model under the name of a public one is charged at the public price
    unless the configuration states another.

    Raises:
        PriceUnknownError: there is none.
    """
    tokens = Usage(
        input_tokens=usage.tokens_in,
        cache_read_tokens=min(usage.tokens_cached, usage.tokens_in),
        output_tokens=usage.tokens_out,
    )
    try:
        return calc_price(tokens, model, provider_id=_PRICED_AS.get(provider, provider)).total_price
    except LookupError:
        raise PriceUnknownError(provider, model) from None
