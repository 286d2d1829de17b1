"""The states of a graph's steps, the routing of values between them, and the graph's outcome.

Traces read ``StepRecords`` after the run. The records hold no reference to the run, so they do not
keep it in memory.

See docs/internals.md, "How a graph is executed".
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from caseworker.core.budget.stops import HandOver, Stop, StopCause
from caseworker.core.budget.usage import Charge
from caseworker.core.graph.facts import COMPLETED, NEXT, RUNNING, StepStatus
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.trace.node import ABANDONED
from caseworker.core.trace.step_trace import StepRecord
from caseworker.engine.containment import ForeignError
from caseworker.engine.context import Outputs, RunContext
from caseworker.engine.events import STEP_CANCELLED, Event
from caseworker.engine.ports import CallOutcome, Entry, Recorded
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.step_path import Area, StepPath
from caseworker.engine.step_values import require_joined
from caseworker.platform.logs.errors import chain_of, class_name, message_of_error


class StepBrokenError(Exception):
    """The node of a step violated the node interface, for example by returning no result."""


class RecordedFailureError(Exception):
    """A failure of a step in an earlier execution of the run, restored from the journal."""

    def __init__(self, message: str, *, error_class: str) -> None:
        super().__init__(message)
        self.error_class = error_class
        """Class name of the original error."""

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> "RecordedFailureError":
        """Return the error for a failure's journal value."""
        return cls(recorded["message"], error_class=recorded["error_class"])


class StepTimeoutError(TimeoutError):
    """One attempt at a step took longer than its error policy allows."""

    @classmethod
    def after(cls, timeout_ms: int) -> "StepTimeoutError":
        """Return the error for an attempt with this timeout, in milliseconds."""
        return cls(f"No result within {timeout_ms} ms.")


@dataclass(slots=True)
class StepReport:
    """The state of one step in the execution of a graph."""

    status: StepStatus = StepStatus.NOT_STARTED
    outputs: Outputs = field(default_factory=dict)
    """Outputs by handle; incomplete if the step failed or was interrupted."""
    error: Exception | None = None
    """Error with which the step failed or from which its policy recovered; None if there was
    none."""
    recovered_by: str | None = None
    """``skip`` or ``fallback``, if the step's policy recovered from a failure; otherwise None."""
    source: Callable[[], Outputs] | None = None
    """Function that returns the outputs so far of a running step; None if its node provides
    none."""
    started_ns: int = 0
    """Start time on the monotonic clock, in nanoseconds."""
    ended_ns: int = 0
    """End time on the monotonic clock, in nanoseconds; 0 until the step has ended."""
    key: str = ""
    """Journal key of the step; set once it is executed."""
    charge: Charge = field(default_factory=dict)
    """Amounts charged for executing the step in this execution of the run."""
    failed_before: Mapping[str, Any] | None = None
    """Journal value for the failed attempts of an earlier execution: their number and the last
    failure. None if no attempt failed."""
    node: str = ""
    """ID of the step's CallNode; empty until it has one."""
    attempts: int = 1
    """Number of attempts, including a fallback; only kept up to date for a failed step."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the outputs as JSON, in bytes, by handle; empty without size limits."""

    def entry(self, outcome: CallOutcome | None = None, value: object = None) -> Entry:
        """Return the journal entry for the step, which is in flight without an ``outcome``."""
        return Entry(call_key=self.key, charge=self.charge, outcome=outcome, value=value)

    def keep(self, source: Callable[[], Outputs]) -> None:
        """Set the function that returns the step's outputs so far."""
        self.source = source

    def complete(self, outputs: Outputs, at_ns: int) -> None:
        """Set a running step to ``completed``; a step with a terminal status stays unchanged."""
        if self.status is RUNNING:
            self.status = COMPLETED
            self.outputs = outputs
            self.source = None
            self.ended_ns = at_ns

    def become(
        self, status: StepStatus, outputs: Outputs | None = None, error: Exception | None = None
    ) -> bool:
        """Change the status and return True; return False if the transition is not allowed.

        A late result of abandoned work therefore cannot change a terminal status.
        """
        if status not in NEXT[self.status]:
            return False
        self.status, self.error = status, error
        self.outputs = {} if outputs is None else outputs
        self.source = None
        return True

    def recall(self, recorded: Recorded, ended_by: Stop | None = None) -> bool:
        """Restore the step's end from its journal record; return False if the step had not ended.

        A step that had started but not ended is marked as interrupted by ``ended_by`` (the stop
        that ended the run), if it is given.
        """
        if recorded.outcome is CallOutcome.RESULT:
            return self.become(StepStatus.COMPLETED, recorded.value)
        if recorded.outcome is not CallOutcome.FAILURE:
            stop = stop_in(recorded)
            if stop is not None:
                return self.become(cut_off_status(stop), recorded.value["outputs"])
            is_unfinished = ended_by is not None and not recorded.imported
            return is_unfinished and self.become(cut_off_status(ended_by))
        error, outputs = RecordedFailureError.of(recorded.value), recorded.value["outputs"]
        self.recovered_by = recorded.value.get("recovered_by")
        self.attempts = recorded.value.get("attempts", 1)
        ended = StepStatus.FAILED if self.recovered_by is None else StepStatus.COMPLETED
        return self.become(ended, outputs, error)

    def so_far(self) -> Outputs:
        """Return the outputs; while the step is running, those that it has produced so far."""
        if self.source is None or self.status is not StepStatus.RUNNING:
            return self.outputs
        try:
            return self.source()
        except Exception:  # must not hide the failure or stop that ended the step
            return {}


