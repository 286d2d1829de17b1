"""How the steps of a graph stand, what they give one another, and how the graph ended.

What a trace reads later (``StepRecords``) knows nothing of the run, and keeps no run alive by that.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from caseworker.control.stops import HandOver, Stop, StopCause
from caseworker.control.usage import Charge
from caseworker.engine.context import Outputs, RunContext
from caseworker.engine.events import STEP_CANCELLED, Event
from caseworker.engine.ports import CallOutcome, Recorded
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.step_path import Area, StepPath
from caseworker.engine.step_values import require_joined
from caseworker.kernel.facts import COMPLETED, NEXT, RUNNING, StepStatus
from caseworker.kernel.graph import DEFAULT_HANDLE
from caseworker.observability.errors import message_of_error
from caseworker.trace.call_tree import ABANDONED
from caseworker.trace.step_trace import StepRecord


class StepBrokenError(Exception):
    """A step that neither returned nor failed as a step does."""


class RecordedFailureError(Exception):
    """A step had already failed when the worker of its run was lost."""

    def __init__(self, message: str, *, error_class: str) -> None:
        super().__init__(message)
        self.error_class = error_class
        """Of the failure at the time."""

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> "RecordedFailureError":
        """Return the failure that was recorded of a step."""
        return cls(recorded["message"], error_class=recorded["error_class"])


class StepTimeoutError(TimeoutError):
    """One attempt of a step took longer than its policy allows."""

    @classmethod
    def after(cls, timeout_ms: int) -> "StepTimeoutError":
        """Return the failure of an attempt that had so much time."""
        return cls(f"No result within {timeout_ms} ms.")


@dataclass(slots=True)
class StepReport:
    """How a step stands."""

    status: StepStatus = StepStatus.NOT_STARTED
    outputs: Outputs = field(default_factory=dict)
    """What it produced; of a step that was cut off or failed, what it had so far."""
    error: Exception | None = None
    """What failed it, or what its policy has made good."""
    recovered_by: str | None = None
    """``skip`` or ``fallback``, if its policy has made a failure good."""
    source: Callable[[], Outputs] | None = None
    """Gives the partial outputs of a step that is executed."""
    started_ns: int = 0
    """In nanoseconds of the monotonic clock, as is the end."""
    ended_ns: int = 0
    """0 while it has not ended."""
    charge: Charge = field(default_factory=dict)
    """What this execution of the run was charged for executing it."""
    failed_before: Mapping[str, Any] | None = None
    """How many attempts an earlier execution has made in vain, and what the last one came to."""
    node: str = ""
    """Its CallNode, once it has one."""
    attempts: int = 1
    """How often it was tried, a fallback included, if it has failed."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of its outputs as JSON, by handle; empty in runs without limits of size."""

    def keep(self, source: Callable[[], Outputs]) -> None:
        """Remember what gives the step's partial outputs."""
        self.source = source

    def complete(self, outputs: Outputs, at_ns: int) -> None:
        """Note that the step, which was executed, has its outputs; a status that is final stays."""
        if self.status is RUNNING:
            self.status = COMPLETED
            self.outputs = outputs
            self.source = None
            self.ended_ns = at_ns

    def become(
        self, status: StepStatus, outputs: Outputs | None = None, error: Exception | None = None
    ) -> bool:
        """Change the status; a final one stays, whatever abandoned work still comes to.

        Return whether it was changed.
        """
        if status not in NEXT[self.status]:
            return False
        self.status, self.error = status, error
        self.outputs = {} if outputs is None else outputs
        self.source = None
        return True

    def recall(self, recorded: Recorded, ended_by: Stop | None = None) -> bool:
        """Take over how the step has ended in an earlier execution; False if it has not.

        One that had begun and not ended is cut off by ``ended_by``, the stop of the run.
        """
        if recorded.outcome is CallOutcome.RESULT:
            return self.become(StepStatus.COMPLETED, recorded.value)
        if recorded.outcome is not CallOutcome.FAILURE:
            stop = stop_in(recorded)
            if stop is not None:
                return self.become(cut_off_status(stop), recorded.value["outputs"])
            begun = ended_by is not None and not recorded.taken_over
            return begun and self.become(cut_off_status(ended_by))
        error, outputs = RecordedFailureError.of(recorded.value), recorded.value["outputs"]
        self.recovered_by = recorded.value.get("recovered_by")
        self.attempts = recorded.value.get("attempts", 1)
        ended = StepStatus.FAILED if self.recovered_by is None else StepStatus.COMPLETED
        return self.become(ended, outputs, error)

    def so_far(self) -> Outputs:
        """Return what the step would have to show if it ended now."""
        if self.source is None or self.status is not StepStatus.RUNNING:
            return self.outputs
        try:
            return self.source()
        except Exception:  # what went wrong before it matters more
            return {}


