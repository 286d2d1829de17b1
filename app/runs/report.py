"""How a run ended, in the words that callers see (spec, section 2)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.control.stops import Stop, StopCause, StopKind
from app.engine.driver import GraphOutcome, said_of
from app.runs.plan import result_of
from app.runs.run import RunStatus
from app.trace.execution_graph import ExecutionGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The end of a run."""

    status: RunStatus
    finish_reason: str | None = None
    result: Mapping[str, Any] | None = None
    stop: StopCause | None = None
    error_class: str | None = None


def conclude(outcome: GraphOutcome, *, at: datetime) -> Conclusion:
    """Return what the end of a run's graph means for the run."""
    result = result_of(outcome)
    if outcome.stop is not None:
        return stopped(outcome.stop, result, at=at)
    if outcome.error is not None:
        return _failed(outcome.error, result, at)
    return Conclusion(status=RunStatus.COMPLETED, finish_reason="success", result=result)


def stopped(stop: Stop, result: Mapping[str, Any] | None, *, at: datetime) -> Conclusion:
    """Return what a stop means for the run it ended."""
    cause = replace(stop.cause, at=at)
    match cause.kind:
        case StopKind.CANCELLED:
            status, finish_reason = RunStatus.CANCELLED, None
        case StopKind.WORKER_LOST | StopKind.ERROR:
            status, finish_reason = RunStatus.FAILED, None
        case _:
            status, finish_reason = RunStatus.HALTED, "budget"
    return Conclusion(
        status=status,
        finish_reason=finish_reason,
        result=None if result is None else {**result, "finish_reason": finish_reason},
        stop=cause,
    )


def close(graph: ExecutionGraph, root: str, conclusion: Conclusion) -> None:
    """End every node that is still open, the root last."""
    reason = _reason(conclusion)
    graph.close_open(reason)
    match conclusion.status:
        case RunStatus.COMPLETED:
            graph.mark_success(root, 0)
        case RunStatus.FAILED:
            graph.mark_failure(root, conclusion.error_class or "Error", reason)
        case _:
            graph.mark_halt(root, reason)


def _failed(error: Exception, result: Mapping[str, Any] | None, at: datetime) -> Conclusion:
    """Return the end of a run whose step failed; a step may say what its failure is called."""
    finish_reason = None if result is None else result.get("finish_reason")
    cause = StopCause(kind=StopKind.ERROR, reason=said_of(error), at=at)
    return Conclusion(
        status=RunStatus.FAILED,
        finish_reason=finish_reason,
        result=result,
        stop=cause,
        error_class=type(error).__name__,
    )


def _reason(conclusion: Conclusion) -> str:
    stop = conclusion.stop
    if stop is None:
        return conclusion.status.value
    return stop.reason or stop.kind.value
