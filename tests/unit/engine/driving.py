"""Execute a graph on virtual time with a node whose behaviour the test scripts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import Stop
from caseworker.core.graph.graph import Channel, Edge, GraphStep, StepGraph
from caseworker.engine.concurrency import StepSlots
from caseworker.engine.context import ExecutionResult, FlowContext, RunContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.events import Event
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.report import GraphOutcome
from caseworker.engine.supervision import DetachedError, Supervisor
from tests.support.seeded_loop import SeededLoop, now, play
from tests.unit.engine.gateway import Gateway

GRACE_SECONDS = 1.0

Work = Callable[[FlowContext, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class OurError(Exception):
    """An error from our own package, so its message is not redacted."""

    __module__ = "caseworker.nodes.test"


class Scripted:
    """Run the scripted function of each step; a step without one returns its own ID."""

    def __init__(self, **works: Work) -> None:
        self.works = works
        self.seen: list[tuple[str, Mapping[str, Any]]] = []

    async def execute(
        self, data: Mapping[str, Any], inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        self.seen.append((context.node_id, inputs))
        await asyncio.sleep(1)
        work = self.works.get(context.node_id)
        outputs = {"default": context.node_id} if work is None else await work(context, inputs)
        return ExecutionResult(outputs)


def flow(source: str, target: str, handle: str = "default", into: str = "default") -> Edge:
    return Edge(
        source=source,
        target=target,
        source_handle=handle,
        target_handle=into,
        channel=Channel.FLOW,
    )


def link(source: str, target: str, handle: str = "default", into: str = "default") -> Edge:
    return replace(flow(source, target, handle, into), channel=Channel.LINK)


def graph(steps: Iterable[str], *edges: Edge, max_parallel: int = 1) -> StepGraph:
    return StepGraph(
        id="g",
        steps=tuple(GraphStep(id=s, type="scripted") for s in steps),
        edges=edges,
        max_parallel=max_parallel,
    )


def prepared(of: StepGraph, node: Any, **limits: Mapping[str, Any]) -> PreparedGraph:
    """Prepare the graph with one node for all steps; ``limits`` holds further fields per step."""
    return PreparedGraph(
        of,
        {
            step.id: PreparedStep(
                **{"step": step, "work": BoundNode(node, step.data), **limits.get(step.id, {})}
            )
            for step in of.steps
        },
    )


CHAIN = graph("ABC", flow("A", "B"), flow("B", "C"))


class GraphRun:
    """One run of a graph, with its gateway, node and recorded events."""

    def __init__(self, node: Scripted, budget: Budget) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        self.node = node
        self.told: list[Event] = []
        self.slots = StepSlots()
        self.ended_at = 0.0
        self.gateway = Gateway(loop, budget=budget)

    def execution(
        self, of: StepGraph, inputs: Mapping[str, Any], limits: Mapping[str, Mapping[str, Any]]
    ) -> GraphExecution:
        gateway = self.gateway
        run = RunContext(
            run_id="run-1",
            root=gateway.root,
            trace=gateway.graph,
            scope=gateway.scope,
            token=gateway.token,
            journal=gateway.journal,
            calls=gateway.calls,
            events=self,
            slots=self.slots,
            grace_seconds=GRACE_SECONDS,
        )
        return GraphExecution(prepared(of, self.node, **limits), inputs, run)

    def emit(self, event: Event) -> None:
        self.told.append(event)

    def lifecycle(self, step_id: str) -> list[str]:
        """Return the types of the events that were emitted for a step."""
        return [event.type for event in self.told if event.step_id == step_id]

    def nodes(self) -> dict[str, tuple[str, str | None]]:
        """Return status and stop reason of the last CallNode of each step."""
        found = self.gateway.graph.snapshot()["nodes"].values()
        return {node["name"]: (node["status"], node["stop_reason"]) for node in found}


def drive(
    of: StepGraph,
    node: Scripted | None = None,
    *,
    budget: Budget | None = None,
    inputs: Mapping[str, Any] | None = None,
    before: Callable[[GraphRun], None] = lambda world: None,
    seed: int = 0,
    limits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    after_seconds: float = 0,
) -> tuple[GraphOutcome, GraphRun]:
    """Execute a graph under a supervisor on virtual time, then sleep for ``after_seconds``."""

    async def main() -> tuple[GraphOutcome, GraphRun]:
        world = GraphRun(node or Scripted(), budget or Budget())
        before(world)
        execution = world.execution(of, inputs or {}, limits)
        token = world.gateway.token
        supervisor = Supervisor(grace_seconds=GRACE_SECONDS)
        try:
            outcome = await supervisor.run(execution.run(), token, late=lambda _: None)
        except DetachedError as abandoned:
            outcome = execution.abandoned(abandoned.stop)
            world.ended_at = asyncio.get_running_loop().time()
            await asyncio.sleep(100)
        except Stop as stop:  # stopped before it started
            outcome = execution.abandoned(stop)
        else:
            world.ended_at = asyncio.get_running_loop().time()
        await asyncio.sleep(after_seconds)
        assert world.gateway.settled()
        return outcome, world

    result: tuple[GraphOutcome, GraphRun] = play(main, seed)
    return result


def statuses(outcome: GraphOutcome) -> dict[str, str]:
    return {step: report.status.value for step, report in outcome.steps.items()}


Inputs = Mapping[str, Any]


def nests(inner: StepGraph, node: Scripted, **limits: Mapping[str, Any]) -> Any:
    """Return a step function that executes a graph."""

    async def work(context: FlowContext, inputs: Inputs) -> Inputs:
        nested = GraphExecution.inside(context, prepared(inner, node, **limits), inputs)
        context.keep(lambda: {"default": nested.outputs()})
        return {"default": await nested.result()}

    return work


class Failing(Scripted):
    """Fails its first ``times`` attempts of step A."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        super().__init__(A=self.work)
        self.times = times
        self.error = error or OurError("Not yet.")
        self.began: list[float] = []
        self.paths: list[str] = []

    async def work(self, context: FlowContext, inputs: Inputs) -> Inputs:
        self.began.append(now() - 1)
        self.paths.append(context.path.text)
        if len(self.began) <= self.times:
            raise self.error
        return {"default": "at last"}
