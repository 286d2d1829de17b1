"""Executes a prepared graph for a caller in Python: its limits, its stop and its trace joined."""

import random
from datetime import UTC, datetime

from app.control.stops import Stop
from app.engine.calls import Calls
from app.engine.cancellation import CancellationToken
from app.engine.context import ExecutionContext
from app.engine.driver import GraphExecution
from app.engine.null_journal import NullJournal
from app.engine.prepared import PreparedGraph
from app.engine.report import GraphOutcome, message_of_error
from app.engine.run_context import RunContext
from app.engine.step_records import StepRecords
from app.engine.step_slots import DEFAULT_CEILING, StepSlots
from app.engine.supervision import DetachedError, Supervisor
from app.engine.timing import seconds_of
from app.nodes.blocking import BlockingPool
from app.nodes.function import Caller
from app.runtime_api.results import GraphRun, ended
from app.trace.execution_graph import ExecutionGraph
from app.trace.step_trace import RecordedSteps


async def execute(
    prepared: PreparedGraph, context: ExecutionContext, *, grace_seconds: float
) -> GraphRun:
    """Execute a graph and return how it ended, whatever happened in it."""
    pool = BlockingPool(prepared.graph.max_parallel)
    notes = None if context.trace is None else StepRecords()
    run = _run_context(prepared, context, pool, grace_seconds, notes)
    if context.trace is not None and notes is not None:
        started_ns = run.trace.readings[0]
        context.trace.follow(RecordedSteps(run.trace, notes, datetime.now(UTC), started_ns))
    try:
        outcome = await _supervised(GraphExecution(prepared, {}, run), run)
    finally:
        pool.close()
        if notes is not None:
            notes.release()
    ran = ended(outcome, run.trace)
    _close(run, ran, context)
    return ran


def caller_of(context: ExecutionContext) -> Caller:
    """Return what the caller of a graph hands to its nodes."""
    return Caller(
        session=context.session,
        input=context.input,
        upstream=context.upstream,
        trace=context.trace,
    )


def _run_context(
    prepared: PreparedGraph,
    context: ExecutionContext,
    pool: BlockingPool,
    grace_seconds: float,
    notes: StepRecords | None,
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
        calls=Calls(graph=calls, journal=NullJournal(token), token=token, jitter=_jitter),
        services={Caller: caller_of(context), BlockingPool: pool},
        slots=StepSlots(max(prepared.graph.max_parallel, DEFAULT_CEILING)),
        grace_seconds=grace_seconds,
        notes=None if notes is None else notes.executions,
    )


def _jitter() -> float:
    return random.uniform(-1, 1)


async def _supervised(execution: GraphExecution, run: RunContext) -> GraphOutcome:
    """Execute, so that a stop reaches what is in flight."""
    supervisor = Supervisor(grace_seconds=run.grace_seconds)
    try:
        with seconds_of(run.scope, run.token):
            return await supervisor.run(execution.run(), run.token, late=lambda _: None)
    except DetachedError as abandoned:
        return execution.abandoned(abandoned.stop)
    except Stop as stop:  # it was stopped before it began
        return execution.abandoned(stop)


def _close(run: RunContext, ran: GraphRun, context: ExecutionContext) -> None:
    """End the trace with the graph; a limit counts as a failure there (spec, section 2)."""
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
