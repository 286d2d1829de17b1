"""Executes a graph: asks the scheduler what is next and does it.

The driver never raises for what happens inside a graph. It returns how the graph ended, with
whatever its steps produced until then.

Where one step alone can work, it works inline, in the driver's own task. Where several can, each
gets a task, as far as there are slots. The first failure or stop cancels the others and waits for
them; what ignores that for its grace period is abandoned, and its result is dropped.
"""

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from caseworker.control.budget import Dimension
from caseworker.control.ledger import HOLDER, Holder
from caseworker.control.stops import Stop, StopKind
from caseworker.engine.context import FlowContext, Outputs, RunContext
from caseworker.engine.materializer import GraphRuntime, Materializer
from caseworker.engine.ports import CallOutcome
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import GraphOutcome, Routing, StepReport, failure_in, stop_in
from caseworker.engine.step_runner import StepRunner
from caseworker.engine.step_values import StepValues, Total
from caseworker.engine.supervision import detach, forget_failure, until_done
from caseworker.kernel.facts import FAILED, Order, StartStep, StepFailed, StepStatus
from caseworker.kernel.graph import GraphError
from caseworker.kernel.scheduler import Scheduler
from caseworker.trace.call_tree import ANOTHER_FAILED

TURN_SECONDS = 0.005
"""How long steps that wait for nothing may keep the event loop from everybody else."""


