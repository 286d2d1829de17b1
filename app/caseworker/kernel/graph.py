"""The shape of a graph: placed units of work, joined by edges. Data only."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

DEFAULT_HANDLE = "default"


class GraphError(ValueError):
    """A graph that cannot be executed; the message names the step or the edge."""


class Channel(StrEnum):
    """What travels on an edge; every edge says it."""

    FLOW = "flow"
    """Values, from a finished step to the next one."""
    LINK = "link"
    """Dependencies, materialised for the step that needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A placed unit of work."""

    id: str
    type: str
    """Names the node that executes the step."""
    data: Any = field(default_factory=dict)
    """What the node is configured with; nothing here reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Joins an output handle of one step to an input handle of another."""

    source: str
    target: str
    channel: Channel
    source_handle: str = DEFAULT_HANDLE
    target_handle: str = DEFAULT_HANDLE
    id: str | None = None
    """A name for people, if its author gave one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Steps and edges."""

    id: str
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...] = ()
    entry: tuple[str, ...] | None = None
    """Where the graph begins; None: at the steps without incoming flow edges that are not only the
    source of a link."""
    max_parallel: int = 1
    """How many steps may be executed at once."""
