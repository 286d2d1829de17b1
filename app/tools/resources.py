"""What the tools of a process share."""

from dataclasses import dataclass

from app.tools.plotting.renderer import Renderer
from app.tools.stocks.prices import PriceSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResources:
    """Handed to the factories of tools that take an argument; closed by the process.

    A factory is registered as an entry point of the group ``caseworker.tools``.
    """

    prices: PriceSource
    """Where daily stock prices come from."""
    renderer: Renderer
    """Draws pictures, one at a time, in a process of its own."""
