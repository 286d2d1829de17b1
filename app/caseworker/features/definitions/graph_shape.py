"""API schema for the shape of a graph: its steps, edges and layout layers."""

from collections.abc import Mapping
from typing import Any, Self

from caseworker.core.graph.graph import Channel, GraphStep, shape_of
from caseworker.core.graph.topology import Topology
from caseworker.platform.http.bodies import View


class ShapeStep(View):
    """A step of a graph, without its configuration."""

    id: str
    type: str
    graph: "GraphShape | None" = None
    """Graph that a step of type ``subgraph`` executes; null for other steps. The paths of its steps
    are ``outer/inner``."""


class ShapeEdge(View):
    """An edge between two steps of a graph."""

    source: str
    target: str
    channel: Channel
    source_handle: str
    target_handle: str


class GraphShape(View):
    """The steps and edges of a graph and its nested graphs, except those of map steps."""

    steps: list[ShapeStep]
    edges: list[ShapeEdge]
    layers: list[list[str]]
    """IDs of the steps that can execute, by layer. Each step is one layer after its last
    predecessor. Steps that are never executed are omitted."""

    @classmethod
    def of(cls, graph: Mapping[str, Any]) -> Self:
        """Return the shape of a valid graph.

        Nested graphs that are given as references are omitted.
        """
        shape = shape_of(graph)
        return cls(
            steps=[
                ShapeStep(
                    id=step.id,
                    type=step.type,
                    graph=cls.of(inner) if (inner := _inside(step)) else None,
                )
                for step in shape.steps
            ],
            edges=[ShapeEdge.model_validate(edge) for edge in shape.edges],
            layers=[list(layer) for layer in Topology(shape).layers()],
        )


def _inside(step: GraphStep) -> Mapping[str, Any] | None:
    """Return the inline graph of a ``subgraph`` step; None for other steps and references."""
    graph = step.data["graph"] if step.type == "subgraph" else {}
    return graph if "steps" in graph else None
