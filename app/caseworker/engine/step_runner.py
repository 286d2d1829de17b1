"""Executes one step: starts or replays it, charges it, runs its node, and records its end.

The end is recorded in the journal and in the trace. A step that an earlier execution of the run
finished is replayed: its outcome comes from the journal. A step that was interrupted is executed
again and counts as the same step.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.ledger import Holder, Scope
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.budget.stops import HandOver, Stop
from caseworker.core.budget.usage import BudgetExceededError, Charge, CheckedCharge
from caseworker.core.graph.facts import NEXT, RUNNING, StepStatus
from caseworker.core.trace.frozen_json import FrozenJson, frozen_object, thawed
from caseworker.core.trace.node import ABANDONED
from caseworker.engine.budget_wait import reserved
from caseworker.engine.cancellation import is_being_cancelled
from caseworker.engine.context import (
    Execution,
    ExecutionResult,
    FlowContext,
    GraphView,
    NodeEvent,
    Outputs,
    RunContext,
)
from caseworker.engine.events import (
    LATE_RESULT,
    RESERVED,
    STEP_COMPLETED,
    STEP_ERROR,
    STEP_RESUMED,
    STEP_SKIPPED,
    STEP_STARTED,
    Event,
)
from caseworker.engine.ports import CallOutcome, Entry, Journal, Recorded
from caseworker.engine.prepared import BoundNode, PreparedStep
from caseworker.engine.recovery import Recovery, note_failed
from caseworker.engine.report import (
    RecordedFailureError,
    Routing,
    StepBrokenError,
    StepReport,
    StepTimeoutError,
    class_of,
    cut_off_status,
    detach_inside,
    emit_cut_off,
    emit_end,
    failure_of,
)
from caseworker.engine.step_path import StepPath
from caseworker.engine.step_values import StepValues
from caseworker.engine.supervision import TimeLimit, detach, until_done
from caseworker.platform.logs.errors import message_of_error

log = structlog.get_logger(__name__)

ONE_STEP: Charge = CheckedCharge({Dimension.STEPS: 1})

CANCELLED = "The task that executes it was cancelled."
"""Stop reason for a step that ended without a known stop or failure."""


class StepRunner:
    """Executes the steps of one graph."""

    def __init__(
        self,
        run: RunContext,
        parent: str,
        scope: Scope,
        routing: Routing,
        values: StepValues | None,
    ) -> None:
        """Execute steps below the CallNode ``parent``.

        ``values`` enforces the size limits on outputs; None means no limits.
        """
        self._run = run
        # Attributes are cached here: looking them up per step costs a tenth of the step's time.
        self._trace, self._token, self._journal = run.trace, run.token, run.journal
        self._events, self._readings = run.events, run.trace.readings
        self._detached, self._activity = run.calls.detached, run.calls.activity
        self._in_span, self._frontier = run.calls.in_span, run.calls.frontier
        self._parent = parent
        self._scope = scope
        self._tracked = scope.queue.tracked
        self.holder = Holder()
        """Identifies the step that runs in the driver's task as the one that makes reservations."""
        self._routing = routing
        self._values = values
        self.within, self.path_of = routing.within, routing.path_of

    async def execute(self, step: PreparedStep, report: StepReport, view: GraphView) -> None:
        """Execute a step, or replay it from the journal, and set its outcome in ``report``.

        A failure of the step is not raised. The token is checked before and after the step.

        Raises:
            Stop: a limit or a cancel request refused or interrupted the step.
        """
        path = step.path if self.within is None else self.within.step(step.step.id)
        journal, recorded = self._journal, None
        if journal is not None:
            report.key = path.record_key
            recorded = journal.recorded(report.key)
            if recorded is not None and report.recall(recorded):
                report.sizes = self._sizes_of(path, report.outputs) or {}
                return
        if recorded is None:
            if self._token.is_delaying:
                await self._frontier(path)
            if self._activity.ending:
                self._activity.check(path)
        if self._token.stop is not None:
            self._token.check()
        if self._detached.areas:
            self._detached.check(path)
        if self._activity.is_held:
            await self._activity.start(path)
        self._activity.working[path.text] = path
        try:
            if journal is not None:
                await journal.barrier(external=False)  # also polls for missed cancel requests
                if self._token.stop is not None:
                    self._token.check()
                if self._activity.is_held:
                    await self._activity.start(path)
            try:
                context = self._start(step, report, path, view, recorded)
            except BudgetExceededError as refused:
                # Reservations may hold the step budget only temporarily: queue for it, then start.
                await self._charge_after_queueing(refused, path)
                context = self._start(step, report, path, view, recorded, charged=True)
            if recorded is not None and not step.work.replays:
                await self._frontier(path)
                self._activity.check(path)
            inputs = self._routing.inputs_of(step.step.id)
            with self._in_span(context.trace_parent):
                if step.direct and report.failed_before is None:
                    # Fast path: saves three coroutines per step, a measurable share of its time.
                    failure: Exception | None = None
                    try:
                        execution = _begin(step.work, inputs, context)
                        if type(execution) is ExecutionResult:
                            outputs = execution.outputs
                        else:
                            outputs = await _end_of(execution, context)
                    except Exception as error:
                        if step.policy is None:
                            raise
                        failure = error
                    if failure is not None and step.policy is not None:
                        recovery = Recovery(step, step.policy, inputs, context, report, _in_time)
                        recovering = recovery.outputs(failure)
                        failure = None  # its traceback holds this frame
                        outputs = await recovering
                elif step.sub_budget is None:
                    outputs = await _outputs_of(step, inputs, context, report)
                else:
                    outputs = await self._in_budget(step.sub_budget, step, report, inputs, context)
            self._completed(report, path, outputs)
        except Exception as error:
            self._failed(step, report, path, error)
        except BaseException as stop:
            self._cut_off(step, report, path, stop)
            raise
        finally:
            self._activity.working.pop(path.text, None)
            if self._activity.is_held:
                self._activity.changed()
            if self._tracked:
                self._release_left(path)
        if self._token.stop is not None:
            self._token.check()

    def _start(
        self,
        step: PreparedStep,
        report: StepReport,
        path: StepPath,
        view: GraphView,
        recorded: Recorded | None,
        *,
        charged: bool = False,
    ) -> FlowContext:
        """Charge a step, create its CallNode, and journal and emit its start.

        If ``recorded`` is an interrupted start of this run, the step is resumed and not charged
        again.
        """
        if recorded is None or recorded.imported:
            kind = STEP_STARTED
            if not charged:
                self._scope.charge(ONE_STEP)
            report.charge = ONE_STEP
        else:
            kind = STEP_RESUMED
            report.failed_before = recorded.value
        self.holder.path = path
        node = None if recorded is None else self._imported_open_node(recorded)
        if node is None:
            node = self._trace.begin_step(self._parent, path.text, step.metadata)
        report.node = node
        report.status, report.started_ns = RUNNING, self._readings[0]
        if self._journal is not None:
            self._journal.note(node, report.entry(value=report.failed_before))
        if self._events is not None:
            self._events.emit(Event(type=kind, step_id=path.text, node_id=node))
            self._run.started_steps[path] = node
        return FlowContext(self._run, view, step.step.id, path, node, self._scope, report.keep)

    def _imported_open_node(self, recorded: Recorded) -> str | None:
        """Return the open CallNode that was imported from another run for this step, if any."""
        is_resumed = recorded.imported and self._trace.mark_running(recorded.node_id)
        return recorded.node_id if is_resumed else None

    async def _charge_after_queueing(self, refused: BudgetExceededError, path: StepPath) -> None:
        """Wait in the reservation queue to charge a step that a reservation crowded out.

        Raises ``refused`` if no reservation caused the refusal.
        """
        if not refused.cause.reserved:
            raise refused
        at = partial(self._run.calls.activity.waits, path)
        (await reserved(self._scope, ONE_STEP, tracked=False, at=at)).settle(ONE_STEP)

    def _release_left(self, path: StepPath) -> None:
        """Release the unsettled reservations of an ended step, because no code will settle them."""
        inside = path.inside()
        self._scope.release_left(lambda holder: holder == path or holder in inside)

    def _sizes_of(self, path: StepPath, outputs: Outputs) -> Mapping[str, int] | None:
        """Return the sizes of outputs in bytes, by handle; None if they cannot be stored."""
        if self._values is None or not outputs:
            return {}
        try:
            return _sizes(self._values.frozen(path.text, outputs))
        except ValueError:
            return None

    def _storable_outputs(self, report: StepReport, path: StepPath) -> Outputs:
        """Return the partial outputs of a failed or interrupted step; empty if not storable."""
        outputs = report.so_far()
        return {} if self._sizes_of(path, outputs) is None else outputs

    def recorded(self, step_id: str) -> Recorded | None:
        """Return the journal record of a step from an earlier execution, or None."""
        if self._journal is None:
            return None
        return self._journal.recorded(self.path_of(step_id).record_key)

    def _node_of(self, step: PreparedStep, report: StepReport, path: StepPath) -> str:
        """Return the CallNode of a step; create it for a refused step, to show the reason."""
        if not report.node:
            report.node = self._trace.begin_node(
                self._parent, "system", path.text, None, step.metadata
            )
        return report.node

    async def _in_budget(
        self,
        budget: Budget,
        step: PreparedStep,
        report: StepReport,
        inputs: Outputs,
        context: FlowContext,
    ) -> Outputs:
        """Execute a step's node in a child scope with the step's sub-budget."""
        scope = self._scope.child(step.step.id, budget)
        if self._journal is not None:
            scope.restore(self._journal.spent_below(context.path))
        context.scope = scope
        path = context.path
        with TimeLimit(
            scope, self._token, still_counts=lambda: not self._detached.covers_inside(path)
        ):
            self._token.check()
            return await _outputs_of(step, inputs, context, report)

    def _completed(self, report: StepReport, path: StepPath, outputs: Outputs) -> None:
        node = report.node
        if self._journal is not None:
            # First, because it may reject the outputs: then the step fails and has not ended yet.
            stored: FrozenJson | dict[str, Any] = dict(outputs)
            if self._values is not None:
                frozen = self._values.frozen(path.text, outputs)
                stored, report.sizes = frozen_object(frozen), _sizes(frozen)
            self._journal.note(node, _ended_well(report, stored))
        self._trace.mark_success(node)
        report.complete(outputs, self._readings[0])
        if self._events is not None:
            data: dict[str, str] = {}
            if report.recovered_by is not None and report.error is not None:
                error = message_of_error(report.error)
                data = {"recovered_by": report.recovered_by, "error": error}
            emit_end(self._run, STEP_COMPLETED, path, data)

    def _end_badly(
        self,
        report: StepReport,
        status: StepStatus,
        outputs: Outputs,
        error: Exception | None = None,
    ) -> None:
        if report.become(status, outputs, error):
            report.ended_ns = self._readings[0]
        if self._journal is not None:
            self._journal.touch()

    def _failed(
        self, step: PreparedStep, report: StepReport, path: StepPath, error: Exception
    ) -> None:
        message, kind = message_of_error(error), class_of(error)
        node, outputs = self._node_of(step, report, path), self._storable_outputs(report, path)
        if self._journal is not None and report.status is StepStatus.RUNNING:
            value = failure_of(error, outputs=dict(outputs), attempts=report.attempts)
            _note(self._journal, node, report.entry(CallOutcome.FAILURE, value))
        if self._journal is not None:
            log.warning(
                "step.failed",
                step_id=path.text,
                node_id=node,
                attempts=report.attempts,
                error_class=kind,
                error=message,
                exc_info=None if step.policy is not None else self._run.logged_with(error),
            )
        self._trace.mark_failure(node, kind, message)
        self._end_badly(report, StepStatus.FAILED, outputs, error)
        emit_end(self._run, STEP_ERROR, path, {"error_class": kind, "error": message})

    def _cut_off(
        self, step: PreparedStep, report: StepReport, path: StepPath, stop: BaseException
    ) -> None:
        """End a step that a stop, or the failure of a sibling, interrupted.

        A hand-over trips the run's token, because another process resumes the whole run.
        """
        if isinstance(stop, HandOver):
            self._token.trip(stop)
        final = self._token.stop or stop
        reason, outputs = str(final) or CANCELLED, self._storable_outputs(report, path)
        node = self._node_of(step, report, path)
        if isinstance(final, Stop) and not isinstance(final, HandOver):
            self._note_stop(node, report, final, outputs)
        self._trace.mark_halt(node, reason)
        self._end_badly(report, cut_off_status(final), outputs)
        emit_cut_off(self._run, path, reason)

    def _note_stop(self, node: str, report: StepReport, stop: Stop, outputs: Outputs) -> None:
        """Journal the stop, so that after a worker loss the step is not executed again."""
        if self._journal is not None and StepStatus.CANCELLED in NEXT[report.status]:
            value = {"stop": stop.cause.to_dict(), "outputs": dict(outputs)}
            _note(self._journal, node, report.entry(value=value))

    def cut_off(self, step_id: str) -> None:
        """Prevent new steps and calls inside a step that is about to be cancelled."""
        self._detached.begin(self.path_of(step_id).inside())

    def abandon(self, step: PreparedStep, report: StepReport) -> None:
        """Close a step whose node ignores its cancellation, and all steps inside it."""
        path = self.path_of(step.step.id)
        self._trace.mark_halt(self._node_of(step, report, path), ABANDONED)
        self._end_badly(
            report, cut_off_status(self._token.stop), self._storable_outputs(report, path)
        )
        detach_inside(self._run, path.inside())
        emit_cut_off(self._run, path, ABANDONED)

    def skipped(self, step_id: str) -> None:
        """Emit a ``step.skipped`` event for a step, at most once per run."""
        if self._events is not None:
            path = self.path_of(step_id).text
            once_key = f"{path}|{STEP_SKIPPED}"
            self._events.emit(Event(type=STEP_SKIPPED, step_id=path, once_key=once_key))

    def late(self, step_id: str, report: StepReport, dropped: object) -> None:
        """Emit the event that an abandoned step returned a result, which was dropped."""
        if self._events is not None:
            path, node = self.path_of(step_id), report.node or None
            self._events.emit(Event(type=LATE_RESULT, step_id=path.text, node_id=node))

    def over(self, step_id: str) -> None:
        """Allow new steps and calls again inside a cancelled step whose task has ended."""
        self._detached.end(self.path_of(step_id).inside())


