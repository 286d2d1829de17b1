"""Determines the outcome of a run, including a run that ends while no process executes it.

See docs/internals.md, "One row decides".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.core.budget.usage import ResourceUsage
from caseworker.core.graph.facts import StepStatus
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.engine.report import GraphOutcome, StepReport, class_of
from caseworker.nodes.agent.execution import cut_off_result
from caseworker.nodes.agent.state import REQUIRES_ACTION
from caseworker.platform.logs.errors import message_of_error
from caseworker.runs.journal.event_log import EventLog, run_ended
from caseworker.runs.journal.replay import graph_of, tries_of
from caseworker.runs.kinds import KINDS
from caseworker.runs.ports import SpentSoFar
from caseworker.runs.run import CallRecord, CancelRequest, FinishRun, Run, RunStatus

RESULT = "result"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The final status of a run, with its result or with the reason why it has none."""

    status: RunStatus
    finish_reason: str | None = None
    result: Mapping[str, Any] | None = None
    stop: StopCause | None = None
    error_class: str | None = None


def outcome_of(run: Run, outcome: GraphOutcome, *, at: datetime) -> RunOutcome:
    """Convert the outcome of a run's graph to the outcome of the run."""
    result = run_result_of(run, outcome)
    if outcome.stop is not None:
        return stopped(run, outcome.stop, result, at=at)
    if outcome.error is not None:
        return failed(run, outcome.error, result, at=at, step_id=_failed_step(outcome))
    status = RunStatus.COMPLETED
    finish_reason = KINDS[run.kind].finish_reasons.get(status)
    if result is not None and result.get("terminate_reason") == REQUIRES_ACTION:
        finish_reason = REQUIRES_ACTION
    return RunOutcome(status=status, finish_reason=finish_reason, result=result)


def stopped(run: Run, stop: Stop, result: Mapping[str, Any] | None, *, at: datetime) -> RunOutcome:
    """Return the outcome of a run that was stopped."""
    cause, rules = replace(stop.cause, at=at), KINDS[run.kind]
    match cause.kind:
        case StopKind.CANCELLED:
            status = RunStatus.CANCELLED
        case StopKind.WORKER_LOST | StopKind.ERROR | StopKind.ABANDONED | StopKind.POISONED:
            status = RunStatus.FAILED
        case _:
            status = RunStatus.HALTED
    finish_reason = rules.finish_reasons.get(status)
    if result is not None and rules.result_has_reason:
        result = {**result, "finish_reason": finish_reason}
    return RunOutcome(status=status, finish_reason=finish_reason, result=result, stop=cause)


def failed(
    run: Run,
    error: Exception,
    result: Mapping[str, Any] | None,
    *,
    at: datetime,
    step_id: str | None = None,
) -> RunOutcome:
    """Return the outcome of a run that ended with an error.

    ``step_id`` is the step that failed, or None.
    """
    own_result = result if KINDS[run.kind].result_has_reason else None
    return RunOutcome(
        status=RunStatus.FAILED,
        finish_reason=None if own_result is None else own_result.get("finish_reason"),
        result=result,
        stop=StopCause(
            kind=StopKind.ERROR,
            reason=message_of_error(error),
            step_id=step_id,
            error_class=class_of(error),
            at=at,
        ),
        error_class=class_of(error),
    )


def _failed_step(outcome: GraphOutcome) -> str | None:
    """Return the first failed step of a graph."""
    failed = (
        step_id for step_id, report in outcome.steps.items() if report.status is StepStatus.FAILED
    )
    return next(failed, None)


def close(graph: ExecutionGraph, root: str, outcome: RunOutcome) -> str:
    """Close all open nodes of the graph according to the outcome, the root last.

    Return their stop reason.
    """
    stop = outcome.stop
    reason = (stop.reason or stop.kind.value) if stop else outcome.status.value
    graph.close_open(reason)
    match outcome.status:
        case RunStatus.COMPLETED:
            graph.mark_success(root, 0)
        case RunStatus.FAILED:
            graph.mark_failure(root, outcome.error_class or "Error", reason)
        case _:
            graph.mark_halt(root, reason)
    return reason


