"""The tools of a process: those that come with the service, and those that others add."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.bootstrap.plugins import installed_tools, named_tools
from app.settings.cases import ToolSettings
from app.tools.calculator import Calculator
from app.tools.calendar import Calendar
from app.tools.data_fetch_stock import DataFetchStock
from app.tools.numeric_analysis import NumericAnalysis
from app.tools.plotter import Plotter
from app.tools.plotting.renderer import Renderer
from app.tools.ports import Tool
from app.tools.respond import Respond
from app.tools.stocks.packaged import PackagedPrices


@dataclass(frozen=True, slots=True)
class Toolbox:
    """All tools of a process, and what they hold."""

    tools: tuple[Tool, ...]
    deterministic: tuple[Tool, ...]
    """Those that find the same whenever they are asked the same, and leave nothing behind."""
    renderer: Renderer

    def close(self) -> None:
        """End what draws pictures, if it was ever begun."""
        self.renderer.close()


def build_toolbox(settings: ToolSettings, others: Sequence[Tool] | None = None) -> Toolbox:
    """Return the tools; ``others`` take the place of those that are installed beside the service.

    Raises:
        StartupError: a tool that is installed or configured cannot be loaded.
    """
    prices, renderer = PackagedPrices(), Renderer()
    deterministic: tuple[Tool, ...] = (
        Calculator(),
        Calendar(),
        DataFetchStock(prices),
        NumericAnalysis(prices),
        Respond(),
    )
    added = installed_tools() if others is None else tuple(others)
    tools = (*deterministic, Plotter(prices, renderer), *added, *named_tools(settings.plugins))
    return Toolbox(tools, deterministic, renderer)