def _sizes(frozen: Mapping[str, FrozenJson]) -> dict[str, int]:
    """Return the sizes of serialised values in bytes, by handle."""
    return {handle: value.size_bytes for handle, value in frozen.items()}


def _ended_well(report: StepReport, outputs: FrozenJson | dict[str, Any]) -> Entry:
    """Build the journal entry of a step that produced outputs, directly or by its error policy."""
    if report.recovered_by is None or report.error is None:
        return report.entry(CallOutcome.RESULT, outputs)
    made_good = failure_of(
        report.error,
        outputs=thawed(outputs),
        recovered_by=report.recovered_by,
        attempts=report.attempts,
    )
    return report.entry(CallOutcome.FAILURE, made_good)


def _note(journal: Journal, node: str, end: Entry) -> None:
    """Journal a failure or a stop; omit the partial outputs if they cannot be stored."""
    try:
        journal.note(node, end)
    except ValueError:
        journal.note(node, replace(end, value={**end.value, "outputs": {}}))


def _outputs_of(
    step: PreparedStep, inputs: Outputs, context: FlowContext, report: StepReport
) -> Coroutine[Any, Any, Outputs]:
    """Return a coroutine that executes the step and returns its outputs by handle.

    The coroutine raises the last failure if the error policy does not recover from it, or the stop
    that ended the step.
    """
    if step.policy is None:
        return _execute_node(step.work, inputs, context)
    return _under_policy(step.policy, step, inputs, context, report)


