"""The tools of a process: those that come with the service, and those that others add."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from app.bootstrap.plugins import installed_tools, named_tools
from app.settings.cases import PriceSettings, ToolSettings
from app.tools.calculator import Calculator
from app.tools.calendar import Calendar
from app.tools.data_fetch_stock import DataFetchStock
from app.tools.numeric_analysis import NumericAnalysis
from app.tools.plotter import Plotter
from app.tools.plotting.renderer import Renderer
from app.tools.ports import Tool
from app.tools.respond import Respond
from app.tools.stocks.packaged import PackagedPrices
from app.tools.stocks.prices import PriceSource


class Toolbox:
    """All tools of a process, and what they hold."""

    def __init__(self, settings: ToolSettings, others: Sequence[Tool] | None = None) -> None:
        """Build the tools; ``others`` take the place of those installed beside the service.

        Raises:
            StartupError: a tool that is installed or configured cannot be loaded.
        """
        self._held = AsyncExitStack()
        renderer = Renderer()
        self._held.callback(renderer.close)
        prices = self._prices(settings.prices)
        repeatable: tuple[Tool, ...] = (
            Calculator(),
            Calendar(),
            DataFetchStock(prices),
            NumericAnalysis(prices),
            Respond(),
        )
        added = installed_tools() if others is None else tuple(others)
        self.tools: tuple[Tool, ...] = (
            *repeatable,
            Plotter(prices, renderer),
            *added,
            *named_tools(settings.plugins),
        )
        self.deterministic = tuple(tool for tool in repeatable if not tool.spec.external)
        """Those that find the same whenever they are asked the same, and leave nothing behind."""

    async def aclose(self) -> None:
        """End what draws pictures, if it was ever begun, and let go of connections."""
        await self._held.aclose()

    def _prices(self, settings: PriceSettings) -> PriceSource:
        """Return where prices come from; what is not configured is not imported."""
        key = settings.api_key
        if settings.chosen_provider == "packaged" or key is None:
            return PackagedPrices()
        from app.adapters.stocks.tiingo import TiingoPrices

        prices = TiingoPrices(
            key.get_secret_value(),
            base_url=settings.base_url,
            timeout_seconds=settings.timeout_seconds,
        )
        self._held.push_async_callback(prices.aclose)
        return prices
