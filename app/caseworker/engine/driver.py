"""Executes a graph by carrying out the orders of the scheduler.

The driver does not raise failures or stops that occur inside a graph. It returns the outcome of the
graph, with the outputs that its steps produced until then.

If only one step is ready, it runs in the driver's own task. If several are ready, each runs in its
own task while slots are free. The first failure or stop cancels the other steps; the driver waits
for them. A step that ignores its cancellation for the grace period is abandoned, and its result is
dropped.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeGuard

from caseworker.core.budget.ledger import HOLDER, Holder
from caseworker.core.budget.stops import Stop, StopKind
from caseworker.core.graph.facts import FAILED, Order, StartStep, StepFailed, StepStatus
from caseworker.core.graph.graph import GraphError
from caseworker.core.graph.scheduler import Scheduler
from caseworker.core.trace.node import ANOTHER_FAILED
from caseworker.engine.calls import Calls
from caseworker.engine.context import FlowContext, Outputs, RunContext
from caseworker.engine.materializer import GraphRuntime, Materializer
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import (
    GraphOutcome,
    Routing,
    StepReport,
    failure_in,
    is_open,
    stop_in,
)
from caseworker.engine.step_runner import StepRunner
from caseworker.engine.step_values import StepValues, Total
from caseworker.engine.supervision import detach, forget_failure, until_done


class GraphExecution:
    """One execution of a graph, either the outermost or a nested one."""

    def __init__(
        self,
        prepared: PreparedGraph,
        inputs: Outputs,
        run: RunContext,
        parent_context: FlowContext | None = None,
        total: Total | None = None,
    ) -> None:
        """Prepare to execute a graph; ``inputs`` go to the steps without incoming flow edges.

        ``parent_context`` is the step that encloses a nested graph; None for the outermost graph.
        ``total`` limits the combined size of the steps' outputs. For the outermost graph, the limit
        on the run's result is used instead.
        """
        limits, parent, scope = run.limits, run.root, run.scope
        if parent_context is not None:
            parent, scope = parent_context.trace_parent, parent_context.scope
        elif limits is not None:
            total = Total.of_run(limits)
        max_bytes = math.inf if limits is None else limits.max_value_bytes
        self._routing = Routing(
            prepared, inputs, None if parent_context is None else parent_context.path, max_bytes
        )
        values = None if limits is None else StepValues(limits, total)
        self._step_runner = StepRunner(run, parent, scope, self._routing, values)
        self._prepared, self._steps = prepared, prepared.steps
        self._run, self._slots, self._turns = run, run.slots, run.slots.turns
        # Steps get half the grace period, so they are abandoned before the task that awaits them.
        self._grace_seconds = run.grace_seconds / 2
        self._reports = self._routing.reports
        self._incoming = prepared.topology.incoming
        self._outcome = GraphOutcome(self._reports)
        self._materializer: Materializer | None = None
        self._scheduler = Scheduler(prepared.topology)
        self._ready: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: list[str] = []
        self._slots_used = 0
        self._woken: asyncio.Future[None] | None = None
        if run.traced is not None:
            run.traced.append(self._routing)

    @classmethod
    def inside(
        cls,
        context: FlowContext,
        prepared: PreparedGraph,
        inputs: Outputs,
        total: Total | None = None,
    ) -> "GraphExecution":
        """Prepare to execute a nested graph in the budget scope and the slot of a step."""
        run = replace(context.run, grace_seconds=context.run.grace_seconds / 2)
        return cls(prepared, inputs, run, context, total)

    def abandoned(self, stop: Stop) -> GraphOutcome:
        """Close all steps and return the outcome; the graph was interrupted or never started."""
        for step_id, report in self._reports.items():
            if report.status is StepStatus.RUNNING:
                self._step_runner.forbid_new_work(step_id)
                self._abandon(step_id)
        self._recall(stop)
        return replace(self._outcome, stop=stop)

    def outputs(self) -> Mapping[str, Outputs]:
        """Return the outputs produced so far, by step ID and handle."""
        return self._routing.outputs()

    @property
    def calls(self) -> Calls:
        """Gateway through which the steps make their calls."""
        return self._run.calls

    @property
    def reports(self) -> Mapping[str, StepReport]:
        """State of each step, by step ID."""
        return self._reports

    async def result(self) -> Mapping[str, Outputs]:
        """Execute the graph and return the outputs of its steps, by step ID and handle.

        Raises:
            Exception: the failure of a step.
            Stop: a limit or a cancel request ended the graph.
        """
        outcome = await self.run()
        if outcome.stop is not None:
            raise outcome.stop
        if outcome.error is not None:
            raise outcome.error
        return self.outputs()

    async def run(self) -> GraphOutcome:
        """Execute the graph and return its outcome, including a failure or a stop.

        Raises:
            asyncio.CancelledError: this task was cancelled without a stop of the run.
        """
        self._slots.widen(self._prepared.graph.max_parallel)
        # A nested graph runs in the task of its step: restore that step's holder afterwards.
        outer_holder = HOLDER.get()
        HOLDER.set(self._step_runner.holder)
        try:
            await self._work()
        except GraphError as error:
            self._outcome.error = error
        except Stop as stop:
            self._outcome.stop = self._run.token.stop or stop
            self._recall(self._outcome.stop)
        except asyncio.CancelledError:
            if self._run.token.stop is None:
                raise
            # The supervisor cancels the run's task after a stop: report the stop.
            self._outcome.stop = self._run.token.stop
            self._recall(self._outcome.stop)
        finally:
            HOLDER.set(outer_holder)
            self._slots.forget(self._wake)
        return self._outcome

    def upstream(self, step_id: str) -> Mapping[str, Outputs]:
        """Return the outputs of a step's predecessors along flow edges, by step ID."""
        reports, outputs_by_step = self._reports, {}
        for edge in self._incoming.get(step_id, ()):
            outputs = reports[edge.source].outputs
            if edge.source_handle in outputs:
                outputs_by_step[edge.source] = outputs
        return outputs_by_step

    def runtime(self, context: FlowContext) -> GraphRuntime:
        """Return an object through which a step can query its graph."""
        if self._materializer is None:
            self._materializer = Materializer(self._prepared)
        return GraphRuntime(self._materializer, context)

    def _recall(self, stop: Stop | None = None) -> None:
        """Restore from the journal the state of steps that this execution did not reach.

        With a ``stop``, steps that an earlier execution had started but not ended are marked as
        interrupted by it.
        """
        for step_id, report in self._reports.items():
            recorded = self._step_runner.recorded(step_id)
            if report.status is StepStatus.NOT_STARTED and recorded is not None:
                report.recall(recorded, stop)

    async def _work(self) -> None:
        """Carry out the scheduler's orders until no step is running and none is ordered."""
        if await self._ended_before():
            return
        self._take(self._scheduler.begin())
        while self._ready or self._tasks:
            if len(self._ready) == 1 and not self._tasks:
                step_id = self._ready.pop(0)
                if self._turns.is_over(self._slots):
                    await self._next_turn(step_id)
                report = self._reports[step_id]
                await self._step_runner.execute(self._steps[step_id], report, self)
                self._take(self._tell(step_id, report))
            else:
                await self._work_side_by_side()
        if not self._steps:
            self._run.token.check()  # otherwise each step checks the token
        stuck = not self._scheduler.done or (self._steps and not self._reports)
        if stuck and self._outcome.error is None:
            raise GraphError("Some steps wait for each other.")

    async def _ended_before(self) -> bool:
        """Return whether an earlier execution journaled the failure or the stop of a step.

        Then the graph has ended: interrupted steps are not executed again. If a budget limit was
        the stop, steps that were already running then repeat their recorded work.
        """
        if self._run.journal is None or not self._run.journal.resumes:
            return False
        records = (self._step_runner.recorded(step_id) for step_id in self._reports)
        present = [recorded for recorded in records if recorded is not None]
        self._outcome.stop = next(filter(None, map(stop_in, present)), None)
        self._outcome.error = next(filter(None, map(failure_in, present)), None)
        if self._outcome.stop is None and self._outcome.error is None:
            return False
        stop = self._outcome.stop
        limit = stop if stop is not None and _is_limit(stop) else None
        self._recall()
        if limit is not None:
            self._ready.extend(filter(self._began_before, self._reports))
            await self._let_end(limit)
            self._run.token.check()
        return True

    async def _work_side_by_side(self) -> None:
        """Start ready steps while slots are free, then process the next steps that end."""
        try:
            self._start_ready()
            await self._something_ended()
            while self._ended:
                step_id = self._ended.pop(0)
                self._free_slot()
                self._tasks.pop(step_id).result()
                orders = self._tell(step_id, self._reports[step_id])
                if self._outcome.error is not None:
                    cancelled = await self._drain(ANOTHER_FAILED)
                    if cancelled is not None:
                        raise cancelled
                self._take(orders)
        except BaseException as ended:
            if _is_limit(ended):
                await self._let_end(ended)
            # A cancel that arrives during the drain is dropped: ``ended`` is the original reason.
            await self._drain(str(ended))
            raise

    def _start_ready(self) -> None:
        create_task = asyncio.get_running_loop().create_task
        while self._ready and self._take_slot():
            step_id = self._ready.pop(0)
            self._tasks[step_id] = create_task(self._execute_apart(step_id))

    async def _execute_apart(self, step_id: str) -> None:
        try:
            # The task has its own copy of the context, so it needs its own mutable holder.
            HOLDER.set(Holder(self._step_runner.path_of(step_id)))
            if self._turns.is_over(self._slots):
                await self._next_turn(step_id)
            step, report = self._steps[step_id], self._reports[step_id]
            await self._step_runner.execute(step, report, self)
        finally:
            self._ended.append(step_id)
            self._wake()

    async def _next_turn(self, step_id: str) -> None:
        # The step counts as work: a wait beside it must not suspend or release the run.
        with self._run.calls.activity.works(self._step_runner.path_of(step_id)):
            await self._turns.next()

    async def _something_ended(self) -> None:
        if not self._ended:
            self._woken = asyncio.get_running_loop().create_future()
            try:
                await self._woken
            finally:
                self._woken = None

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _take_slot(self) -> bool:
        """Acquire the graph's own slot, then slots of the run's pool; False if none is free."""
        if self._slots_used and not self._slots.acquire(self._wake):
            return False
        self._slots_used += 1
        return True

    def _free_slot(self) -> None:
        self._slots_used -= 1
        if self._slots_used:
            self._slots.release()

    async def _let_end(self, stop: Stop) -> None:
        """After a budget stop, wait for the calls in flight of the steps that were running.

        These calls are already paid for; the steps start nothing else, and their waits end. Steps
        that an earlier execution had started are started again for this, to repeat their
        recorded work. A stop of the run ends the wait.
        """
        self._ready = list(filter(self._began_before, self._ready))
        within = self._routing.within
        stopping = self._run.calls.activity.stopping(None if within is None else within.inside())
        with stopping as stop_area:
            stop_area(stop)
            await self._until_steps_ended()

    async def _until_steps_ended(self) -> None:
        try:
            while (self._tasks or self._ready) and self._run.token.stop is None:
                self._start_ready()
                await self._something_ended()
                while self._ended:
                    step_id = self._ended.pop(0)
                    self._free_slot()
                    forget_failure(self._tasks.pop(step_id))
        except asyncio.CancelledError:
            return  # the caller drains the remaining steps

    def _began_before(self, step_id: str) -> bool:
        """Return whether an earlier execution of the run started a step without ending it."""
        recorded = self._step_runner.recorded(step_id)
        return recorded is not None and is_open(recorded)

    async def _drain(self, reason: str) -> asyncio.CancelledError | None:
        """Cancel all running steps and wait for the grace period; abandon those that do not end.

        ``reason`` is recorded as their stop reason, unless the run has its own stop. Return a
        cancel of this task that arrived in the meantime.
        """
        tasks, self._tasks = self._tasks, {}
        self._ready.clear()
        for step_id, task in tasks.items():
            # Detach before cancelling: cleanup code must not start new steps or calls.
            self._step_runner.forbid_new_work(step_id)
            task.cancel(reason)
        cancelled = await until_done(tasks.values(), self._grace_seconds)
        for step_id, task in tasks.items():
            self._free_slot()
            if task.done():
                forget_failure(task)
                self._step_runner.allow_new_work(step_id)
            else:
                self._abandon(step_id)
                detach(
                    task,
                    partial(self._step_runner.emit_late_result, step_id, self._reports[step_id]),
                    on_done=partial(self._on_abandoned_end, step_id),
                )
        self._ended.clear()
        return cancelled

    def _on_abandoned_end(self, step_id: str) -> None:
        """Handle the end of an abandoned step."""
        self._step_runner.allow_new_work(step_id)
        self._run.on_abandoned_done()

    def _abandon(self, step_id: str) -> None:
        self._step_runner.abandon(self._steps[step_id], self._reports[step_id])

    def _take(self, orders: list[Order]) -> None:
        for order in orders:
            if type(order) is StartStep:
                self._ready.append(order.step_id)
            else:
                self._reports[order.step_id].become(StepStatus.SKIPPED)
                self._step_runner.skipped(order.step_id)

    def _tell(self, step_id: str, report: StepReport) -> list[Order]:
        """Report the end of a step to the scheduler; return its orders."""
        if report.status is FAILED:
            if self._outcome.error is None:
                self._outcome.error = report.error
            return self._scheduler.apply(StepFailed(step_id))
        return self._scheduler.finished(step_id, report.outputs)


def _is_limit(ended: BaseException) -> TypeGuard[Stop]:
    """Return whether a budget limit other than time ended a step.

    Such a limit refuses new work only; a time limit also interrupts work in flight.
    """
    if not isinstance(ended, Stop) or ended.cause.kind is not StopKind.BUDGET:
        return False
    return not ended.cause.interrupts