@dataclass(slots=True)
class GraphOutcome:
    """The outcome of a graph: the states of its steps, and its failure or stop, if any."""

    steps: dict[str, StepReport]
    error: Exception | None = None
    stop: Stop | None = None

    def drop_tracebacks(self) -> None:
        """Drop the tracebacks of the stop and of all failures, including their causes.

        Tracebacks refer to frames that hold the run's data; they would keep it in memory until the
        next garbage collection.
        """
        errors = [report.error for report in self.steps.values() if report.error is not None]
        errors_left: list[BaseException | None] = [self.error, self.stop, *errors]
        seen: set[int] = set()
        while errors_left:
            error = errors_left.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            BaseException.with_traceback(error, None)  # bypasses overrides in frozen error classes
            errors_left += chain_of(error)
            if isinstance(error, BaseExceptionGroup):
                errors_left += error.exceptions


def cut_off_status(stop: BaseException | None) -> StepStatus:
    """Return the status for an interrupted step: halted by a limit, otherwise cancelled."""
    limit = isinstance(stop, Stop) and stop.is_limit
    return StepStatus.HALTED if limit else StepStatus.CANCELLED


def stop_in(recorded: Recorded) -> Stop | None:
    """Return the stop that interrupted a step and its run, from the journal; None if none did."""
    if recorded.outcome is not CallOutcome.UNKNOWN or "stop" not in (recorded.value or ()):
        return None
    return Stop(StopCause.from_dict(recorded.value["stop"]))


def is_open(recorded: Recorded) -> bool:
    """Return whether an earlier execution of the run started a step without ending it."""
    unknown = recorded.outcome is CallOutcome.UNKNOWN and not recorded.imported
    return unknown and stop_in(recorded) is None


def failure_in(recorded: Recorded) -> Exception | None:
    """Return the failure of a step from the journal; None if it did not fail or recovered."""
    if recorded.outcome is not CallOutcome.FAILURE or "recovered_by" in recorded.value:
        return None
    return RecordedFailureError.of(recorded.value)


def failure_of(error: Exception, **more: Any) -> dict[str, Any]:
    """Return the journal value for a failure; ``more`` adds further fields."""
    return {"error_class": class_of(error), "message": message_of_error(error), **more}


def class_of(error: Exception) -> str:
    """Return the class name of an error, or of the original error if it was recorded or mapped."""
    error = vars(error).get("item_error", error)  # a foreign property may raise
    if isinstance(error, RecordedFailureError | ForeignError):
        return error.error_class
    return class_name(error)


