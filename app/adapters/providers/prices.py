"""List prices of public model providers, as genai-prices packages them; nothing is downloaded.

Loading the tables takes time and memory, so a configuration without a paid provider does not
import this module.
"""

from decimal import Decimal

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot

from app.llm.messages import TokenUsage
from app.llm.pricing import Prices, PriceUnknownError

_PRICED_AS: dict[str, str | None] = {"recorded": None}
"""A recording costs what its model costs, which is then found by the model's name alone."""


class ListPrices:
    """A `Prices`: first what the configuration states, then the public list price.

    A server of one's own that serves a model under the name of a public one is charged at the
    public price unless the configuration states another.
    """

    def __init__(self, stated: Prices) -> None:
        self._stated = stated
        get_snapshot()  # read the tables now, not during the first call

    def cost_usd(self, provider: str, model: str, usage: TokenUsage) -> Decimal:
        """Return the stated price, or the list price of today.

        Raises:
            PriceUnknownError: neither exists.
        """
        try:
            return self._stated.cost_usd(provider, model, usage)
        except PriceUnknownError:
            return _list_price(provider, model, usage)


def _list_price(provider: str, model: str, usage: TokenUsage) -> Decimal:
    tokens = Usage(
        input_tokens=usage.tokens_in,
        cache_read_tokens=min(usage.tokens_cached, usage.tokens_in),
        output_tokens=usage.tokens_out,
    )
    try:
        return calc_price(tokens, model, provider_id=_PRICED_AS.get(provider, provider)).total_price
    except LookupError:
        raise PriceUnknownError(provider, model) from None
