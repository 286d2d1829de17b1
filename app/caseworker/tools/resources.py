"""Resources shared by the tools of a process."""

from dataclasses import dataclass
from typing import Self

from caseworker.tools.arguments import CheckedTool
from caseworker.tools.plotting.renderer import Renderer
from caseworker.tools.ports import ToolSpec
from caseworker.tools.stocks.prices import PriceSource, asking


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResources:
    """Passed to tool factories that take an argument; closed by the process.

    Factories are entry points of the group ``caseworker.tools``.
    """

    prices: PriceSource
    renderer: Renderer


class PriceTool(CheckedTool):
    """Base class of tools that fetch prices; adapts the spec to the price source."""

    offer: ToolSpec
    """The spec for a source inside the process; see ``asking``."""

    def __init__(self, source: PriceSource) -> None:
        self._source = source
        self.spec = asking(self.offer, source)
        super().__init__()

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Create the tool from the shared resources of the process."""
        return cls(resources.prices)
