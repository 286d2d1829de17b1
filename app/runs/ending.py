"""The end of runs that nobody executes at that moment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.control.stops import CancelledError
from app.control.usage import ResourceUsage
from app.engine.report import GraphOutcome, StepReport
from app.kernel.facts import StepStatus
from app.runs.event_log import EventLog, run_ended
from app.runs.outcome import close, stopped
from app.runs.plan import CASE_STEP, result_of
from app.runs.replay import graph_of, spent_before, tries_of
from app.runs.run import CallRecord, CancelRequest, FinishRun, Run, RunKind
from app.trace.node import Node


def cancelled_while_queued(
    run: Run, cancel_request: CancelRequest, earlier: Sequence[CallRecord], *, last_seq: int = 0
) -> FinishRun:
    """Return how a run ends that somebody stopped before it began, or between two executions.

    ``earlier`` is what previous executions left in its journal, ``last_seq`` their last event.
    """
    graph, root = graph_of(run, earlier)
    stop = CancelledError(cancel_request.reason, requested_by=cancel_request.requested_by)
    so_far = _result_so_far(run, earlier)
    run_outcome = stopped(run, stop, so_far, at=cancel_request.requested_at or run.created_at)
    close(graph, root, run_outcome)
    _, nodes = graph.changed_since(0)
    old = {record.node_id: record for record in earlier}
    usage = ResourceUsage(before_seconds=run.active_seconds, clock=_standing_still)
    usage.add(spent_before(earlier))
    cause = run_outcome.stop.to_dict() if run_outcome.stop else None
    end = run_ended(run_outcome.status, run_outcome.finish_reason, cause)
    return FinishRun(
        key=run.key,
        fence=run.fence,
        status=run_outcome.status,
        finish_reason=run_outcome.finish_reason,
        result=run_outcome.result,
        usage=usage.to_dict(),
        stop=cause,
        active_seconds=run.active_seconds,
        calls=tuple(_ended(node, old) for node in nodes),
        snapshot=graph.snapshot(),
        events=EventLog(last_seq=last_seq).followed_by(end),
        delivered_at=cancel_request.requested_at,
    )


def _result_so_far(run: Run, earlier: Sequence[CallRecord]) -> Mapping[str, Any] | None:
    """Return what the steps of previous executions have come to."""
    if not earlier:
        return None
    reports = {CASE_STEP: StepReport()} if run.kind is RunKind.CASE else {}
    for key, recorded in tries_of(earlier).items():
        step_id = key.removeprefix("step:")
        if step_id == key or "/" in step_id:
            continue
        report = reports[step_id] = StepReport()
        if not report.recall(recorded):
            report.become(StepStatus.CANCELLED)
    return result_of(run, GraphOutcome(reports))


def _ended(node: Node, old: Mapping[str, CallRecord]) -> CallRecord:
    record = old.get(node["node_id"])
    return CallRecord(node=node) if record is None else replace(record, node=node)


def _standing_still() -> float:
    """Tell the time of a run that nobody executes any more."""
    return 0.0