def cancelled_while_queued(
    run: Run, cancel_request: CancelRequest, imported: Sequence[CallRecord] = ()
) -> FinishRun:
    """Return the update that cancels a run that never started."""
    at = cancel_request.requested_at
    end = stopped_while_queued(run, cancel_request.stop, imported, at=at or run.created_at)
    return replace(end, delivered_at=at)


def stopped_while_queued(
    run: Run, stop: Stop, imported: Sequence[CallRecord] = (), *, at: datetime
) -> FinishRun:
    """Return the update that stops a run that never started.

    Its trace has a halted root, and the calls that were ``imported`` from the run that it resumes.
    """
    graph, root = graph_of(run, imported)
    outcome = stopped(run, stop, result_of_calls(run, imported, stop), at=at)
    close(graph, root, outcome)
    old = {record.node_id: record for record in imported}
    cause = outcome.stop.to_dict() if outcome.stop else None
    end = run_ended(outcome.status, outcome.finish_reason, cause)
    return FinishRun(
        key=run.key,
        fence=run.fence,
        status=outcome.status,
        finish_reason=outcome.finish_reason,
        result=outcome.result,
        usage=ResourceUsage(clock=lambda: 0.0).to_dict(),
        stop=cause,
        active_seconds=run.active_seconds,
        calls=tuple(
            replace(old.get(node["node_id"], CallRecord(node=node)), node=node)
            for node in graph.changed_since(0).nodes
        ),
        snapshot=graph.snapshot(),
        events=EventLog(last_seq=0).followed_by(end),
    )


def usage_so_far(spent: SpentSoFar) -> Mapping[str, Any]:
    """Return the current usage of an unfinished run that this process is not executing."""
    usage = ResourceUsage(before_seconds=spent.seconds, clock=lambda: 0.0)
    usage.add(spent.charge)
    return usage.to_dict()


def result_of_calls(run: Run, calls: Sequence[CallRecord], stop: Stop) -> Mapping[str, Any] | None:
    """Return the partial result of a run whose graph is not executed, from its journal."""
    if not calls:
        return None
    step = KINDS[run.kind].step
    reports = {} if step is None else {step: StepReport()}
    for key, recorded in tries_of(calls).items():
        step_id = key.removeprefix("step:")
        if step_id == key or "/" in step_id:
            continue
        report = reports[step_id] = StepReport()
        if not report.recall(recorded):
            report.become(StepStatus.CANCELLED)
    return run_result_of(run, GraphOutcome(reports, stop=stop))


def run_result_of(run: Run, outcome: GraphOutcome) -> dict[str, Any] | None:
    """Return the result of a run from the outputs of its graph; it may be partial.

    If an answer was interrupted, the text that earlier executions streamed is included.
    """
    for (step_id, _), (turn, text) in run.streamed.items():
        report, ended = outcome.steps.get(step_id or ""), outcome.stop or outcome.error
        if report is not None and ended is not None and report.status is not StepStatus.COMPLETED:
            cut_off = cut_off_result(report.outputs.get(RESULT), turn, text, ended)
            report.outputs = {**report.outputs, RESULT: cut_off}
    step_id = KINDS[run.request.kind].step
    if step_id is None:
        return _graph_result(outcome)
    result: Mapping[str, Any] | None = outcome.steps[step_id].outputs.get(RESULT)
    return None if result is None else dict(result)


def _graph_result(outcome: GraphOutcome) -> dict[str, Any]:
    steps = outcome.steps
    return {
        "outputs": {
            step_id: dict(report.outputs) for step_id, report in steps.items() if report.outputs
        },
        "steps": {step_id: _standing(report) for step_id, report in steps.items()},
    }


def _standing(report: StepReport) -> dict[str, Any]:
    standing: dict[str, Any] = {"status": report.status.value}
    if report.error is not None:
        standing["error"] = message_of_error(report.error)
        standing["error_class"] = class_of(report.error)
        standing["attempts"] = report.attempts
    if report.recovered_by is not None:
        standing["recovered_by"] = report.recovered_by
    return standing
