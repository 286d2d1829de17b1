"""Limits and stops between the steps of a graph and inside them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.stops import HandOver
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.core.graph.facts import StepStatus
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome
from tests.unit.engine.driving import CHAIN, GraphRun, Scripted, drive, statuses


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_limit_of_n_steps_executes_exactly_n(limit: int) -> None:
    """The refused step is halted with the reason on its node; earlier results are kept."""
    outcome, world = drive(CHAIN, budget=Budget(max_steps=limit))

    done = [step for step, status in statuses(outcome).items() if status == "completed"]
    assert done == list("ABC")[:limit]
    if limit == 3:
        assert outcome.stop is None
        return
    refused = "ABC"[limit]
    assert isinstance(outcome.stop, BudgetExceededError)
    assert outcome.stop.cause.dimension == "steps"
    assert outcome.steps[refused].status is StepStatus.HALTED
    assert world.nodes()[refused] == (
        "halt",
        f"Step limit exceeded: {limit} used, limit {limit} (scope run)",
    )
    assert [step for step, _ in world.node.seen] == done


@pytest.mark.req("000/B3")
def test_a_step_that_a_limit_stops_keeps_what_it_had_so_far() -> None:
    """A halted step keeps its partial outputs, and earlier steps keep their results."""

    async def stopped(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        found = ["first"]
        context.keep(lambda: {"found": list(found)})
        found.append("second")
        context.scope.require_something_left()
        raise AssertionError

    outcome, _ = drive(CHAIN, Scripted(B=stopped), budget=Budget(max_tokens=0))

    assert isinstance(outcome.stop, BudgetExceededError)
    assert outcome.steps["A"].outputs == {"default": "A"}
    assert outcome.steps["B"].outputs == {"found": ["first", "second"]}
    assert statuses(outcome) == {"A": "completed", "B": "halted", "C": "not_started"}


def test_an_overshoot_halts_the_next_step_and_keeps_the_finished_one() -> None:
    """A step that exceeds the token limit completes; the next one is halted."""

    async def greedy(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.scope.add({Dimension.TOKENS: 101})
        return {"default": "A"}

    outcome, _ = drive(CHAIN, Scripted(A=greedy), budget=Budget(max_tokens=100))

    assert statuses(outcome) == {"A": "completed", "B": "halted", "C": "not_started"}
    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "tokens"


@pytest.mark.req("000/C3")
def test_a_stop_is_heard_before_a_step() -> None:
    """No step starts if the token was tripped before."""
    outcome, world = drive(CHAIN, before=lambda world: world.gateway.token.cancel("early"))

    assert isinstance(outcome.stop, stops.CancelledError)
    assert set(statuses(outcome).values()) == {"not_started"}
    assert world.node.seen == []


@pytest.mark.req("000/C3")
def test_a_step_begins_only_with_a_permission_to_go_on() -> None:
    """The barrier refuses a step when another process requested the stop."""

    async def refuse() -> None:
        raise stops.CancelledError("wished elsewhere")

    def before(world: GraphRun) -> None:
        world.gateway.journal.at_barrier = refuse

    outcome, world = drive(CHAIN, before=before)

    assert str(outcome.stop) == "wished elsewhere"
    assert world.nodes()["A"] == ("halt", "wished elsewhere")
    assert world.node.seen == []
    assert world.gateway.spent() == {}


@pytest.mark.req("000/C3")
def test_a_stop_is_heard_after_a_step_whose_result_is_kept() -> None:
    """A step that returns after a stop completes; only the next one does not start."""

    async def last_words(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.token.cancel("enough")
        return {"default": "said"}

    outcome, world = drive(CHAIN, Scripted(A=last_words))

    assert str(outcome.stop) == "enough"
    assert statuses(outcome) == {"A": "completed", "B": "not_started", "C": "not_started"}
    assert outcome.steps["A"].outputs == {"default": "said"}
    assert world.gateway.entry().outcome is CallOutcome.RESULT


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", range(20))
def test_a_stop_reaches_a_step_in_flight(seed: int) -> None:
    """A stop cancels a running step at once; the step keeps its partial outputs."""

    async def waits(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: {"so": "far"})
        await asyncio.sleep(60)
        return {}

    def in_a_while(world: GraphRun) -> None:
        asyncio.get_running_loop().call_later(10, world.gateway.token.cancel, "enough")

    outcome, world = drive(CHAIN, Scripted(B=waits), before=in_a_while, seed=seed)

    assert str(outcome.stop) == "enough"
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert world.nodes()["B"] == ("halt", "enough")
    assert statuses(outcome) == {"A": "completed", "B": "cancelled", "C": "not_started"}


def test_what_a_step_kept_may_break_without_breaking_its_end() -> None:
    """An error in the callback for partial outputs does not replace the stop."""

    async def stopped(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: dict[str, Any]()["nothing"])
        raise stops.CancelledError("enough")

    outcome, _ = drive(CHAIN, Scripted(A=stopped))

    assert str(outcome.stop) == "enough"
    assert outcome.steps["A"].outputs == {}


def test_a_wish_beats_a_hand_over_that_a_step_ran_into() -> None:
    """A cancel request wins over a hand-over, so that no other process resumes the run."""

    async def handed_over(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.token.cancel("stop it")
        raise HandOver("the database is slow")

    outcome, _ = drive(CHAIN, Scripted(A=handed_over))

    assert str(outcome.stop) == "stop it"


def test_work_that_was_abandoned_changes_nothing_any_more() -> None:
    """The graph keeps its final state; the late result of an abandoned step is dropped."""

    async def stubborn(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: {"so": "far"})
        for _ in range(3):
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                continue
        return {"default": "late"}

    def in_a_while(world: GraphRun) -> None:
        asyncio.get_running_loop().call_later(10, world.gateway.token.cancel, "enough")

    outcome, world = drive(CHAIN, Scripted(B=stubborn), before=in_a_while)

    assert str(outcome.stop) == "enough"
    assert statuses(outcome) == {"A": "completed", "B": "cancelled", "C": "not_started"}
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert [step for step, _ in world.node.seen] == ["A", "B"]