async def _under_policy(
    policy: ErrorPolicy,
    step: PreparedStep,
    inputs: Outputs,
    context: FlowContext,
    report: StepReport,
) -> Outputs:
    if report.failed_before is None:
        try:
            failed = partial(note_failed, policy, context, report, 1)
            return await _in_time(step.work, policy, inputs, context, failed)
        except Exception as error:
            failure = error
    else:
        failure = RecordedFailureError.of(report.failed_before)
    recovering = Recovery(step, policy, inputs, context, report, _in_time).outputs(failure)
    del failure  # its traceback holds this frame, which must not keep it alive
    return await recovering


async def _execute_node(
    work: BoundNode, inputs: Outputs, context: FlowContext, timeout_ms: int | None = None
) -> Outputs:
    """Execute a node once and return its outputs by handle; holds its lock, if any."""
    if work.lock is not None:
        activity = context.run.calls.activity
        async with work.lock.held(activity.waits(context.path)):
            await activity.start(context.path)
            unlocked = BoundNode(work.node, work.data)
            return await _execute_node(unlocked, inputs, context, timeout_ms)
    execution = _begin(work, inputs, context, timeout_ms)
    if type(execution) is ExecutionResult:
        return execution.outputs
    return await _end_of(execution, context)


def _begin(
    work: BoundNode, inputs: Outputs, context: FlowContext, timeout_ms: int | None = None
) -> Execution:
    """Call a node's ``execute``, and return its result, coroutine or event stream.

    Raises:
        StepTimeoutError: a synchronous node took too long; it could not be interrupted.
    """
    started = time.monotonic() if timeout_ms is not None else 0.0
    try:
        execution = work.node.execute(work.data, inputs, context)
    except BaseException as error:
        raise _meant_by(error, context)  # noqa: B904 - the same error, or one that sets its cause
    if timeout_ms is None or type(execution) is not ExecutionResult:
        return execution
    if (time.monotonic() - started) * 1000 > timeout_ms:
        raise StepTimeoutError.after(timeout_ms)
    return execution


