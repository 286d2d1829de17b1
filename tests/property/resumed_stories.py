"""Random graphs whose process is lost or hands over in the middle, and another one resumes.

The real executor and journal run over an in-memory store. Every step makes one external call. The
attempts that fail depend on the step's path and not on chance, so a run without interruption has
one outcome.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.driver import GraphExecution
from caseworker.runs.run import RunKind, RunRequest
from tests.property.graph_stories import Doing, Plan, StepFailedError, world_of
from tests.property.interrupted_run import InterruptedRun
from tests.support.runs import answering, call
from tests.support.seeded_loop import run

LOOK_ON_SECONDS = 200


@dataclass(kw_only=True)
class GraphRun(InterruptedRun):
    """One run of one plan, executed by as many processes as necessary."""

    plan: Plan
    budget: Budget
    calm: bool
    """Whether its outcome depends only on the plan."""
    attempts: list[tuple[str, int]] = field(default_factory=list)
    """Every attempt: its path, and the process that made it."""

    async def execute(
        self, data: Doing, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        number = context.state.setdefault("process", len(self.processes))
        self.attempts.append((context.path.text, number))
        if data.inner is not None:
            nested = GraphExecution.inside(context, data.inner.prepared(self), {})  # type: ignore[arg-type]
            context.keep(lambda: {"default": "so far"})
            inner = await nested.result()
            outputs: dict[str, Any] = {handle: dict(inner) for handle in data.produces}
        else:
            await self._work(data, context, number)
            outputs = dict.fromkeys(data.produces, context.path.text.split("~")[0])
        if _attempt(context.path.text) <= data.fails_first:
            raise StepFailedError(context.path.text)
        return ExecutionResult(outputs)

    async def _work(self, data: Doing, context: FlowContext, number: int) -> None:
        key = f"{context.path}/call"
        log: list[Any] = []
        try:
            answer = answering(key, log, seconds=data.seconds)
            kind = ("llm", "tool")[len(key) % 2]
            await call(context, "call", answer, key=key, kind=kind, request_hash=context.run_id)
        except asyncio.CancelledError:
            if data.stubborn_seconds:
                await asyncio.sleep(data.stubborn_seconds)
            raise
        finally:
            self.external_calls += [(key, number) for _ in log]

    async def play(self) -> None:
        """Play the run to its end, and wait for late effects."""
        draw = random.Random(self.seed)
        request = RunRequest(kind=RunKind.GRAPH, graph={}, budget=self.budget)
        self.final = await self.execute_run(request, lambda: draw.uniform(0, 10))
        self.ended = True
        await asyncio.sleep(LOOK_ON_SECONDS)

    def nodes(self) -> dict[str, Any]:
        """Return the plan that a process executes."""
        catalog: Any = SimpleNamespace(prepare=lambda graph, graph_id: self.plan.prepared(self))  # type: ignore[arg-type]
        return {"catalog": catalog}


def _attempt(path: str) -> int:
    """Return the number of the attempt that a path belongs to."""
    number = path.rpartition("/")[2].partition("~")[2]
    return int(number) if number else 1


def graph_run_of(seed: int) -> GraphRun:
    """Draw a run from a seed."""
    plan, draw = world_of(seed).plan, random.Random(seed)
    calm = draw.random() < 0.6
    budget = Budget(max_steps=draw.choice([None, None, draw.randint(0, 40)]))
    return GraphRun(
        seed=seed,
        plan=_calm(plan) if calm else plan,
        budget=Budget() if calm else budget,
        calm=calm,
        losses=draw.choice([1, 1, 2]),
    )


def _calm(plan: Plan) -> Plan:
    """Return the plan without limits of time and calls; only steps with a policy fail."""
    limits = {name: _without_limits(limit) for name, limit in plan.limits.items()}
    doings = {
        name: replace(
            doing,
            fails_first=doing.fails_first if "policy" in limits[name] else 0,
            inner=None if doing.inner is None else _calm(doing.inner),
        )
        for name, doing in plan.doings.items()
    }
    return replace(plan, doings=doings, limits=limits)


def _without_limits(limit: Mapping[str, Any]) -> Mapping[str, Any]:
    if "policy" not in limit:
        return {}
    policy: ErrorPolicy = limit["policy"]
    return {"policy": replace(policy, on_error="skip", timeout_ms=None, fallback_value="instead")}


def play_graph_run(
    seed: int, *, before_step: int | None = None
) -> tuple[GraphRun, tuple[str, ...], int]:
    """Play the run of a seed, interrupted before the given step of the loop."""
    graph_run = graph_run_of(seed)
    story = run(
        graph_run.play,
        seed,
        interrupt=None if before_step is None else graph_run.strike,
        before_step=before_step or 0,
    )
    return graph_run, story.leftover, story.steps
