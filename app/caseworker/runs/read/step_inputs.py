"""Reconstructs the inputs of a step when they are needed, because they are not stored separately.

A step with incoming flow edges received the outputs of the preceding steps. Any other step received
the inputs of its graph: those of the run, or those of the step that executes the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caseworker.core.graph.graph import DEFAULT_HANDLE, Channel, Edge, GraphStep, StepGraph
from caseworker.engine.context import Outputs
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import Routing
from caseworker.engine.step_path import StepPath
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import RunRequest


@dataclass(frozen=True, slots=True)
class StepSources:
    """Where the inputs of one step come from."""

    step_id: str
    routing: Routing
    keys: Mapping[str, str]
    """Journal keys of the preceding steps, by step ID; empty if the inputs are those of the
    graph."""

    def inputs(self, outputs: Mapping[str, Outputs]) -> Outputs:
        """Return the inputs by handle; ``outputs`` maps journal keys to step outputs."""
        for step_id, key in self.keys.items():
            self.routing.reports[step_id].outputs = outputs.get(key, {})
        return self.routing.inputs_of(self.step_id)


def input_sources_of(request: RunRequest, path: StepPath) -> StepSources | None:
    """Return the sources of a step's inputs; None if the run's graph does not define them.

    That is the case inside a ``map`` step or a fallback.
    """
    rules = KINDS[request.kind]
    graph = rules.graph(request)
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
        ways.pop()  # an entry step received the inputs of the step that executes its graph
    within, step_id, prepared = ways[-1]
    routing = Routing(prepared, rules.inputs(request), within)
    edges = prepared.topology.incoming.get(step_id, ())
    keys = {edge.source: routing.path_of(edge.source).record_key for edge in edges}
    return StepSources(step_id, routing, keys)


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
