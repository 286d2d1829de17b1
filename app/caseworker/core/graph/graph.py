"""Data classes for graphs: steps joined by edges.

An edge leads from an output handle of a step to an input handle of another step. A handle is a
named input or output.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

DEFAULT_HANDLE = "default"


class GraphError(ValueError):
    """The graph cannot be executed; the message names the step or the edge."""


class Channel(StrEnum):
    """The kind of an edge: whether it carries values or declares a dependency."""

    FLOW = "flow"
    """The edge carries values from a finished step to the next step."""
    LINK = "link"
    """The edge declares a dependency: the source is provided when the target step needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStep:
    """One unit of work in a graph."""

    id: str
    type: str
    """Name of the node type that executes the step."""
    data: Any = field(default_factory=dict)
    """Configuration of the node, in a format that only the node type knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Connects an output handle of one step to an input handle of another."""

    source: str
    target: str
    channel: Channel
    source_handle: str = DEFAULT_HANDLE
    target_handle: str = DEFAULT_HANDLE
    id: str | None = None
    """ID of the edge, if the author gave it one; only used for display."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """A graph of steps and edges, with its entries and its concurrency limit."""

    id: str
    steps: tuple[GraphStep, ...]
    edges: tuple[Edge, ...] = ()
    entry: tuple[str, ...] | None = None
    """IDs of the steps to start with. None starts every step without incoming flow edges, except
    steps whose outgoing edges are all links."""
    max_parallel: int = 1
    """Maximum number of steps that execute concurrently."""


def shape_of(graph: Mapping[str, Any]) -> StepGraph:
    """Return the structure of a stored graph; it is valid, because it was checked on acceptance."""
    entry = graph.get("entry")
    return StepGraph(
        id="",
        steps=tuple(
            GraphStep(id=step["id"], type=step["type"], data=step["data"])
            for step in graph.get("steps", ())
        ),
        edges=tuple(
            Edge(
                source=edge["source"],
                target=edge["target"],
                channel=Channel(edge["data"]["channel"]),
                source_handle=edge.get("source_handle", DEFAULT_HANDLE),
                target_handle=edge.get("target_handle", DEFAULT_HANDLE),
            )
            for edge in graph.get("edges", ())
        ),
        entry=None if entry is None else tuple(entry),
    )