async def _end_of(execution: Execution, context: FlowContext) -> Outputs:
    """Wait for a node's coroutine or event stream to end, and return its outputs.

    Raises:
        StepBrokenError: the node returned no ExecutionResult, or violated the node interface.
    """
    task = _task()
    try:
        if hasattr(execution, "__aiter__"):
            result = await _last_of(execution, context)
        else:
            result = await execution  # type: ignore[misc]
    except BaseException as error:
        if isinstance(error, GeneratorExit) and _task() is not task:
            raise  # this coroutine is being closed
        raise _meant_by(error, context)  # noqa: B904
    if type(result) is not ExecutionResult:
        raise StepBrokenError("The step's node returned no ExecutionResult.")
    return result.outputs


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # the garbage collector closes a coroutine outside of the event loop
        return None


def _meant_by(error: BaseException, context: FlowContext) -> BaseException:
    """Map an error of a node to a failure, a stop or a cancellation.

    Stops and cancels of this task pass through unchanged, and so does the KeyboardInterrupt of a
    user outside of the service; other BaseExceptions become a StepBrokenError. The error is
    returned, not raised, because a traceback through this frame would form a reference cycle that
    keeps the run alive.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        if is_being_cancelled():
            return error
        return StepBrokenError("The step waited for something that was cancelled.")
    if isinstance(error, Stop) or (
        isinstance(error, KeyboardInterrupt) and context.run.journal is None
    ):
        return error
    stop = _stop_in(error)
    if stop is not None:
        stop.__suppress_context__ = True
        return stop
    broken = StepBrokenError(f"The step's node ended with {message_of_error(error)}.")
    broken.__cause__ = error
    return broken


def _stop_in(error: BaseException) -> Stop | None:
    """Return the stop in an error or in an exception group of a task group, or None."""
    pending = [error]
    while pending:
        error = pending.pop()
        if isinstance(error, Stop):
            return error
        if isinstance(error, BaseExceptionGroup):
            pending += reversed(error.exceptions)
    return None


async def _last_of(stream: Any, context: FlowContext) -> ExecutionResult | None:
    """Emit the events of a stream and return its last item, the result; None if it has none."""
    result: ExecutionResult | None = None
    async with aclosing(stream) as items:
        async for item in items:
            if result is not None:
                raise StepBrokenError("The step's node continued after its result.")
            if isinstance(item, ExecutionResult):
                result = item
            else:
                _pass_on(item, context)
    return result


def _pass_on(item: Any, context: FlowContext) -> None:
    if not isinstance(item, NodeEvent):
        raise StepBrokenError("The step's node yielded an object that is not a NodeEvent.")
    if item.type in RESERVED:
        raise StepBrokenError(f"{item.type} is reserved for the engine.")
    if context.run.events is not None:
        context.run.events.emit(
            Event(
                type=item.type,
                step_id=context.path.text,
                node_id=context.trace_parent,
                data=item.data,
            )
        )


async def _in_time(
    work: BoundNode,
    policy: ErrorPolicy,
    inputs: Outputs,
    context: FlowContext,
    failed: Callable[[Exception], object],
) -> Outputs:
    """Execute a node once within the policy's timeout.

    On a timeout, ``failed`` journals the failure before the attempt is cancelled. So a worker loss
    during the cancellation does not repeat the attempt.

    Raises:
        StepTimeoutError: the attempt timed out.
    """
    if policy.timeout_ms is None:
        return await _execute_node(work, inputs, context)
    clock = asyncio.get_running_loop().time
    # Taken before ``_begin``: the timeout includes the synchronous part of the node.
    ends = clock() + policy.timeout_ms / 1000
    execution: Execution | None = None
    if work.lock is None:
        execution = _begin(work, inputs, context, policy.timeout_ms)
        if type(execution) is ExecutionResult:
            return execution.outputs  # already done: no task is needed to interrupt it
        working = _end_of(execution, context)
    else:
        working = _execute_node(work, inputs, context, policy.timeout_ms)
    attempt = asyncio.create_task(working, name=f"step {context.path}")
    try:
        await asyncio.wait({attempt}, timeout=ends - clock())
    except asyncio.CancelledError:
        await _interrupt(attempt, execution, context)
        raise
    if attempt.done():
        return attempt.result()
    late = StepTimeoutError.after(policy.timeout_ms)
    failed(late)
    cancelled = await _interrupt(attempt, execution, context)
    raise late if cancelled is None else cancelled


async def _interrupt(
    attempt: "asyncio.Task[Outputs]", execution: Execution | None, context: FlowContext
) -> asyncio.CancelledError | None:
    """Cancel an attempt and drop its result; return a cancel of this task that arrived meanwhile.

    ``execution`` is the node's coroutine or stream, if created. It is closed because the attempt
    may have been cancelled before it awaited it. An attempt that ignores its cancellation for the
    grace period is abandoned.

    Raises:
        Stop: the attempt ended with a stop, which takes precedence over the timeout.
    """
    run, inside = context.run, context.path.inside_attempt()

    def late(_: object) -> None:
        if run.events is not None:
            step_id = context.path.text
            run.events.emit(Event(type=LATE_RESULT, step_id=step_id, node_id=context.trace_parent))

    def end_detached() -> None:
        run.calls.detached.end(inside)
        run.on_abandoned_done()

    # Detach before cancelling: cleanup code must not start new steps or calls.
    run.calls.detached.begin(inside)
    attempt.cancel()
    cancelled = await until_done((attempt,), run.grace_seconds)
    # A coroutine that was never awaited would warn when it is collected. It can be closed only now:
    # while the attempt runs, it is executing.
    if attempt.cancelled() and asyncio.iscoroutine(execution):
        execution.close()
    if not attempt.done():
        # Only after the grace period, in which the attempt may still end its own calls.
        detach_inside(run, inside)
    # Last, because ``end_detached`` removes the mark from above, at once if the attempt has ended.
    detach(attempt, late, on_done=end_detached)
    error = None if not attempt.done() or attempt.cancelled() else attempt.exception()
    if isinstance(error, Stop):
        raise error
    return cancelled
