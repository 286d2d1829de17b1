"""Parallel steps: they start early, respect the maximum and are drained at the end."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.concurrency import StepSlots
from caseworker.engine.context import FlowContext
from tests.support.seeded_loop import deaf, now
from tests.unit.engine.driving import GraphRun, OurError, Scripted, drive, flow, graph, statuses

Inputs = Mapping[str, Any]

WIDE = graph("ABCDEFGH", max_parallel=4)


class Watched(Scripted):
    """Records the start and end of each step and the peak number of concurrent steps."""

    def __init__(self, seconds: Mapping[str, float], **works: Any) -> None:
        super().__init__(**works)
        self.seconds = seconds
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.working = 0
        self.most = 0

    async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> Any:
        self.working += 1
        self.most = max(self.most, self.working)
        self.began[context.node_id] = now()
        try:
            await asyncio.sleep(self.seconds.get(context.node_id, 1.0) - 1.0)
            return await super().execute(data, inputs, context)
        finally:
            self.working -= 1
            self.ended[context.node_id] = now()


@pytest.mark.req("000/P1")
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_as_many_steps_work_at_once_as_the_graph_allows(width: int) -> None:
    """Eight steps of one second take 8 / width seconds."""
    node = Watched({})
    outcome, world = drive(graph("ABCDEFGH", max_parallel=width), node)

    assert set(statuses(outcome).values()) == {"completed"}
    assert node.most == width
    assert max(node.ended.values()) == pytest.approx(8 / width)
    assert world.gateway.spent() == {"steps": 8}


@pytest.mark.req("000/P2")
def test_a_step_starts_as_soon_as_its_own_dependencies_are_done() -> None:
    """C starts after the quick A, while the independent, slow B is still running."""
    node = Watched({"A": 1, "B": 10, "C": 1})
    drive(graph("ABC", flow("A", "C"), max_parallel=2), node)

    assert node.began["C"] == pytest.approx(1)
    assert node.ended["B"] == pytest.approx(10)


@pytest.mark.req("000/P2")
def test_the_first_failure_cancels_the_others_and_waits_for_them() -> None:
    """Running steps are cancelled and may clean up, and no further step starts."""
    cleaned: list[str] = []

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        raise OurError("No.")

    async def cleans_up(context: FlowContext, inputs: Inputs) -> Inputs:
        context.keep(lambda: {"so": "far"})
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.1)
            cleaned.append(context.node_id)
        return {}

    node = Scripted(A=fails, B=cleans_up, C=cleans_up)
    outcome, world = drive(graph("ABCD", max_parallel=3), node)

    assert isinstance(outcome.error, OurError)
    assert outcome.stop is None
    assert sorted(cleaned) == ["B", "C"]
    assert statuses(outcome) == {
        "A": "failed",
        "B": "cancelled",
        "C": "cancelled",
        "D": "not_started",
    }
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert world.nodes()["B"] == ("halt", "Another step failed.")
    assert world.lifecycle("B") == ["step.started", "step.cancelled"]
    assert world.lifecycle("D") == []


@pytest.mark.req("000/P2")
def test_a_sibling_that_ignores_its_cancellation_is_abandoned() -> None:
    """After the grace period the sibling is abandoned; its late result is dropped and recorded."""
    ends: list[float] = []

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        raise OurError("No.")

    async def stubborn(context: FlowContext, inputs: Inputs) -> Inputs:
        await deaf(20)
        ends.append(now())
        return {"default": "too late"}

    outcome, world = drive(
        graph("AB", max_parallel=2), Scripted(A=fails, B=stubborn), after_seconds=60
    )

    assert statuses(outcome) == {"A": "failed", "B": "cancelled"}
    assert outcome.steps["B"].outputs == {}
    assert world.ended_at == pytest.approx(1 + 0.5)
    assert ends == [pytest.approx(21)]
    assert world.lifecycle("B") == ["step.started", "step.cancelled", "late_result"]
    assert world.nodes()["B"][0] == "halt"


@pytest.mark.req("000/C3")
def test_a_wish_to_stop_reaches_every_lane() -> None:
    """A cancel request cuts off all running steps at once and becomes the run's stop."""

    def before(world: GraphRun) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, lambda: world.gateway.token.cancel("Enough."))

    outcome, world = drive(WIDE, before=before)

    assert isinstance(outcome.stop, stops.CancelledError)
    assert list(statuses(outcome).values()) == ["cancelled"] * 4 + ["not_started"] * 4
    assert world.ended_at == pytest.approx(0.5)


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("limit", range(9))
def test_lanes_do_not_overshoot_a_limit_of_steps(limit: int) -> None:
    """Parallel steps do not exceed a step limit: N allows exactly N."""
    outcome, world = drive(WIDE, Watched({}), budget=Budget(max_steps=limit))

    begun = [step_id for step_id, _ in world.node.seen]
    assert len(begun) <= limit
    assert world.gateway.spent().get("steps", 0) == limit
    assert isinstance(outcome.stop, BudgetExceededError) is (limit < 8)


