"""What the steps of one execution of a graph give one another.

It knows nothing of the run: a trace that tells of the steps later keeps no run alive by that.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.engine.context import Outputs
from app.engine.prepared import PreparedGraph
from app.engine.report import StepReport
from app.engine.step_records import Note
from app.kernel.lifecycle import RUNNING


class Routing:
    """How the steps of a graph stand, and which values are routed to them."""

    __slots__ = ("_incoming", "_inputs", "_prefix", "_prepared", "reports")

    def __init__(self, prepared: PreparedGraph, inputs: Outputs, prefix: str) -> None:
        """Route ``inputs`` to the steps that no flow edge leads to.

        ``prefix`` begins the paths of the steps.
        """
        self._prepared = prepared
        self._inputs = inputs
        self._prefix = prefix
        self._incoming = prepared.topology.incoming
        self.reports = {step_id: StepReport() for step_id in prepared.topology.active}
        """By step, in the order of the graph."""

    def inputs_of(self, step_id: str) -> Outputs:
        """Return the values that were routed to a step, by handle.

        A handle that one edge leads to gets its value; one that several lead to gets the list of
        those that came, in the order of the edges.
        """
        incoming = self._incoming.get(step_id)
        if incoming is None:
            return self._inputs
        if len(incoming) == 1:
            (edge,) = incoming
            return {edge.target_handle: self.reports[edge.source].outputs[edge.source_handle]}
        inputs: dict[str, Any] = {}
        shared = self._prepared.shared_handles.get(step_id, ())
        for edge in incoming:
            outputs = self.reports[edge.source].outputs
            if edge.source_handle not in outputs:
                continue
            value = outputs[edge.source_handle]
            if edge.target_handle in shared:
                inputs.setdefault(edge.target_handle, []).append(value)
            else:
                inputs[edge.target_handle] = value
        return inputs

    def outputs(self) -> Mapping[str, Outputs]:
        """Return what the steps have produced so far, by step and handle."""
        so_far = {step_id: report.so_far() for step_id, report in self.reports.items()}
        return {step_id: values for step_id, values in so_far.items() if values}

    def notes(self) -> Iterator[Note]:
        """Yield what a trace must know of the steps that have ended."""
        for step_id, report in self.reports.items():
            if report.node and report.status is not RUNNING:
                step = self._prepared.steps[step_id]
                yield self._prefix + step_id, step, report, self.inputs_of(step_id)
