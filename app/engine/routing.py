"""What the steps of one execution of a graph give one another, and their records in a trace.

Nothing here knows the run: a trace that reads the records later keeps no run alive by that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from app.engine.context import Outputs
from app.engine.prepared import PreparedGraph
from app.engine.report import StepReport, message_of_error
from app.engine.step_path import StepPath
from app.kernel.facts import RUNNING
from app.kernel.graph import DEFAULT_HANDLE
from app.trace.step_trace import StepRecord


class Routing:
    """How the steps of a graph stand, and which values are routed to them."""

    __slots__ = ("_incoming", "_inputs", "_prepared", "_within", "reports")

    def __init__(self, prepared: PreparedGraph, inputs: Outputs, within: StepPath | None) -> None:
        """Route ``inputs`` to the steps that no flow edge leads to.

        ``within`` is the step that executes the graph; None: it is the outermost one.
        """
        self._prepared = prepared
        self._inputs = inputs
        self._within = within
        self._incoming = prepared.topology.incoming
        self.reports = {step_id: StepReport() for step_id in prepared.topology.active}
        """By step, in the order of the graph."""

    def _path_of(self, step_id: str) -> StepPath:
        return StepPath(step_id) if self._within is None else self._within.step(step_id)

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

    def ended(self) -> list[str]:
        """Return the steps that have ended and can be read as records."""
        return [
            step_id
            for step_id, report in self.reports.items()
            if report.node and report.status is not RUNNING
        ]

    def record(self, step_id: str) -> StepRecord:
        """Return the record of a step that has ended."""
        step, report = self._prepared.steps[step_id], self.reports[step_id]
        return StepRecord(
            self._path_of(step_id).text,
            report.node,
            step.work.node_id or step_id,
            step.step.type,
            self.inputs_of(step_id) or step.work.data,
            _shown(report.outputs),
            None if report.error is None else message_of_error(report.error),
            report.started_ns or report.ended_ns,
            report.ended_ns,
            report.recovered_by,
        )


class StepRecords(Sequence[StepRecord]):
    """The steps of executions, one inside another, as the records of a trace.

    While steps are executed, only their times are kept, on their reports: this costs a small part
    of a step.
    """

    __slots__ = ("executions",)

    def __init__(self) -> None:
        self.executions: list[Routing] = []

    def release(self) -> None:
        """Stop sharing the list with the run: each would keep the other alive otherwise."""
        shared, self.executions = self.executions, self.executions.copy()
        shared.clear()

    def __len__(self) -> int:
        return sum(len(execution.ended()) for execution in self.executions)

    def __iter__(self) -> Iterator[StepRecord]:
        for execution in self.executions:
            yield from map(execution.record, execution.ended())

    @overload
    def __getitem__(self, at: int) -> StepRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[StepRecord]: ...
    def __getitem__(self, at: int | slice) -> StepRecord | Sequence[StepRecord]:
        return list(self)[at]


def _shown(outputs: Outputs) -> object:
    """Return outputs as a trace shows them: the one value, or the values by handle."""
    if not outputs:
        return None
    return outputs[DEFAULT_HANDLE] if outputs.keys() == {DEFAULT_HANDLE} else outputs
