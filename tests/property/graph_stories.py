"""Random graphs with random steps, policies, budgets and stops, all drawn from a seed."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.retry import ErrorPolicy, OnError
from caseworker.core.budget.stops import Stop
from caseworker.core.budget.usage import ResourceUsage
from caseworker.core.graph.graph import Channel, Edge, GraphStep, StepGraph
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.concurrency import StepSlots
from caseworker.engine.context import ExecutionResult, FlowContext, RunContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.events import Event
from caseworker.engine.ports import NullJournal
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.report import GraphOutcome
from caseworker.engine.supervision import DetachedError, Supervisor, TimeLimit
from tests.support.seeded_loop import Story, run

GRACE_SECONDS = 1.0
HANDLES = ("default", "yes", "no")
MAX_STEPS = 60
MAX_INNER_STEPS = 6


class StepFailedError(Exception):
    """The error that a step of a story fails with."""


@dataclass(frozen=True, kw_only=True)
class Doing:
    """The behaviour of one step."""

    seconds: float
    fails_first: int
    """The number of its attempts that fail."""
    produces: frozenset[str]
    tokens: int
    stubborn_seconds: float
    """How long it ignores a cancellation, in seconds."""
    inner: "Plan | None" = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A graph and the behaviour of its steps."""

    graph: StepGraph
    doings: Mapping[str, Doing]
    limits: Mapping[str, Mapping[str, Any]]

    def prepared(self, world: "PlannedRun") -> PreparedGraph:
        steps = {
            step.id: PreparedStep(
                step=step,
                work=BoundNode(world, self.doings[step.id]),
                **self.limits[step.id],
            )
            for step in self.graph.steps
        }
        return PreparedGraph(self.graph, steps)