@pytest.mark.req("000/B3")
def test_a_limit_ends_the_run_and_lets_those_finish_that_it_had_let_begin() -> None:
    """Steps that started within the limit finish; no further step starts."""
    node = Watched({"A": 1, "B": 50})
    outcome, world = drive(
        graph("ABCD", flow("A", "C"), flow("B", "D"), max_parallel=2),
        node,
        budget=Budget(max_steps=2),
    )

    assert isinstance(outcome.stop, BudgetExceededError)
    assert statuses(outcome) == {
        "A": "completed",
        "B": "completed",
        "C": "halted",
        "D": "not_started",
    }
    assert outcome.steps["B"].outputs == {"default": "B"}
    assert world.ended_at == pytest.approx(50)


@pytest.mark.req("000/C3", "000/B3")
def test_a_wish_to_stop_does_not_wait_for_those_that_a_limit_lets_finish() -> None:
    """A cancel request ends steps at once that a limit would let finish, and is the run's stop."""

    def before(world: GraphRun) -> None:
        asyncio.get_running_loop().call_later(5, world.gateway.token.cancel)

    node = Watched({"A": 1, "B": 50})
    outcome, world = drive(
        graph("ABC", flow("A", "C"), max_parallel=2),
        node,
        budget=Budget(max_steps=2),
        before=before,
    )

    assert isinstance(outcome.stop, stops.CancelledError)
    assert statuses(outcome)["B"] == "cancelled"
    assert world.ended_at == pytest.approx(5)


def test_several_values_for_one_handle_come_as_a_list_in_the_order_of_the_edges() -> None:
    """Values for one handle arrive in edge order, regardless of which step finishes first."""
    node = Watched({"A": 3, "B": 1, "C": 2})
    joined = graph(
        "ABCD",
        flow("A", "D"),
        flow("B", "D"),
        flow("C", "D", into="alone"),
        max_parallel=3,
    )
    drive(joined, node)

    assert dict(node.seen)["D"] == {"default": ["A", "B"], "alone": "C"}


def test_a_branch_that_is_dead_leaves_its_place_in_the_list_out() -> None:
    """A handle with several edges receives a list, even if only one branch ran."""

    async def only_yes(context: FlowContext, inputs: Inputs) -> Inputs:
        return {"yes": 1}

    node = Scripted(A=only_yes)
    drive(
        graph("ABCD", flow("A", "B", "yes"), flow("A", "C", "no"), flow("B", "D"), flow("C", "D")),
        node,
    )

    assert dict(node.seen)["D"] == {"default": ["B"]}


def test_the_widest_graph_of_a_run_says_how_many_lanes_there_are() -> None:
    """One slot is guaranteed; further slots come from a pool that never exceeds its ceiling."""
    woken: list[str] = []

    def wake() -> None:
        woken.append("now")

    slots = StepSlots(3)
    assert not slots.acquire(wake)
    slots.widen(2)
    slots.widen(1)
    assert slots.acquire(wake)
    assert not slots.acquire(wake)
    slots.widen(50)
    assert slots.acquire(wake)
    assert not slots.acquire(wake)
    assert woken == []
    slots.release()
    assert woken == ["now"]
    slots.forget(wake)
    slots.release()
    assert woken == ["now"]


def test_a_run_needs_a_step_slot() -> None:
    """A pool without step slots is rejected, because its steps would wait forever."""
    with pytest.raises(ValueError, match="step slot"):
        StepSlots(0)
