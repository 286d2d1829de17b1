"""The shape of a graph as callers see it: its steps, what joins them, and where to draw them."""

from collections.abc import Mapping
from typing import Any, Self

from caseworker.api.field_types import View
from caseworker.kernel.graph import Channel, Step
from caseworker.kernel.topology import Topology
from caseworker.runs.step_inputs import shape_of


class ShapeStep(View):
    """A step, without what it is configured with."""

    id: str
    type: str
    graph: "GraphShape | None" = None
    """Of the graph that a step of type ``subgraph`` executes; its steps have the path
    ``outer/inner``."""


class ShapeEdge(View):
    """An edge between two steps."""

    source: str
    target: str
    channel: Channel
    source_handle: str
    target_handle: str


class GraphShape(View):
    """The steps and edges of a graph, with those of the graphs that its steps execute once."""

    steps: list[ShapeStep]
    edges: list[ShapeEdge]
    layers: list[list[str]]
    """The ids of the steps that take part: each stands one layer behind the last that leads to
    it. Steps that are missing here are never executed."""

    @classmethod
    def of(cls, graph: Mapping[str, Any]) -> Self:
        """Return the shape of a graph that was found valid, in the form its author wrote it."""
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


def _inside(step: Step) -> Mapping[str, Any] | None:
    """Return the graph that a step executes once; None also of one that it only names."""
    graph = step.data["graph"] if step.type == "subgraph" else {}
    return graph if "steps" in graph else None
