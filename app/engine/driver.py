"""Executes a graph: asks the scheduler what is next and does it.

The driver never raises for what happens inside a graph. It returns how the graph ended, with
whatever its steps produced until then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.control.budget import Dimension
from app.control.ledger import Scope
from app.control.stops import HandOver, Stop
from app.control.usage import NOTHING, Charge
from app.engine.calls import Calls
from app.engine.cancellation import CancellationToken, is_being_cancelled
from app.engine.context import FlowContext
from app.engine.node import Node
from app.engine.ports import CallOutcome, Entry, Journal
from app.kernel.errors import GraphError
from app.kernel.facts import Order, SkipStep, StartStep, StepFailed, StepFinished
from app.kernel.graph import Channel, Edge, Graph, Step
from app.kernel.lifecycle import NEXT, StepStatus
from app.kernel.scheduler import Scheduler
from app.trace.execution_graph import ExecutionGraph

Outputs = Mapping[str, Any]

ONE_STEP: Charge = {Dimension.STEPS: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all steps of one run share."""

    run_id: str
    root: str
    """The CallNode of the run."""
    trace: ExecutionGraph
    scope: Scope
    token: CancellationToken
    journal: Journal
    calls: Calls
    services: Mapping[type, Any]
    state: dict[str, Any] = field(default_factory=dict)
    """What the steps of the run tell one another; it does not outlive its execution."""


@dataclass(slots=True)
class StepReport:
    """How a step stands."""

    status: StepStatus = StepStatus.PENDING
    outputs: Outputs = field(default_factory=dict)
    """What it produced; of a step that was cut off or failed, what it had so far."""
    error: Exception | None = None

    def become(
        self, status: StepStatus, outputs: Outputs | None = None, error: Exception | None = None
    ) -> None:
        """Change the status; a final one stays, whatever abandoned work still comes to."""
        if status not in NEXT[self.status]:
            return
        self.status, self.error = status, error
        self.outputs = {} if outputs is None else outputs


@dataclass(slots=True)
class GraphOutcome:
    """How a graph ended."""

    steps: dict[str, StepReport]
    error: Exception | None = None
    stop: Stop | None = None


class StepBrokenError(Exception):
    """A step that neither returned nor failed."""


def said_of(error: Exception) -> str:
    """Return what may be said of a failure.

    The messages of our own errors are made to be shown; others could hold anything.
    """
    ours = type(error).__module__.startswith("app.")
    return str(error)[:500] if ours else f"It broke with {type(error).__name__}."


