"""Executes one step: replay or begin, charge, work, end — each told to the trace and the journal.

A step that an earlier execution of the run has finished is not executed again: its outputs come
from the journal. One that was cut off is executed again and counts as the same step.
"""

from dataclasses import replace

from app.control.budget import Dimension
from app.control.ledger import Scope
from app.control.stops import HandOver, Stop
from app.control.usage import Charge
from app.engine.abandonment import inside_step
from app.engine.context import Around, FlowContext, Outputs
from app.engine.endings import ABANDONED, abandon_inside, tell_cut_off, tell_end
from app.engine.events import (
    LATE_RESULT,
    STEP_COMPLETED,
    STEP_ERROR,
    STEP_RESUMED,
    STEP_SKIPPED,
    STEP_STARTED,
    Event,
)
from app.engine.noting import Note
from app.engine.ports import CallOutcome, Entry, Journal, Recorded, step_entry
from app.engine.prepared import PreparedStep
from app.engine.report import StepReport, class_of, failure_of, said_of
from app.engine.run_context import RunContext
from app.engine.timing import seconds_of
from app.engine.working import once, under_policy
from app.kernel.lifecycle import NEXT, StepStatus

ONE_STEP: Charge = {Dimension.STEPS: 1}


class Stepping:
    """Executes the steps of one graph."""

    # What every step needs is unpacked here: looking it up again would cost a tenth of a step.
    __slots__ = (
        "_abandonment",
        "_events",
        "_journal",
        "_nodes",
        "_parent",
        "_prefix",
        "_readings",
        "_run",
        "_scope",
        "_timed",
        "_token",
        "_trace",
    )

    def __init__(self, run: RunContext, parent: str, scope: Scope, prefix: str) -> None:
        """Execute steps below the CallNode ``parent``; ``prefix`` begins their paths."""
        self._run = run
        self._trace, self._token, self._journal = run.trace, run.token, run.journal
        self._events, self._timed = run.events, run.notes is not None
        self._readings = run.trace.readings
        self._abandonment = run.calls.abandonment
        self._parent = parent
        self._scope = scope
        self._prefix = prefix
        self._nodes: dict[str, str] = {}

    async def execute(
        self, step: PreparedStep, report: StepReport, inputs: Outputs, around: Around
    ) -> None:
        """Execute a step, or take its outputs from the journal; a stop before or after it counts.

        How it ended stands in ``report``.

        Raises:
            Stop: a limit or somebody's wish keeps it from being executed, or ended it.
        """
        path = self._prefix + step.step.id
        recorded = None
        if self._journal is not None:
            recorded = self._journal.recorded(f"step:{path}")
            if recorded is not None and report.recall(recorded):
                return
        self._token.check()
        self._abandonment.check(path)
        try:
            if self._journal is not None:
                await self._pass_barrier(self._journal)
            if recorded is None:
                self._scope.charge(ONE_STEP)
                report.charge = ONE_STEP
            elif recorded.value is not None:
                report.failed_before = recorded.value
            node = self._begin(step, path, running=True)
            report.status = StepStatus.RUNNING
            if self._timed:
                report.started_ns = self._readings[0]
            if self._journal is not None or self._events is not None:
                self._tell_begun(report, path, node, recorded)
            context = FlowContext(
                self._run, around, step.step.id, path, node, self._scope, report.keep
            )
            if step.policy is None and step.sub_budget is None:
                outputs = await once(step.work, inputs, context)
            else:
                outputs = await self._limited(step, report, inputs, context)
            self._completed(report, path, node, outputs)
        except Exception as error:
            self._failed(step, report, path, error)
        except BaseException as stop:
            self._cut_off(step, report, path, stop)
            raise
        finally:
            if self._timed:
                report.ended_ns = report.ended_ns or self._readings[0]
            if self._journal is not None:
                self._journal.touch()
        self._token.check()

    def note_of(self, step: PreparedStep, report: StepReport, inputs: Outputs) -> Note:
        """Return what a trace must know of a step that has ended."""
        return self._prefix + step.step.id, self._nodes[step.step.id], step, report, inputs

    def recorded(self, step_id: str) -> Recorded | None:
        """Return what an earlier execution of the run has recorded of a step."""
        if self._journal is None:
            return None
        return self._journal.recorded(f"step:{self._prefix}{step_id}")

    async def _pass_barrier(self, journal: Journal) -> None:
        """Keep a step from beginning after a wish to stop that nobody could tell us of."""
        await journal.barrier(external=False)
        self._token.check()

    def _begin(self, step: PreparedStep, path: str, *, running: bool) -> str:
        node = self._trace.begin_node(
            self._parent, "system", path, None, step.metadata, running=running
        )
        self._nodes[step.step.id] = node
        return node

    def _tell_begun(
        self, report: StepReport, path: str, node: str, recorded: Recorded | None
    ) -> None:
        if self._journal is not None:
            self._journal.note(node, step_entry(path, report.charge, value=report.failed_before))
        if self._events is not None:
            kind = STEP_STARTED if recorded is None else STEP_RESUMED
            self._events.emit(Event(type=kind, step_id=path, node_id=node))
            self._run.begun[path] = node

    async def _limited(
        self, step: PreparedStep, report: StepReport, inputs: Outputs, context: FlowContext
    ) -> Outputs:
        """Let a step's node work inside its own budget and under its policy."""
        if step.sub_budget is None:
            return await _policed(step, report, inputs, context)
        scope = self._scope.child(step.step.id, step.sub_budget)
        if self._journal is not None:
            scope.restore(self._journal.spent_below(context.path))
        context.scope = scope
        inside = f"{context.path}/"
        with seconds_of(scope, self._token, matter=lambda: not self._abandonment.covers(inside)):
            self._token.check()
            return await _policed(step, report, inputs, context)

    def _completed(self, report: StepReport, path: str, node: str, outputs: Outputs) -> None:
        if self._journal is not None:
            self._journal.note(node, _ended_well(report, path, outputs))
        self._trace.mark_success(node, 0)
        if self._events is not None:
            data = {"recovered_by": report.recovered_by} if report.recovered_by else {}
            tell_end(self._run, STEP_COMPLETED, path, data)
        report.become(StepStatus.COMPLETED, outputs, report.error)

    def _failed(self, step: PreparedStep, report: StepReport, path: str, error: Exception) -> None:
        said, kind = said_of(error), class_of(error)
        node, outputs = self._node_of(step, path), report.so_far()
        if self._journal is not None and report.status is StepStatus.RUNNING:
            value = failure_of(error, outputs=dict(outputs))
            failure = step_entry(path, report.charge, CallOutcome.FAILURE, value)
            _note(self._journal, node, failure)
        self._trace.mark_failure(node, kind, said)
        report.become(StepStatus.FAILED, outputs, error)
        tell_end(self._run, STEP_ERROR, path, {"error_class": kind, "error": said})

    def _cut_off(
        self, step: PreparedStep, report: StepReport, path: str, stop: BaseException
    ) -> None:
        """End a step that a stop, or the failure of a sibling, has cut off.

        Where it gives the run up, the whole run goes on elsewhere, its siblings included.
        """
        if isinstance(stop, HandOver):
            self._token.trip(stop)
        final = self._token.stop or stop
        reason, outputs = str(final) or "Another step failed.", report.so_far()
        node = self._node_of(step, path)
        if isinstance(final, Stop) and not isinstance(final, HandOver):
            self._note_stop(node, report, path, final)
        self._trace.mark_halt(node, reason)
        report.become(StepStatus.CANCELLED, outputs)
        tell_cut_off(self._run, path, reason)

    def _note_stop(self, node: str, report: StepReport, path: str, stop: Stop) -> None:
        """Journal what ends the run: if its worker is lost now, nobody goes on with it."""
        if self._journal is not None and StepStatus.CANCELLED in NEXT[report.status]:
            value = {"stop": stop.cause.to_dict(), "outputs": dict(report.so_far())}
            _note(self._journal, node, step_entry(path, report.charge, value=value))

    def _node_of(self, step: PreparedStep, path: str) -> str:
        """Return the CallNode of a step; one that was refused gets it now, to show the reason."""
        return self._nodes.get(step.step.id) or self._begin(step, path, running=False)

    def cut_off(self, step_id: str) -> None:
        """Let nothing more begin inside a step, which is cancelled now."""
        self._abandonment.begin(inside_step(self._prefix + step_id))

    def abandon(self, step: PreparedStep, report: StepReport) -> None:
        """End a step whose node goes on although it was cancelled, and all that it executes."""
        path = self._prefix + step.step.id
        report.become(StepStatus.CANCELLED, report.so_far())
        self._trace.mark_halt(self._node_of(step, path), ABANDONED)
        report.ended_ns = self._readings[0]
        abandon_inside(self._run, inside_step(path))
        tell_cut_off(self._run, path, ABANDONED)

    def skipped(self, step_id: str) -> None:
        """Report a step that every path to is dead."""
        if self._events is not None:
            self._events.emit(Event(type=STEP_SKIPPED, step_id=self._prefix + step_id))

    def late(self, step_id: str, dropped: object) -> None:
        """Record that an abandoned step came to an end after all."""
        if self._events is not None:
            node = self._nodes.get(step_id)
            path = self._prefix + step_id
            self._events.emit(Event(type=LATE_RESULT, step_id=path, node_id=node))

    def over(self, step_id: str) -> None:
        """Take notice that a step that was cut off has come to its end, in whatever way."""
        self._abandonment.end(inside_step(self._prefix + step_id))


def _ended_well(report: StepReport, path: str, outputs: Outputs) -> Entry:
    """Return what is journaled of a step that has outputs; its policy may have seen to that."""
    if report.recovered_by is None or report.error is None:
        return step_entry(path, report.charge, CallOutcome.RESULT, dict(outputs))
    made_good = failure_of(report.error, outputs=dict(outputs), recovered_by=report.recovered_by)
    return step_entry(path, report.charge, CallOutcome.FAILURE, made_good)


def _note(journal: Journal, node: str, end: Entry) -> None:
    """Journal a bad end; what the step had so far is left out if it cannot be stored."""
    try:
        journal.note(node, end)
    except ValueError:
        journal.note(node, replace(end, value={**end.value, "outputs": {}}))


async def _policed(
    step: PreparedStep, report: StepReport, inputs: Outputs, context: FlowContext
) -> Outputs:
    if step.policy is None:
        return await once(step.work, inputs, context)
    return await under_policy(step, step.policy, inputs, context, report)