def emit_end(
    run: RunContext, kind: str, path: StepPath, data: Mapping[str, Any], once_key: str | None = None
) -> None:
    """Emit the end event of a step, if its start event was emitted but no end event yet."""
    node = run.started_steps.pop(path, None)
    if node is not None and run.events is not None:
        run.events.emit(
            Event(type=kind, step_id=path.text, node_id=node, data=data, once_key=once_key)
        )


def emit_cut_off(run: RunContext, path: StepPath, reason: str) -> None:
    """Emit ``step.cancelled``, but not in a hand-over, because another process resumes the step."""
    if isinstance(run.token.stop, HandOver):
        run.started_steps.pop(path, None)
    else:
        # A lost process may have stored the event, but not the end of its run.
        emit_end(run, STEP_CANCELLED, path, {"reason": reason}, f"{path}|{STEP_CANCELLED}")


def detach_inside(run: RunContext, area: Area) -> None:
    """Close the CallNodes of all steps inside abandoned work, and emit their end events."""
    for path in [path for path in run.started_steps if path in area]:
        run.trace.mark_halt(run.started_steps[path], ABANDONED)
        emit_cut_off(run, path, ABANDONED)


class Routing:
    """Keeps the states of a graph's steps, and passes values between them."""

    __slots__ = ("_incoming", "_inputs", "_max_bytes", "_prepared", "reports", "within")

    def __init__(
        self,
        prepared: PreparedGraph,
        inputs: Outputs,
        within: StepPath | None,
        max_bytes: float = math.inf,
    ) -> None:
        """Start with ``inputs`` for the steps without incoming flow edges.

        ``within`` is the path of the enclosing step; None for the outermost graph. ``max_bytes``
        limits the size of each list that joins the values of several edges.
        """
        self._prepared = prepared
        self._inputs = inputs
        self.within = within
        self._max_bytes = max_bytes
        self._incoming = prepared.topology.incoming
        self.reports = {step_id: StepReport() for step_id in prepared.topology.active}
        """Step states by step ID, in the order of the graph."""

    def path_of(self, step_id: str) -> StepPath:
        """Return the path of a step of the graph."""
        return StepPath(step_id) if self.within is None else self.within.step(step_id)

    def inputs_of(self, step_id: str) -> Outputs:
        """Return the input values of a step, by handle.

        A handle with one edge gets the value itself. A handle with several edges gets the list of
        the values that arrived, in the order of the edges.

        Raises:
            ValueTooLargeError: the list exceeds the size limit for one value.
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
        """Return the outputs produced so far, by step ID and handle."""
        so_far = {step_id: report.so_far() for step_id, report in self.reports.items()}
        return {step_id: values for step_id, values in so_far.items() if values}

    def ended(self) -> list[str]:
        """Return the IDs of the steps that have ended and have a CallNode."""
        return [
            step_id
            for step_id, report in self.reports.items()
            if report.node and report.status is not RUNNING
        ]

    def record(self, step_id: str) -> StepRecord:
        """Return the trace record of a step that has ended."""
        step, report = self._prepared.steps[step_id], self.reports[step_id]
        return StepRecord(
            self.path_of(step_id).text,
            report.node,
            step.work.node_id or step_id,
            step.step.type,
            self.inputs_of(step_id) or step.work.data,
            _trace_value(report.outputs),
            None if report.error is None else message_of_error(report.error),
            report.started_ns or report.ended_ns,
            report.ended_ns,
            report.recovered_by,
        )


class StepRecords(Sequence[StepRecord]):
    """Trace records of all ended steps in an outermost graph and its nested graphs.

    The records are built when they are read. During execution only the states of the steps are
    updated, which takes a small fraction of a step's time.
    """

    __slots__ = ("executions",)

    def __init__(self) -> None:
        self.executions: list[Routing] = []

    def release(self) -> None:
        """Detach the records from the run, because a reference cycle would keep both in memory."""
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


def _trace_value(outputs: Outputs) -> object:
    """Return outputs for a trace: the default handle's value if it is the only one, else all."""
    if not outputs:
        return None
    return outputs[DEFAULT_HANDLE] if outputs.keys() == {DEFAULT_HANDLE} else outputs