class GraphExecution:
    """One execution of one graph."""

    def __init__(
        self,
        prepared: PreparedGraph,
        inputs: Outputs,
        run: RunContext,
        around: FlowContext | None = None,
        total: Total | None = None,
    ) -> None:
        """Prepare to execute a graph; ``inputs`` go to the steps that no flow edge leads to.

        ``around`` is the step that executes the graph; None: it is the outermost one. ``total``
        limits what its steps produce together; that of the outermost one is the run's result.
        """
        limits, parent, scope = run.limits, run.root, run.scope
        if around is not None:
            parent, scope = around.trace_parent, around.scope
        elif limits is not None:
            total = Total.of_run(limits)
        most = math.inf if limits is None else limits.max_value_bytes
        self._routing = Routing(prepared, inputs, None if around is None else around.path, most)
        values = None if limits is None else StepValues(limits, total)
        self._step_runner = StepRunner(run, parent, scope, self._routing, values)
        self._prepared, self._steps = prepared, prepared.steps
        self._run = run
        # A step that is cut off gets less time to end than whatever waits for this graph.
        self._grace_seconds = run.grace_seconds / 2
        self._reports = self._routing.reports
        self._incoming = prepared.topology.incoming
        self._outcome = GraphOutcome(self._reports)
        self._materializer: Materializer | None = None
        self._scheduler = Scheduler(prepared.topology)
        self._ready: deque[str] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: deque[str] = deque()
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
        """Prepare to execute a graph inside a step, within its limits and in its slot."""
        run = replace(context.run, grace_seconds=context.run.grace_seconds / 2)
        return cls(prepared, inputs, run, context, total)

    def abandoned(self, stop: Stop) -> GraphOutcome:
        """Return how the graph stands although it is still being executed, or never was."""
        for step_id, report in self._reports.items():
            if report.status is StepStatus.RUNNING:
                self._step_runner.cut_off(step_id)
                self._abandon(step_id)
        self._recall(stop)
        return replace(self._outcome, stop=stop)

    def outputs(self) -> Mapping[str, Outputs]:
        """Return what the steps have produced so far, by step and handle."""
        return self._routing.outputs()

    @property
    def reports(self) -> Mapping[str, StepReport]:
        """How each step stands."""
        return self._reports

    async def result(self) -> Mapping[str, Outputs]:
        """Execute the graph and return what its steps produced, by step and handle.

        Raises:
            Exception: what made one of its steps fail.
            Stop: a limit or a cancel request ended it.
        """
        outcome = await self.run()
        if outcome.stop is not None:
            raise outcome.stop
        if outcome.error is not None:
            raise outcome.error
        return self.outputs()

    async def run(self) -> GraphOutcome:
        """Execute the graph."""
        self._run.slots.widen(self._prepared.graph.max_parallel)
        around = HOLDER.get()
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
            self._outcome.stop = self._run.token.stop
            self._recall(self._outcome.stop)
        finally:
            HOLDER.set(around)
            self._run.slots.forget(self._wake)
        return self._outcome

    def upstream(self, step_id: str) -> Mapping[str, Outputs]:
        """Return what the steps produced from which flow edges lead to one, by step."""
        reports, found = self._reports, {}
        for edge in self._incoming.get(step_id, ()):
            outputs = reports[edge.source].outputs
            if edge.source_handle in outputs:
                found[edge.source] = outputs
        return found

    def runtime(self, context: FlowContext) -> GraphRuntime:
        """Return what a step may ask of the graph."""
        if self._materializer is None:
            self._materializer = Materializer(self._prepared)
        return GraphRuntime(self._materializer, context)

    def _recall(self, stop: Stop | None = None) -> None:
        """Keep what steps had produced before the run was stopped, and then not got to again.

        With the ``stop``, what had begun and not ended by then is cut off.
        """
        for step_id, report in self._reports.items():
            recorded = self._step_runner.recorded(step_id)
            if report.status is StepStatus.NOT_STARTED and recorded is not None:
                report.recall(recorded, stop)

    async def _work(self) -> None:
        """Obey the scheduler until nothing runs and nothing more is ordered."""
        if await self._ended_before():
            return
        self._take(self._scheduler.begin())
        clock = asyncio.get_running_loop().time
        turn_ends = clock() + TURN_SECONDS
        while self._ready or self._tasks:
            if len(self._ready) == 1 and not self._tasks:
                step_id = self._ready.popleft()
                report = self._reports[step_id]
                await self._step_runner.execute(self._steps[step_id], report, self)
                self._take(self._tell(step_id, report))
                if clock() >= turn_ends:
                    await asyncio.sleep(0)  # timers, cancels and other runs have their turn
                    await asyncio.sleep(0)  # in which a timer fires
                    turn_ends = clock() + TURN_SECONDS
            else:
                await self._work_side_by_side()
        if not self._steps:
            self._run.token.check()  # else the steps see to that
        stuck = not self._scheduler.done or (self._steps and not self._reports)
        if stuck and self._outcome.error is None:
            raise GraphError("Some steps wait for one another.")

    async def _ended_before(self) -> bool:
        """Return whether a step had failed, or a stop was met, when the run's worker was lost.

        The graph is over then. What was cut off at the time is not begun again; what a limit had
        let go on comes to its end.
        """
        if self._run.journal is None:
            return False
        found = (self._step_runner.recorded(step_id) for step_id in self._reports)
        known = [recorded for recorded in found if recorded is not None]
        self._outcome.stop = next(filter(None, map(stop_in, known)), None)
        self._outcome.error = next(filter(None, map(failure_in, known)), None)
        if self._outcome.stop is None and self._outcome.error is None:
            return False
        self._recall()
        if self._outcome.stop is not None and _is_limit(self._outcome.stop):
            self._ready.extend(filter(self._began_before, self._reports))
            await self._let_end()
            self._run.token.check()
        return True

    async def _work_side_by_side(self) -> None:
        """Start what there are slots for, then go on once something has ended."""
        try:
            self._start_ready()
            await self._something_ended()
            while self._ended:
                step_id = self._ended.popleft()
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
                await self._let_end()
            # a cancel that comes meanwhile says less than what came before
            await self._drain(str(ended))
            raise

    def _start_ready(self) -> None:
        create_task = asyncio.get_running_loop().create_task
        while self._ready and self._take_slot():
            step_id = self._ready.popleft()
            self._tasks[step_id] = create_task(self._execute_apart(step_id))

    async def _execute_apart(self, step_id: str) -> None:
        try:
            HOLDER.set(Holder(self._step_runner.path_of(step_id)))
            step, report = self._steps[step_id], self._reports[step_id]
            await self._step_runner.execute(step, report, self)
        finally:
            self._ended.append(step_id)
            self._wake()

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
        """Use the graph's own slot first, then one from the run's pool."""
        if self._slots_used and not self._run.slots.take(self._wake):
            return False
        self._slots_used += 1
        return True

    def _free_slot(self) -> None:
        self._slots_used -= 1
        if self._slots_used:
            self._run.slots.give()

    async def _let_end(self) -> None:
        """Let steps end that began before a limit was met: what they were allowed is paid for.

        Those that began in an earlier execution of the run are among them. The limit refuses
        whatever else they ask for. A stop of the run ends the wait.
        """
        self._ready = deque(filter(self._began_before, self._ready))
        try:
            while (self._tasks or self._ready) and self._run.token.stop is None:
                self._start_ready()
                await self._something_ended()
                while self._ended:
                    step_id = self._ended.popleft()
                    self._free_slot()
                    forget_failure(self._tasks.pop(step_id))
        except asyncio.CancelledError:
            return  # those that are left are drained

    def _began_before(self, step_id: str) -> bool:
        """Return whether an earlier execution of the run had begun a step, and not ended it."""
        recorded = self._step_runner.recorded(step_id)
        if recorded is None or recorded.outcome is not CallOutcome.UNKNOWN:
            return False
        return not recorded.taken_over and stop_in(recorded) is None

    async def _drain(self, reason: str) -> asyncio.CancelledError | None:
        """Cancel the steps that still work, and wait for them; abandon what will not end.

        ``reason`` is what their ends say, unless the run has a stop of its own. Return a cancel
        that came meanwhile.
        """
        tasks, self._tasks = self._tasks, {}
        self._ready.clear()
        for step_id, task in tasks.items():
            self._step_runner.cut_off(step_id)
            task.cancel(reason)
        cancelled = await until_done(tasks.values(), self._grace_seconds)
        for step_id, task in tasks.items():
            self._free_slot()
            if task.done():
                forget_failure(task)
                self._step_runner.over(step_id)
            else:
                self._abandon(step_id)
                detach(
                    task,
                    partial(self._step_runner.late, step_id, self._reports[step_id]),
                    over=partial(self._over, step_id),
                )
        self._ended.clear()
        return cancelled

    def _over(self, step_id: str) -> None:
        """Take notice that an abandoned step has come to its end."""
        self._step_runner.over(step_id)
        self._run.over()

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
            return self._scheduler.tell(StepFailed(step_id))
        return self._scheduler.finished(step_id, report.outputs)


def _is_limit(ended: BaseException) -> bool:
    """Return whether a limit ended a step of which nothing is left; time ends what is in flight."""
    if not isinstance(ended, Stop) or ended.cause.kind is not StopKind.BUDGET:
        return False
    return ended.cause.dimension != Dimension.SECONDS
