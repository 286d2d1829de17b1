"""Executes one step: starts or replays it, charges it, runs its node, and records its end.

The end is recorded in the journal and in the trace. A step that an earlier execution of the run
finished is replayed: its outcome comes from the journal. A step that was interrupted is executed
again and counts as the same step.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.ledger import Holder, Scope
from caseworker.core.budget.stops import HandOver, Stop
from caseworker.core.budget.usage import BudgetExceededError, Charge, CheckedCharge
from caseworker.core.graph.facts import NEXT, RUNNING, StepStatus
from caseworker.core.trace.frozen_json import FrozenJson, thawed
from caseworker.core.trace.node import ABANDONED
from caseworker.engine.attempt import NO_RESULT, last_of, meaning_of
from caseworker.engine.budget_wait import reserved
from caseworker.engine.context import (
    ExecutionResult,
    FlowContext,
    GraphView,
    Outputs,
    RunContext,
)
from caseworker.engine.events import (
    LATE_RESULT,
    STEP_COMPLETED,
    STEP_ERROR,
    STEP_RESUMED,
    STEP_SKIPPED,
    STEP_STARTED,
    Event,
)
from caseworker.engine.ports import CallOutcome, Entry, Journal, Recorded
from caseworker.engine.prepared import PreparedStep
from caseworker.engine.recovery import Recovery, step_outputs
from caseworker.engine.report import (
    Routing,
    StepBrokenError,
    StepReport,
    class_of,
    cut_off_status,
    detach_inside,
    emit_cut_off,
    emit_end,
    failure_of,
)
from caseworker.engine.step_path import StepPath
from caseworker.engine.step_values import StepValues
from caseworker.engine.supervision import TimeLimit
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
            report.key = step.record_key if path is step.path else path.record_key
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
                    task = asyncio.current_task()
                    recovering: Coroutine[Any, Any, Outputs] | None = None
                    try:
                        try:
                            result: Any = step.work.node.execute(step.work.data, inputs, context)
                            if type(result) is not ExecutionResult:
                                is_stream = hasattr(result, "__aiter__")
                                result = await (last_of(result, context) if is_stream else result)
                        except BaseException as error:
                            raise meaning_of(error, context, task)  # noqa: B904
                        if type(result) is not ExecutionResult:
                            raise StepBrokenError(NO_RESULT)
                        outputs = result.outputs
                    except Exception as error:
                        if step.policy is None:
                            raise
                        recovery = Recovery(step, step.policy, inputs, context, report)
                        recovering = recovery.outputs(error)
                    if recovering is not None:
                        outputs = await recovering
                elif step.sub_budget is None:
                    outputs = await step_outputs(step, inputs, context, report)
                else:
                    outputs = await self._in_budget(step.sub_budget, step, report, inputs, context)
            self._completed(report, path, outputs)
        except Exception as error:
            self._failed(step, report, path, error)
        except BaseException as stop:
            self._end_interrupted(step, report, path, stop)
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
        report.node, report.status, report.started_ns = node, RUNNING, self._readings[0]
        if self._journal is not None:
            value = report.failed_before
            self._journal.note(node, Entry(call_key=report.key, charge=report.charge, value=value))
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
            return self._values.frozen(path.text, outputs)[1]
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
            return await step_outputs(step, inputs, context, report)

    def _completed(self, report: StepReport, path: StepPath, outputs: Outputs) -> None:
        node = report.node
        if self._journal is not None:
            # First, because it may reject the outputs: then the step fails and has not ended yet.
            stored: FrozenJson | dict[str, Any] = dict(outputs)
            if self._values is not None:
                stored, report.sizes = self._values.frozen(path.text, outputs)
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

    def _end_interrupted(
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

    def forbid_new_work(self, step_id: str) -> None:
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

    def emit_late_result(self, step_id: str, report: StepReport, dropped: object) -> None:
        """Emit the event that an abandoned step returned a result, which was dropped."""
        if self._events is not None:
            path, node = self.path_of(step_id), report.node or None
            self._events.emit(Event(type=LATE_RESULT, step_id=path.text, node_id=node))

    def allow_new_work(self, step_id: str) -> None:
        """Allow new steps and calls again inside a cancelled step whose task has ended."""
        self._detached.end(self.path_of(step_id).inside())


def _ended_well(report: StepReport, outputs: FrozenJson | dict[str, Any]) -> Entry:
    """Build the journal entry of a step that produced outputs, directly or by its error policy."""
    if report.recovered_by is None or report.error is None:
        outcome = CallOutcome.RESULT
        return Entry(call_key=report.key, charge=report.charge, outcome=outcome, value=outputs)
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
