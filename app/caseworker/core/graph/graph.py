"""The structure of a graph: steps joined by edges. Data only."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

DEFAULT_HANDLE = "default"


class GraphError(ValueError):
    """The graph cannot be executed; the message names the step or the edge."""


class Channel(StrEnum):
    """The kind of an edge: whether it carries values or declares a dependency."""

    FLOW = "flow"
    """Carries values from a finished step to the next one."""
    LINK = "link"
    """Declares a dependency, which is materialised for the step that needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One unit of work in a graph."""

    id: str
    type: str
    """The name of the node type that executes the step."""
    data: Any = field(default_factory=dict)
    """The node's configuration; this package does not read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Joins an output handle of one step to an input handle of another."""

    source: str
    target: str
    channel: Channel
    source_handle: str = DEFAULT_HANDLE
    target_handle: str = DEFAULT_HANDLE
    id: str | None = None
    """A name for display, if the author set one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph of steps and edges, with its entries and its concurrency limit."""

    id: str
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...] = ()
    entry: tuple[str, ...] | None = None
    """IDs of the steps to start with. None starts every step that has no incoming flow edge, except
    steps whose outgoing edges are all links (at least one)."""
    max_parallel: int = 1
    """The maximum number of steps that execute concurrently."""
