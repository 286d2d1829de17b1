"""Executes a graph: asks the scheduler what is next and does it.

The driver never raises for what happens inside a graph. It returns how the graph ended, with
whatever its steps produced until then.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.control.budget import Dimension
from app.control.ledger import Scope
from app.control.stops import Stop
from app.control.usage import NOTHING
from app.engine.calls import Calls
from app.engine.cancellation import CancellationToken
from app.engine.context import FlowContext
from app.engine.node import Node
from app.engine.ports import CallOutcome, Entry, Journal
from app.kernel.facts import Order, SkipStep, StartStep, StepFailed, StepFinished
from app.kernel.graph import Channel, Graph, Step
from app.kernel.lifecycle import StepStatus
from app.kernel.scheduler import Scheduler
from app.trace.execution_graph import ExecutionGraph

Outputs = Mapping[str, Any]


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


@dataclass(slots=True)
class StepReport:
    """How a step stands."""

    status: StepStatus
    outputs: Outputs = field(default_factory=dict)
    """What it produced; of a step that was cut off or failed, what it had so far."""
    error: Exception | None = None


@dataclass(slots=True)
class GraphOutcome:
    """How a graph ended."""

    steps: dict[str, StepReport]
    error: Exception | None = None
    stop: Stop | None = None


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
        self._reports = {step.id: StepReport(StepStatus.PENDING) for step in graph.steps}
        self._partials: dict[str, _Partial] = {}
        self._outcome = GraphOutcome(self._reports)

    def abandoned(self, stop: Stop) -> GraphOutcome:
        """Return how the graph stands although it is still being executed."""
        self._outcome.stop = stop
        for step_id, partial in self._partials.items():
            report = self._reports[step_id]
            if report.status is StepStatus.RUNNING:
                report.status, report.outputs = StepStatus.CANCELLED, partial.get()
        return self._outcome

    async def run(self) -> GraphOutcome:
        """Execute the graph."""
        scheduler = Scheduler(self._graph)
        orders = scheduler.begin()
        try:
            while orders:
                order, *rest = orders
                orders = [*rest, *await self._obey(order, scheduler)]
        except Stop as stop:
            self._outcome.stop = stop
        except asyncio.CancelledError:
            if self._run.token.stop is None:
                raise
            self._outcome.stop = self._run.token.stop
        return self._outcome

    async def _obey(self, order: Order, scheduler: Scheduler) -> list[Order]:
        report = self._reports[order.step_id]
        match order:
            case SkipStep():
                report.status = StepStatus.SKIPPED
                return []
            case StartStep(step_id):
                await self._execute(self._steps[step_id], report)
        if report.error is not None:
            self._outcome.error = report.error
            return scheduler.tell(StepFailed(step_id))
        return scheduler.tell(StepFinished(step_id, frozenset(report.outputs)))

    async def _execute(self, step: Step, report: StepReport) -> None:
        run = self._run
        key = f"step:{step.id}"
        recorded = run.journal.recorded(key)
        if recorded is not None and recorded.outcome is CallOutcome.RESULT:
            report.status, report.outputs = StepStatus.COMPLETED, recorded.value
            return
        run.token.check()
        node = run.trace.begin_node(run.root, "system", step.id, metadata={"step_type": step.type})
        charge = {Dimension.STEPS: 1} if recorded is None else NOTHING
        partial = self._partials[step.id] = _Partial()
        try:
            run.scope.charge(charge)
            run.trace.mark_running(node)
            run.journal.note(node, Entry(call_key=key, request_hash="", charge=charge))
            report.status = StepStatus.RUNNING
            context = self._context(step, node, partial)
            result = await self._nodes[step.type].execute(step.data, self._inputs_of(step), context)
            run.token.check()
        except Exception as error:
            report.status, report.error, report.outputs = StepStatus.FAILED, error, partial.get()
            run.trace.mark_failure(node, type(error).__name__, str(error)[:500])
            run.journal.touch()
        except BaseException as stop:
            report.status, report.outputs = StepStatus.CANCELLED, partial.get()
            run.trace.mark_halt(node, str(run.token.stop or stop) or type(stop).__name__)
            run.journal.touch()
            raise
        else:
            report.status, report.outputs = StepStatus.COMPLETED, result.outputs
            run.trace.mark_success(node, 0)
            run.journal.note(
                node,
                Entry(
                    call_key=key,
                    request_hash="",
                    charge=charge,
                    outcome=CallOutcome.RESULT,
                    value=dict(result.outputs),
                ),
            )

    def _context(self, step: Step, node: str, partial: "_Partial") -> FlowContext:
        run = self._run
        return FlowContext(
            run_id=run.run_id,
            node_id=step.id,
            trace_parent=node,
            scope=run.scope,
            token=run.token,
            calls=run.calls,
            services=run.services,
            keep=partial.keep,
        )

    def _inputs_of(self, step: Step) -> Outputs:
        incoming = [
            edge
            for edge in self._graph.edges
            if edge.target == step.id and edge.channel is Channel.FLOW
        ]
        if not incoming:
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
        return {} if self._source is None else self._source()