@dataclass(slots=True)
class GraphOutcome:
    """How a graph ended, or how it stands."""

    steps: dict[str, StepReport]
    error: Exception | None = None
    stop: Stop | None = None

    def let_go(self) -> None:
        """Drop where failures and the stop were raised: it holds all that the run worked with.

        Otherwise that would be kept until the garbage collector comes.
        """
        errors = [report.error for report in self.steps.values() if report.error is not None]
        left: list[BaseException | None] = [self.error, self.stop, *errors]
        seen: set[int] = set()
        while left:
            error = left.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            BaseException.with_traceback(error, None)  # works on one that lets nobody write to it
            left += (error.__cause__, error.__context__)
            if isinstance(error, BaseExceptionGroup):
                left += error.exceptions


def cut_off_status(stop: BaseException | None) -> StepStatus:
    """Return how a step stands that was cut off: halted if a limit was met, else cancelled."""
    limit = isinstance(stop, Stop) and stop.is_limit
    return StepStatus.HALTED if limit else StepStatus.CANCELLED


def stop_in(recorded: Recorded) -> Stop | None:
    """Return the stop that had cut a step off, and with it the run; None if there was none."""
    if recorded.outcome is not CallOutcome.UNKNOWN or "stop" not in (recorded.value or ()):
        return None
    return Stop(StopCause.from_dict(recorded.value["stop"]))


def failure_in(recorded: Recorded) -> Exception | None:
    """Return what a step had failed with; None if it had not."""
    if recorded.outcome is not CallOutcome.FAILURE or "recovered_by" in recorded.value:
        return None
    return RecordedFailureError.of(recorded.value)


def failure_of(error: Exception, **more: Any) -> dict[str, Any]:
    """Return a failure as the journal holds it."""
    return {"error_class": class_of(error), "message": message_of_error(error), **more}


def class_of(error: Exception) -> str:
    """Return the name of the class of a failure, also of one that is only recorded."""
    return error.error_class if isinstance(error, RecordedFailureError) else type(error).__name__


def emit_end(run: RunContext, kind: str, path: StepPath, data: Mapping[str, Any]) -> None:
    """Emit the end of a step, unless it never began or its end was emitted before."""
    node = run.begun.pop(path, None)
    if node is not None and run.events is not None:
        run.events.emit(Event(type=kind, step_id=path.text, node_id=node, data=data))


def emit_cut_off(run: RunContext, path: StepPath, reason: str) -> None:
    """Emit that a step was cut off; one that goes on in another process has not ended."""
    if isinstance(run.token.stop, HandOver):
        run.begun.pop(path, None)
    else:
        emit_end(run, STEP_CANCELLED, path, {"reason": reason})


def detach_inside(run: RunContext, area: Area) -> None:
    """End the steps in an area: what executed them ignored its cancellation."""
    for path in [begun for begun in run.begun if begun in area]:
        run.trace.mark_halt(run.begun[path], ABANDONED)
        emit_cut_off(run, path, ABANDONED)


class Routing:
    """How the steps of a graph stand, and which values are routed to them."""

    __slots__ = ("_incoming", "_inputs", "_max_bytes", "_prepared", "reports", "within")

    def __init__(
        self,
        prepared: PreparedGraph,
        inputs: Outputs,
        within: StepPath | None,
        max_bytes: float = math.inf,
    ) -> None:
        """Route ``inputs`` to the steps that no flow edge leads to.

        ``within`` is the step that executes the graph; None: it is the outermost one. No handle
        gets more than ``max_bytes``.
        """
        self._prepared = prepared
        self._inputs = inputs
        self.within = within
        self._max_bytes = max_bytes
        self._incoming = prepared.topology.incoming
        self.reports = {step_id: StepReport() for step_id in prepared.topology.active}
        """By step, in the order of the graph."""

    def path_of(self, step_id: str) -> StepPath:
        """Return the path of a step of the graph."""
        return StepPath(step_id) if self.within is None else self.within.step(step_id)

    def inputs_of(self, step_id: str) -> Outputs:
        """Return the values that were routed to a step, by handle.

        A handle that one edge leads to gets its value; one that several lead to gets the list of
        those that came, in the order of the edges.

        Raises:
            ValueTooLargeError: such a list is larger than a value may be.
        """
        incoming = self._incoming.get(step_id)
        if incoming is None:
            return self._inputs
        if len(incoming) == 1:
            (edge,) = incoming
            return {edge.target_handle: self.reports[edge.source].outputs[edge.source_handle]}
        inputs: dict[str, Any] = {}
        joined = dict.fromkeys(self._prepared.shared_handles.get(step_id, ()), 2)
        for edge in incoming:
            source, handle = self.reports[edge.source], edge.target_handle
            if edge.source_handle not in source.outputs:
                continue
            value = source.outputs[edge.source_handle]
            if handle in joined:
                joined[handle] += source.sizes.get(edge.source_handle, 0) + 1
                require_joined(step_id, handle, joined[handle], self._max_bytes)
                inputs.setdefault(handle, []).append(value)
            else:
                inputs[handle] = value
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
            self.path_of(step_id).text,
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
