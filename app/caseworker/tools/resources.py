"""What the tools of a process share."""

from dataclasses import dataclass
from typing import Self

from caseworker.tools.arguments import CheckedTool
from caseworker.tools.plotting.renderer import Renderer
from caseworker.tools.ports import ToolSpec
from caseworker.tools.stocks.prices import PriceSource, asking


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResources:
    """Handed to the factories of tools that take an argument; closed by the process.

    A factory is registered as an entry point of the group ``caseworker.tools``.
    """

    prices: PriceSource
    renderer: Renderer


class PriceTool(CheckedTool):
    """What the tools that fetch prices share: their source, and what it makes of their spec."""

    offer: ToolSpec
    """The spec, for a source inside the process."""

    def __init__(self, source: PriceSource) -> None:
        self._source = source
        self.spec = asking(self.offer, source)
        super().__init__()

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Return the tool over what the tools of a process share."""
        return cls(resources.prices)