class Driver:
    """Executes graphs with the nodes it was given, by step type."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def execution(self, graph: Graph, inputs: Outputs, run: RunContext) -> "GraphExecution":
        """Prepare to execute ``graph``; ``inputs`` go to the steps that no flow edge leads to."""
        return GraphExecution(self._nodes, graph, inputs, run)


class GraphExecution:
    """One execution of one graph."""

    def __init__(
        self, nodes: Mapping[str, Node], graph: Graph, inputs: Outputs, run: RunContext
    ) -> None:
        self._nodes = nodes
        self._graph = graph
        self._inputs = inputs
        self._run = run
        self._steps = {step.id: step for step in graph.steps}
        self._incoming = _flow_edges_by_target(graph)
        self._reports = {step.id: StepReport() for step in graph.steps}
        self._partials: dict[str, _Partial] = {}
        self._outcome = GraphOutcome(self._reports)

    def abandoned(self, stop: Stop) -> GraphOutcome:
        """Return how the graph stands although it is still being executed."""
        for step_id, partial in self._partials.items():
            report = self._reports[step_id]
            if report.status is StepStatus.RUNNING:
                report.become(StepStatus.CANCELLED, partial.get())
        return replace(self._outcome, stop=stop)

    async def run(self) -> GraphOutcome:
        """Execute the graph."""
        try:
            await self._obey_all(Scheduler(self._graph))
        except GraphError as error:
            self._outcome.error = error
        except Stop as stop:
            self._outcome.stop = self._weightier(stop)
        except asyncio.CancelledError:
            if self._run.token.stop is None:
                raise
            self._outcome.stop = self._run.token.stop
        return self._outcome

    def _weightier(self, stop: Stop) -> Stop:
        """Return the token's stop if a run would otherwise go on elsewhere against its wish."""
        given = self._run.token.stop
        return given if given is not None and isinstance(stop, HandOver) else stop

    async def _obey_all(self, scheduler: Scheduler) -> None:
        orders = deque(scheduler.begin())
        while orders:
            orders.extend(await self._obey(orders.popleft(), scheduler))
        if not scheduler.done:
            raise GraphError("Some steps wait for one another.")

    async def _obey(self, order: Order, scheduler: Scheduler) -> list[Order]:
        report = self._reports[order.step_id]
        match order:
            case SkipStep():
                report.become(StepStatus.SKIPPED)
                return []
            case StartStep(step_id):
                await self._execute(self._steps[step_id], report)
        if report.error is not None:
            self._outcome.error = report.error
            return scheduler.tell(StepFailed(step_id))
        return scheduler.tell(StepFinished(step_id, frozenset(report.outputs)))

    async def _execute(self, step: Step, report: StepReport) -> None:
        """Execute a step, or take its result from the journal; a stop before or after it counts."""
        run = self._run
        recorded = run.journal.recorded(_key(step))
        if recorded is not None and recorded.outcome is CallOutcome.RESULT:
            report.become(StepStatus.COMPLETED, recorded.value)
            return
        run.token.check()
        node = run.trace.begin_node(run.root, "system", step.id, metadata={"step_type": step.type})
        charge = ONE_STEP if recorded is None else NOTHING
        partial = self._partials[step.id] = _Partial()
        try:
            outputs = await self._work(step, node, charge, partial)
        except Exception as error:
            run.trace.mark_failure(node, type(error).__name__, said_of(error))
            report.become(StepStatus.FAILED, partial.get(), error)
        except BaseException as stop:
            run.trace.mark_halt(node, str(run.token.stop or stop) or type(stop).__name__)
            report.become(StepStatus.CANCELLED, partial.get())
            raise
        else:
            run.trace.mark_success(node, 0)
            report.become(StepStatus.COMPLETED, outputs)
        finally:
            run.journal.touch()
        run.token.check()

    async def _work(self, step: Step, node: str, charge: Charge, partial: "_Partial") -> Outputs:
        """Charge for a step, let its node work, and journal what that came to.

        The barrier keeps a step from beginning after a wish to stop that nobody could tell us of.
        """
        run = self._run
        await run.journal.barrier(external=False)
        run.token.check()
        if charge:
            run.scope.charge(charge)
        run.trace.mark_running(node)
        run.journal.note(node, Entry(call_key=_key(step), request_hash="", charge=charge))
        self._reports[step.id].become(StepStatus.RUNNING)
        context = self._context(step, node, partial)
        try:
            result = await self._nodes[step.type].execute(step.data, self._inputs_of(step), context)
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            raise StepBrokenError("The step waited for something that was cancelled.") from None
        outputs = dict(result.outputs)
        ended = Entry(
            call_key=_key(step),
            request_hash="",
            charge=charge,
            outcome=CallOutcome.RESULT,
            value=outputs,
        )
        run.journal.note(node, ended)
        return outputs

    def _context(self, step: Step, node: str, partial: "_Partial") -> FlowContext:
        run = self._run
        return FlowContext(
            run_id=run.run_id,
            node_id=step.id,
            trace_parent=node,
            scope=run.scope,
            token=run.token,
            calls=run.calls,
            state=run.state,
            services=run.services,
            keep=partial.keep,
        )

    def _inputs_of(self, step: Step) -> Outputs:
        incoming = self._incoming.get(step.id)
        if incoming is None:
            return self._inputs
        return {
            edge.target_handle: self._reports[edge.source].outputs[edge.source_handle]
            for edge in incoming
            if edge.source_handle in self._reports[edge.source].outputs
        }


class _Partial:
    """What a step would have to show if it ended now."""

    def __init__(self) -> None:
        self._source: Callable[[], Outputs] | None = None

    def keep(self, source: Callable[[], Outputs]) -> None:
        self._source = source

    def get(self) -> Outputs:
        if self._source is None:
            return {}
        try:
            return self._source()
        except Exception:  # what went wrong before it matters more
            return {}


def _key(step: Step) -> str:
    return f"step:{step.id}"


def _flow_edges_by_target(graph: Graph) -> dict[str, list[Edge]]:
    incoming: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if edge.channel is Channel.FLOW:
            incoming.setdefault(edge.target, []).append(edge)
    return incoming
