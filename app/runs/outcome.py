"""How a run ended, in the words that callers see (spec, section 2)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.control.stops import Stop, StopCause, StopKind
from app.engine.report import GraphOutcome, class_of, message_of_error
from app.runs.plan import result_of
from app.runs.run import Run, RunKind, RunStatus
from app.trace.execution_graph import ExecutionGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The end of a run."""

    status: RunStatus
    finish_reason: str | None = None
    result: Mapping[str, Any] | None = None
    stop: StopCause | None = None
    error_class: str | None = None


def run_outcome_of(run: Run, outcome: GraphOutcome, *, at: datetime) -> RunOutcome:
    """Return what the end of a run's graph means for the run."""
    result = result_of(run, outcome)
    if outcome.stop is not None:
        return stopped(run, outcome.stop, result, at=at)
    if outcome.error is not None:
        return failed(run, outcome.error, result, at=at)
    return RunOutcome(
        status=RunStatus.COMPLETED, finish_reason=_of_a_case(run, "success"), result=result
    )


def stopped(run: Run, stop: Stop, result: Mapping[str, Any] | None, *, at: datetime) -> RunOutcome:
    """Return what a stop means for the run it ended."""
    cause = replace(stop.cause, at=at)
    finish_reason = None
    match cause.kind:
        case StopKind.CANCELLED:
            status = RunStatus.CANCELLED
        case StopKind.WORKER_LOST | StopKind.ERROR:
            status = RunStatus.FAILED
        case _:
            status, finish_reason = RunStatus.HALTED, _of_a_case(run, "budget")
    if result is not None and run.kind is RunKind.CASE:
        result = {**result, "finish_reason": finish_reason}
    return RunOutcome(status=status, finish_reason=finish_reason, result=result, stop=cause)


def failed(
    run: Run, error: Exception, result: Mapping[str, Any] | None, *, at: datetime
) -> RunOutcome:
    """Return the end of a run that an error ended; a case says what its failure is called."""
    told = None if result is None else result.get("finish_reason")
    return RunOutcome(
        status=RunStatus.FAILED,
        finish_reason=_of_a_case(run, told),
        result=result,
        stop=StopCause(kind=StopKind.ERROR, reason=message_of_error(error), at=at),
        error_class=class_of(error),
    )


def close(graph: ExecutionGraph, root: str, run_outcome: RunOutcome) -> None:
    """End every node that is still open, the root last."""
    reason = _reason(run_outcome)
    graph.close_open(reason)
    match run_outcome.status:
        case RunStatus.COMPLETED:
            graph.mark_success(root, 0)
        case RunStatus.FAILED:
            graph.mark_failure(root, run_outcome.error_class or "Error", reason)
        case _:
            graph.mark_halt(root, reason)


def _of_a_case(run: Run, finish_reason: str | None) -> str | None:
    """Return the word that only cases end with."""
    return finish_reason if run.kind is RunKind.CASE else None


def _reason(run_outcome: RunOutcome) -> str:
    stop = run_outcome.stop
    if stop is None:
        return run_outcome.status.value
    return stop.reason or stop.kind.value