@dataclass
class PlannedRun:
    """One run of one plan, with everything observed."""

    plan: Plan
    budget: Budget
    ceiling: int
    cancel_at: float | None
    token: CancellationToken = field(default_factory=CancellationToken)
    trace: ExecutionGraph = field(default_factory=lambda: ExecutionGraph("run", now_ms=lambda: 0))
    events: list[Event] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    begun: list[tuple[float, str]] = field(default_factory=list)
    working: set[str] = field(default_factory=set)
    """The paths of leaf steps that are running, within their timeout and lane."""
    most_working: int = 0
    scope: Scope = field(init=False)
    outcome: GraphOutcome = field(init=False)
    ended_at: float = 0.0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    async def execute(
        self, data: Doing, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        path = context.path.text.split("~")[0]
        attempt = self.attempts[path] = self.attempts.get(path, 0) + 1
        self.inputs[path] = inputs
        self.begun.append((asyncio.get_running_loop().time(), context.path.text))
        if data.tokens:
            context.scope.charge({Dimension.TOKENS: data.tokens})
        if data.inner is not None:
            nested = GraphExecution.inside(context, data.inner.prepared(self), {})
            await nested.result()
        else:
            await self._work(data, context)
        if attempt <= data.fails_first:
            raise StepFailedError(path)
        return ExecutionResult(dict.fromkeys(data.produces, path))

    async def _work(self, data: Doing, context: FlowContext) -> None:
        self.working.add(context.path.text)
        self.most_working = max(self.most_working, len(self.working))
        try:
            await asyncio.sleep(data.seconds)
        except asyncio.CancelledError:
            self.working.discard(context.path.text)  # another step may use its lane from now on
            if data.stubborn_seconds:
                await asyncio.sleep(data.stubborn_seconds)
            if data.stubborn_seconds > GRACE_SECONDS:
                return  # the cancellation was ignored
            raise
        finally:
            self.working.discard(context.path.text)

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        token = self.token
        root = self.trace.create_root("run")
        self.trace.mark_running(root)
        self.scope = Scope("run", self.budget, usage=ResourceUsage(clock=loop.time))
        draw = random.Random(7)
        context = RunContext(
            run_id="run",
            root=root,
            trace=self.trace,
            scope=self.scope,
            token=token,
            calls=Calls(
                graph=self.trace,
                journal=NullJournal(token),
                token=token,
                jitter=lambda: draw.uniform(-1, 1),
            ),
            journal=NullJournal(token),
            events=self,
            slots=StepSlots(self.ceiling),
            grace_seconds=GRACE_SECONDS,
        )
        if self.cancel_at is not None:
            loop.call_later(self.cancel_at, token.cancel)
        execution = GraphExecution(self.plan.prepared(self), {}, context)
        supervisor = Supervisor(grace_seconds=GRACE_SECONDS)
        try:
            with TimeLimit(self.scope, token):
                self.outcome = await supervisor.run(execution.run(), token, late=lambda _: None)
        except DetachedError as abandoned:
            self.outcome = execution.abandoned(abandoned.stop)
        except Stop as stop:  # stopped before it started
            self.outcome = execution.abandoned(stop)
        self.ended_at = loop.time()
        self.trace.close_open("The run ended.")
        self.trace.mark_success(root, 0)
        await asyncio.sleep(100)  # let abandoned work finish


def world_of(seed: int) -> PlannedRun:
    """Draw a run from a seed."""
    draw = random.Random(seed)
    plan = _plan(draw, draw.randint(1, MAX_STEPS), depth=0)
    return PlannedRun(
        plan=plan,
        budget=Budget(
            max_steps=draw.choice([None, None, draw.randint(0, 40)]),
            max_tokens=draw.choice([None, None, draw.randint(0, 400)]),
            max_time_seconds=draw.choice([None, None, None, draw.uniform(0, 30)]),
        ),
        ceiling=draw.choice([1, 2, 8, 64]),
        cancel_at=draw.choice([None, None, draw.uniform(0, 40)]),
    )


def play_planned_run(seed: int) -> tuple[PlannedRun, Story[None]]:
    """Play the run of a seed."""
    world = world_of(seed)
    return world, run(world.play, seed)


def _plan(draw: random.Random, count: int, *, depth: int) -> Plan:
    names = [f"s{index}" for index in range(count)]
    steps = tuple(GraphStep(id=name, type="story") for name in names)
    graph = StepGraph(
        id="g",
        steps=tuple(draw.sample(steps, count)),
        edges=tuple(_edges(draw, names)),
        max_parallel=draw.choice([1, 1, 2, 4, 8]),
    )
    return Plan(
        graph=graph,
        doings={name: _doing(draw, depth=depth) for name in names},
        limits={name: _limits(draw) for name in names},
    )


def _edges(draw: random.Random, names: list[str]) -> list[Edge]:
    """Draw edges from earlier to later names only, which excludes cycles."""
    edges = {
        (source, target, draw.choice(HANDLES))
        for index, target in enumerate(names)
        for source in draw.sample(names[:index], min(index, draw.choice([0, 1, 1, 2, 3])))
    }
    return [
        Edge(source=source, target=target, source_handle=handle, channel=Channel.FLOW)
        for source, target, handle in sorted(edges)
    ]


def _doing(draw: random.Random, *, depth: int) -> Doing:
    nests = depth < 2 and draw.random() < 0.08
    return Doing(
        seconds=draw.choice([0, 0.5, 1, 3]),
        fails_first=draw.choice([0] * 12 + [1, 1, 2, 9]),
        produces=frozenset(
            draw.sample(HANDLES, draw.choice([1, 2, 3])) + ["default"] * (not nests)
        ),
        tokens=draw.choice([0, 0, 5, 20]),
        stubborn_seconds=draw.choice([0, 0, 0, 0.2, 5]),
        inner=_plan(draw, draw.randint(1, MAX_INNER_STEPS), depth=depth + 1) if nests else None,
    )


def _limits(draw: random.Random) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    on_error: OnError | None = draw.choice([None, None, None, "fail", "retry", "skip"])
    if on_error is not None:
        limits["policy"] = ErrorPolicy(
            on_error=on_error,
            retry_count=draw.randint(1, 2),
            retry_delay_ms=draw.choice([0, 200, 2000]),
            timeout_ms=draw.choice([None, None, 700, 5000]),
        )
    if draw.random() < 0.1:
        limits["sub_budget"] = Budget(max_steps=draw.randint(0, 6), max_tokens=draw.randint(0, 60))
    return limits
