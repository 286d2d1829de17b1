"""What a node may ask of the graph around it: exactly the capabilities of seed 004."""

from collections.abc import Sequence
from typing import Any, Protocol

from app.kernel.graph import Channel, Edge, Step


class LinkCycleError(Exception):
    """A step depends on itself through its links; the message names the way."""


class Runtime(Protocol):
    """The graph as one of its steps sees it. Nothing here knows any domain."""

    def get_node(self, node_id: str) -> Step:
        """Return a step.

        Raises:
            LookupError: the graph has no such step.
        """
        ...

    def incoming_edges(
        self, node_id: str, *, channel: Channel | None = None, target_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the edges that lead to a step, in the order of the graph."""
        ...

    def outgoing_edges(
        self, node_id: str, *, channel: Channel | None = None, source_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the edges that lead away from a step, in the order of the graph."""
        ...

    async def resolve_links(self, node_id: str, target_handle: str) -> list[Any]:
        """Return what is linked to a handle of a step, in the order of the edges.

        Raises:
            LinkCycleError: something depends on itself; the message names the way.
            TypeError: a linked step cannot be materialised.
        """
        ...

    async def materialize_output(self, node_id: str, output_handle: str) -> Any:
        """Return what a step makes for its links; made once in an execution of the graph.

        Raises:
            LinkCycleError: something depends on itself; the message names the way.
            TypeError: the step cannot be materialised.
        """
        ...

    def cache_get(self, key: str, default: Any = None) -> Any:
        """Return what a step of this graph has put into the cache of its execution."""
        ...

    def cache_set(self, key: str, value: Any) -> None:
        """Keep something for the other steps of this execution; it does not outlive it."""
        ...
