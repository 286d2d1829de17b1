"""What is noted of steps as they end, for whoever passed an ExecutionTrace.

While steps are executed, only their times are kept, on their reports. Nothing is made of that
before somebody looks, so it costs a small part of a step (seed 000, section 9.3).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, overload

from app.engine.context import Outputs
from app.engine.prepared import PreparedStep
from app.engine.report import StepReport, message_of_error
from app.kernel.graph import DEFAULT_HANDLE
from app.trace.step_trace import StepRecord

Note = tuple[str, PreparedStep, StepReport, Outputs]
"""The path of a step that has ended, the step itself, its report and its inputs."""


class StepRecordSource(Protocol):
    """What can tell of the steps of an execution."""

    def notes(self) -> Iterable[Note]:
        """Return what is known of the steps that have ended."""
        ...


class StepRecords(Sequence[StepRecord]):
    """The steps of executions, one inside another, as the records of a trace."""

    __slots__ = ("executions",)

    def __init__(self) -> None:
        self.executions: list[StepRecordSource] = []

    def release(self) -> None:
        """Stop sharing the list with the run: each would keep the other alive otherwise."""
        shared, self.executions = self.executions, self.executions.copy()
        shared.clear()

    def __len__(self) -> int:
        return sum(1 for _ in self._notes())

    def __iter__(self) -> Iterator[StepRecord]:
        return map(_record, self._notes())

    @overload
    def __getitem__(self, at: int) -> StepRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[StepRecord]: ...
    def __getitem__(self, at: int | slice) -> StepRecord | Sequence[StepRecord]:
        return list(self)[at]

    def _notes(self) -> Iterator[Note]:
        for execution in self.executions:
            yield from execution.notes()


def _record(note: Note) -> StepRecord:
    path, step, report, inputs = note
    return StepRecord(
        path,
        report.node,
        step.work.node_id or step.step.id,
        step.step.type,
        inputs or step.work.data,
        _shown(report.outputs),
        None if report.error is None else message_of_error(report.error),
        report.started_ns or report.ended_ns,
        report.ended_ns,
        report.recovered_by,
    )


def _shown(outputs: Outputs) -> object:
    """Return outputs as a trace shows them: the one value, or the values by handle."""
    if not outputs:
        return None
    return outputs[DEFAULT_HANDLE] if outputs.keys() == {DEFAULT_HANDLE} else outputs
