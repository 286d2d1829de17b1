"""Nodes that end, or refuse to end, in ways that no node should."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import AttemptError, Reply
from caseworker.engine.context import FlowContext
from caseworker.engine.report import StepBrokenError
from tests.support.limits import retry_policy
from tests.support.scripted_call import ScriptedCall
from tests.support.seeded_loop import deaf, now
from tests.unit.engine.driving import (
    CHAIN,
    GraphRun,
    OurError,
    Scripted,
    drive,
    flow,
    graph,
    link,
    nests,
    statuses,
)

Inputs = Mapping[str, Any]

SKIP = {"policy": ErrorPolicy(on_error="skip", retry_count=1, fallback_value="instead")}


class Panic(BaseException):
    """A BaseException, as some libraries raise for their own failures."""


async def spends_too_much(context: FlowContext) -> None:
    await asyncio.sleep(1)
    context.scope.charge({Dimension.TOKENS: 11})


@pytest.mark.req("000/E2", "000/B3")
@pytest.mark.parametrize("also_fails", [False, True])
def test_a_stop_inside_a_task_group_of_a_node_is_a_stop(also_fails: bool) -> None:
    """A stop wrapped in exception groups still ends the run; no policy retries it."""

    async def fails() -> None:
        await asyncio.sleep(1)
        raise OurError("At the same moment.")

    async def works(context: FlowContext, inputs: Inputs) -> Inputs:
        async with asyncio.TaskGroup() as group:
            async with asyncio.TaskGroup() as inner:
                inner.create_task(spends_too_much(context))
            if also_fails:
                group.create_task(fails())
        return {}

    async def works_side_by_side(context: FlowContext, inputs: Inputs) -> Inputs:
        async with asyncio.TaskGroup() as group:
            group.create_task(spends_too_much(context))
            group.create_task(fails())
        return {}

    outcome, world = drive(
        CHAIN,
        Scripted(A=works_side_by_side if also_fails else works),
        budget=Budget(max_tokens=10),
        limits={"A": SKIP},
    )

    assert isinstance(outcome.stop, BudgetExceededError)
    assert statuses(outcome) == {"A": "halted", "B": "not_started", "C": "not_started"}
    assert world.lifecycle("A") == ["step.started", "step.cancelled"]
    assert len(world.node.seen) == 1


@pytest.mark.req("000/E2")
@pytest.mark.parametrize("kind", [Panic, SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("timeout_ms", [None, 5000])
def test_a_node_that_would_end_the_process_fails_its_step(
    kind: type[BaseException], timeout_ms: int | None
) -> None:
    """A node that raises SystemExit or another BaseException fails its step under its policy."""

    async def works(context: FlowContext, inputs: Inputs) -> Inputs:
        raise kind("password=hunter2")

    policy = ErrorPolicy(on_error="retry", retry_count=1, timeout_ms=timeout_ms)
    outcome, world = drive(graph("A"), Scripted(A=works), limits={"A": {"policy": policy}})

    assert isinstance(outcome.error, StepBrokenError)
    assert kind.__name__ in str(outcome.error)
    assert "hunter2" not in str(outcome.error)
    assert statuses(outcome) == {"A": "failed"}
    assert len(world.node.seen) == 2


@pytest.mark.req("000/P2")
@pytest.mark.parametrize("cut_by", ["sibling", "timeout"])
def test_a_nested_graph_that_was_cut_off_begins_nothing_more(cut_by: str) -> None:
    """A cut-off nested graph starts no further step, even if a step swallowed the cancel."""

    async def swallows(context: FlowContext, inputs: Inputs) -> Inputs:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return {"default": "as if nothing had been"}
        raise AssertionError

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        await asyncio.sleep(3 if cut_by == "sibling" else 0)
        if cut_by == "sibling":
            raise OurError("No.")
        return {}

    node = Scripted(A=fails, x=swallows)
    node.works["B"] = nests(graph("xy", flow("x", "y")), node)
    policy = ErrorPolicy(timeout_ms=4000) if cut_by == "timeout" else ErrorPolicy()
    outcome, world = drive(
        graph("AB", max_parallel=2), node, limits={"B": {"policy": policy}}, after_seconds=30
    )

    assert outcome.error is not None
    assert "y" not in dict(world.node.seen)
    assert world.lifecycle("B/x")[-1] in ("step.completed", "step.cancelled")
    assert world.lifecycle("B/y") == []


@pytest.mark.req("004/lifecycle")
def test_everything_inside_an_attempt_that_is_abandoned_has_an_end() -> None:
    """A step inside an abandoned attempt gets its end event before the next step starts."""

    async def stubborn(context: FlowContext, inputs: Inputs) -> Inputs:
        await deaf(100)
        return {"default": "too late"}

    node = Scripted(x=stubborn)
    node.works["B"] = nests(graph("xy", flow("x", "y")), node)
    told: list[list[str]] = []

    async def looks(context: FlowContext, inputs: Inputs) -> Inputs:
        told.append(world_at_c[0].lifecycle("B/x"))
        return {}

    world_at_c: list[GraphRun] = []
    node.works["C"] = looks
    policy = ErrorPolicy(on_error="skip", timeout_ms=3000)
    outcome, world = drive(
        graph("BC", flow("B", "C")),
        node,
        limits={"B": {"policy": policy}},
        before=world_at_c.append,
        after_seconds=200,
    )

    assert set(statuses(outcome).values()) == {"completed"}
    assert told == [["step.started", "step.cancelled"]]
    assert world.lifecycle("B/x") == ["step.started", "step.cancelled"]
    assert world.nodes()["B/x"][0] == "halt"


@pytest.mark.req("000/E2")
def test_a_limit_met_inside_an_attempt_is_not_lost_when_its_time_is_up_meanwhile() -> None:
    """A limit reached inside an attempt ends the run, even if the attempt then times out."""

    async def spends(context: FlowContext, inputs: Inputs) -> Inputs:
        held = context.scope.reserve({Dimension.TOKENS: 5})
        try:
            await asyncio.sleep(1)
            context.scope.charge({Dimension.TOKENS: 6})
        finally:
            held.settle()
        return {}

    async def winds_up(context: FlowContext, inputs: Inputs) -> Inputs:
        try:
            await asyncio.sleep(100)
        finally:
            await deaf(0.2)
        return {}

    node = Scripted(x=spends, y=winds_up)
    node.works["B"] = nests(graph("xy", max_parallel=2), node)
    policy = ErrorPolicy(on_error="skip", timeout_ms=3100)  # x is refused at 3000
    outcome, _ = drive(
        graph("BC", flow("B", "C")),
        node,
        budget=Budget(max_tokens=10),
        limits={"B": {"policy": policy}},
    )

    assert isinstance(outcome.stop, BudgetExceededError)
    assert statuses(outcome) == {"B": "halted", "C": "not_started"}


@pytest.mark.req("000/B5")
def test_the_seconds_of_an_abandoned_step_end_nothing_any_more() -> None:
    """The time limit of an abandoned step does not end the run, which has continued."""

    async def stubborn(context: FlowContext, inputs: Inputs) -> Inputs:
        await deaf(100)
        return {}

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        raise OurError("No.")

    async def takes_long(context: FlowContext, inputs: Inputs) -> Inputs:
        await asyncio.sleep(50)
        return {"default": "done"}

    node = Scripted(x=stubborn, y=fails, C=takes_long)
    inner = nests(graph("xy", max_parallel=2), node, x={"sub_budget": Budget(max_time_seconds=20)})
    node.works["B"] = inner
    outcome, _ = drive(
        graph("BC", flow("B", "C")),
        node,
        limits={"B": {"policy": ErrorPolicy(on_error="skip")}},
        after_seconds=200,
    )

    assert outcome.stop is None
    assert outcome.steps["C"].outputs == {"default": "done"}


async def _asked(context: FlowContext, attempt: Callable[[], Awaitable[Reply]]) -> None:
    call = ScriptedCall(
        key=context.path.call("ask"),
        kind="llm",
        name="ask",
        request_hash="",
        retry=retry_policy(),
        attempt=attempt,
    )
    await context.calls.perform(call, parent=context.trace_parent, scope=context.scope)


def test_abandoned_work_does_not_try_its_call_again() -> None:
    """A failed attempt of abandoned work is not retried."""
    made: list[float] = []

    async def attempt() -> Reply:
        made.append(now())
        await deaf(20)
        raise AttemptError("Busy.", error_class="Busy", retryable=True)

    async def calls(context: FlowContext, inputs: Inputs) -> Inputs:
        await _asked(context, attempt)
        return {}

    policy = ErrorPolicy(on_error="skip", timeout_ms=2000)
    drive(graph("A"), Scripted(A=calls), limits={"A": {"policy": policy}}, after_seconds=200)

    assert made == [1]


def test_what_is_materialised_for_abandoned_work_begins_no_call() -> None:
    """A linked step whose consumer was cut off makes no call."""
    made: list[float] = []

    async def attempt() -> Reply:
        made.append(now())
        return Reply("late")

    class Linked(Scripted):
        async def materialize(self, data: Any, output_handle: str, context: FlowContext) -> None:
            await deaf(20)
            await _asked(context, attempt)

    async def needs(context: FlowContext, inputs: Inputs) -> Inputs:
        await context.runtime.resolve_links("A", "default")
        return {}

    shape = graph("AT", link("T", "A"))
    policy = ErrorPolicy(on_error="skip", timeout_ms=2000)
    node = Linked(A=needs)
    outcome, _ = drive(shape, node, limits={"A": {"policy": policy}}, after_seconds=200)

    assert outcome.steps["A"].recovered_by == "skip"
    assert made == []
