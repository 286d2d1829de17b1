"""What a step was given, found when somebody asks for it: it is not stored a second time.

A step that flow edges lead to got what the steps before it had produced. Any other one got what its
graph was given: the inputs of the run, or those of the step that executes the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caseworker.engine.context import Outputs
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import Routing
from caseworker.engine.step_path import StepPath
from caseworker.kernel.graph import DEFAULT_HANDLE, Channel, Edge, Graph, Step
from caseworker.runs.plan import CASE_STEP, inputs_of
from caseworker.runs.run import RunRequest

_CASE: Mapping[str, Any] = {"steps": [{"id": CASE_STEP, "type": "case", "data": {}}], "edges": []}


@dataclass(frozen=True, slots=True)
class StepSources:
    """Where the inputs of one step come from."""

    step_id: str
    routing: Routing
    keys: Mapping[str, str]
    """Keys of the records of the steps that lead to it, by step; none: it got what is given."""

    def inputs(self, outputs: Mapping[str, Outputs]) -> Outputs:
        """Return the inputs by handle; ``outputs`` are those of the steps before it, by key."""
        for step_id, key in self.keys.items():
            self.routing.reports[step_id].outputs = outputs.get(key, {})
        return self.routing.inputs_of(self.step_id)


def sources_of(request: RunRequest, path: StepPath) -> StepSources | None:
    """Return where the inputs of a step come from; None if the graph of the run does not say so.

    That is the case of what a ``map``, or a fallback, executes.
    """
    graph: Mapping[str, Any] = request.graph or _CASE
    ways: list[tuple[StepPath | None, str, PreparedGraph]] = []
    within: StepPath | None = None
    for at in path.lineage():
        prepared = PreparedGraph(shape_of(graph), {})
        step = prepared.topology.steps.get(at.attempts()[0].step_id)
        if step is None or step.id not in prepared.topology.active:
            return None
        ways.append((within, step.id, prepared))
        within, graph = at, step.data["graph"] if step.type == "subgraph" else {}
    while len(ways) > 1 and ways[-1][1] in ways[-1][2].topology.entries:
        ways.pop()  # it got what the step got that executes its graph
    within, step_id, prepared = ways[-1]
    routing = Routing(prepared, inputs_of(request), within)
    edges = prepared.topology.incoming.get(step_id, ())
    keys = {edge.source: routing.path_of(edge.source).record_key for edge in edges}
    return StepSources(step_id, routing, keys)


def shape_of(graph: Mapping[str, Any]) -> Graph:
    """Return the shape of a stored graph, which was found valid when its run was accepted."""
    entry = graph.get("entry")
    return Graph(
        id="",
        steps=tuple(
            Step(id=step["id"], type=step["type"], data=step["data"])
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
