"""The base class for tools that fetch prices, and the configured price source."""

from typing import Self

from caseworker.tools.arguments import CheckedTool
from caseworker.tools.ports import ToolSpec
from caseworker.tools.resources import ToolResources
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.stocks.prices import PriceSource, asking


def price_source(resources: ToolResources) -> PriceSource:
    """Return the price source that the settings section ``tools.prices`` names.

    Other sources are not imported.
    """
    settings = resources.settings.prices
    key = settings.api_key
    if settings.chosen_provider == "packaged" or key is None:
        return PackagedPrices()
    from caseworker_cases.stocks.tiingo import TiingoPrices

    return TiingoPrices(
        key.get_secret_value(),
        base_url=settings.base_url,
        timeout_seconds=settings.timeout_seconds,
    )


class PriceTool(CheckedTool):
    """Base class for tools that fetch prices; a tool's spec depends on the price source."""

    offer: ToolSpec
    """Spec of the tool for a price source inside this process."""

    def __init__(self, source: PriceSource) -> None:
        self._source = source
        self.spec = asking(self.offer, source)
        super().__init__()

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Create the tool with the configured price source."""
        return cls(resources.shared(price_source))
