"""Execute a prepared graph from Python, with its limits, cancellation and trace."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from caseworker.core.budget.stops import CancelledError, Stop, StopKind
from caseworker.core.graph.facts import StepStatus
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.explain import explain
from caseworker.core.trace.step_trace import RecordedSteps
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.concurrency import DEFAULT_CEILING, StepSlots
from caseworker.engine.context import ExecutionContext, RunContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.events import Event, EventSink
from caseworker.engine.ports import NullJournal
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import GraphOutcome, StepRecords
from caseworker.engine.step_runner import CANCELLED
from caseworker.engine.supervision import DetachedError, Supervisor, TimeLimit, deadline_of
from caseworker.nodes.function import BlockingPool
from caseworker.platform.logs.errors import message_of_error

Status = Literal["completed", "failed", "halted", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRun:
    """The outcome of a graph: its status, and everything that its steps produced."""

    status: Status
    results: dict[str, Any]
    """Results by step ID; partial for steps that failed or were interrupted."""
    steps: Mapping[str, str]
    """Status by step ID: completed, failed, halted, cancelled, skipped or not_started."""
    error: Exception | None
    """Error that failed the graph; None if no error did."""
    errors: Mapping[str, Exception]
    """Errors by step ID, including those from which the step's error policy recovered."""
    recovered: Mapping[str, str]
    """How the error policy recovered from a step's failure, by step ID: ``skip`` or
    ``fallback``."""
    stop: Stop | None
    """Exceeded limit or cancel request that ended the graph; None if neither did."""
    calls: ExecutionGraph
    """Trace of all steps and calls."""

    def explain(self) -> str:
        """Return a readable description: the tree of steps and calls, with times and costs."""
        return explain(self.calls.snapshot(), cancelled=self.status == "cancelled")


def results_of(outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one result for each step with outputs, by step ID.

    The result is the value of the default handle if the step has no other output, else a dict of
    all values by handle.
    """
    return {
        step_id: values[DEFAULT_HANDLE]
        if len(values) == 1 and DEFAULT_HANDLE in values
        else dict(values)
        for step_id, values in outputs.items()
        if values
    }


_WORDS = {status: status.value for status in StepStatus}
"""Cached because the enum lookup is noticeable with a thousand steps."""


def ended(outcome: GraphOutcome, calls: ExecutionGraph) -> GraphRun:
    """Return the GraphRun for a graph that the engine has finished executing."""
    outputs = {step_id: report.outputs for step_id, report in outcome.steps.items()}
    return GraphRun(
        status=_status(outcome),
        results=results_of(outputs),
        steps={step_id: _WORDS[report.status] for step_id, report in outcome.steps.items()},
        error=outcome.error,
        errors={
            step_id: report.error
            for step_id, report in outcome.steps.items()
            if report.error is not None
        },
        recovered={
            step_id: report.recovered_by
            for step_id, report in outcome.steps.items()
            if report.recovered_by is not None
        },
        stop=outcome.stop,
        calls=calls,
    )


def _status(outcome: GraphOutcome) -> Status:
    if outcome.stop is not None:
        return "cancelled" if outcome.stop.cause.kind is StopKind.CANCELLED else "halted"
    return "completed" if outcome.error is None else "failed"


@dataclass(frozen=True, slots=True)
class EventCallback:
    """An event sink that passes each event of a run to the callback ``emit`` as it happens."""

    emit: Callable[[Event], None]


async def execute(
    prepared: PreparedGraph,
    context: ExecutionContext,
    *,
    grace_seconds: float,
    events: EventSink | None = None,
    inputs: Mapping[str, Any] | None = None,
    services: Mapping[type, Any] | None = None,
) -> GraphRun:
    """Execute a prepared graph and return its outcome, also after a failure or stop.

    Cancelled nodes that are still running after ``grace_seconds`` are abandoned. ``events``
    receives the events as they happen. ``inputs`` are passed to the first steps, by handle.
    ``services`` are made available to nodes, by type.
    """
    pool = BlockingPool(prepared.graph.max_parallel)
    records = None if context.trace is None else StepRecords()
    run = _run_context(prepared, context, pool, grace_seconds, records)
    run = replace(run, events=events, services={**run.services, **(services or {})})
    if context.trace is not None and records is not None:
        started_ns = run.trace.readings[0]
        context.trace.follow(RecordedSteps(run.trace, records, datetime.now(UTC), started_ns))
    run.calls.events = events
    execution = GraphExecution(prepared, inputs or {}, run)
    try:
        with deadline_of(context.deadline, run.token):
            outcome = await _supervised(execution, run)
    except asyncio.CancelledError as cancelled:
        stop = CancelledError(str(cancelled) or CANCELLED)
        _close(run, ended(execution.abandoned(stop), run.trace), context)
        raise
    finally:
        pool.close()
        if records is not None:
            records.release()
    ran = ended(outcome, run.trace)
    _close(run, ran, context)
    return ran


def _run_context(
    prepared: PreparedGraph,
    context: ExecutionContext,
    pool: BlockingPool,
    grace_seconds: float,
    records: StepRecords | None,
) -> RunContext:
    calls = ExecutionGraph()
    root = calls.create_root(prepared.graph.id)
    calls.mark_running(root)
    token = context.cancellation or CancellationToken()
    return RunContext(
        run_id=calls.chain_id,
        root=root,
        trace=calls,
        scope=context.own_scope(),
        token=token,
        calls=Calls(
            graph=calls,
            journal=NullJournal(token),
            token=token,
            jitter=partial(random.uniform, -1, 1),
        ),
        services={ExecutionContext: context, BlockingPool: pool},
        slots=StepSlots(max(prepared.graph.max_parallel, DEFAULT_CEILING)),
        grace_seconds=grace_seconds,
        traced=None if records is None else records.executions,
    )


async def _supervised(execution: GraphExecution, run: RunContext) -> GraphOutcome:
    """Execute under a supervisor, so that a stop interrupts steps in progress."""
    supervisor = Supervisor(grace_seconds=run.grace_seconds)
    try:
        with TimeLimit(run.scope, run.token):
            return await supervisor.run(execution.run(), run.token, late=lambda _: None)
    except DetachedError as abandoned:
        return execution.abandoned(abandoned.stop)
    except Stop as stop:  # stopped before it started
        return execution.abandoned(stop)


def _close(run: RunContext, ran: GraphRun, context: ExecutionContext) -> None:
    """Close the trace with the outcome of the graph; a limit counts as a failure."""
    reason = _reason(ran)
    run.trace.close_open(reason or ran.status)
    if ran.stop is not None:
        run.trace.mark_halt(run.root, reason)
    elif ran.error is not None:
        run.trace.mark_failure(run.root, type(ran.error).__name__, reason)
    else:
        run.trace.mark_success(run.root, 0)
    if context.trace is not None:
        status = "failed" if ran.status == "halted" else ran.status
        context.trace.finish(status, error=reason, at=datetime.now(UTC))


def _reason(ran: GraphRun) -> str | None:
    if ran.stop is not None:
        return str(ran.stop)
    return None if ran.error is None else message_of_error(ran.error)
