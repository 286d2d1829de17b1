"""Calls that wait for budget that other calls have reserved."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.stops import HandOver
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.core.graph.facts import StepStatus
from caseworker.core.trace.explain import explain
from caseworker.engine.call import CallFailedError, Reply, Spent
from caseworker.engine.ports import IF_LOST, CallOutcome
from tests.support.seeded_loop import now
from tests.unit.engine.driving import Scripted, drive, graph
from tests.unit.engine.gateway import (
    ESTIMATE,
    REAL,
    Attempts,
    Gateway,
    busy,
    gateway_after,
    must_not_be_made,
)

ONE_ESTIMATE = Budget(max_tokens=120)
"""Fits one estimate of 100 tokens; a second call fits only after the first is settled."""


async def slow() -> Reply:
    await asyncio.sleep(2)
    return Reply({"text": "four"}, Spent(tokens_in=15, tokens_out=5))


async def two_calls(gateway: Gateway) -> "tuple[asyncio.Task[Any], asyncio.Task[Any]]":
    """Start two calls at the same time; the first one begins before the second one."""
    first = asyncio.create_task(gateway.perform(slow, key="a/llm"))
    await asyncio.sleep(0.5)
    return first, asyncio.create_task(gateway.perform(slow, key="b/llm"))


@pytest.mark.req("000/B5")
def test_calls_that_fit_one_after_the_other_wait_for_one_another() -> None:
    """A reservation of another call delays a call without refusing it; the trace shows the wait."""

    async def story(gateway: Gateway) -> None:
        first, second = await two_calls(gateway)
        await first
        await second
        assert now() == 4

    gateway = gateway_after(story, budget=ONE_ESTIMATE)
    assert gateway.spent()["tokens"] == 40
    assert "waited_ms" not in gateway.node(2)["metadata"]
    assert gateway.node(3)["metadata"]["waited_ms"] == 1500
    assert "waited 1.50 s for budget" in explain(gateway.graph.snapshot())


def test_a_call_that_is_cancelled_while_it_waits_was_never_made() -> None:
    """A call cancelled while it waits costs and reserves nothing; the trace shows its wait."""

    async def story(gateway: Gateway) -> None:
        first, second = await two_calls(gateway)
        await asyncio.sleep(1)
        second.cancel()
        await asyncio.wait([second])
        assert second.cancelled()
        await first

    gateway = gateway_after(story, budget=ONE_ESTIMATE)
    assert (gateway.node(3)["status"], gateway.node(3)["tokens_in"]) == ("halt", None)
    assert gateway.node(3)["metadata"]["waited_ms"] == 1000
    assert gateway.entry(3).outcome is CallOutcome.NOT_MADE
    assert gateway.spent()["api_calls"] == 1


def test_a_call_is_refused_once_what_others_really_used_leaves_no_room_for_it() -> None:
    """The refusal reports the used, reserved, requested and allowed amounts."""

    async def uses_all() -> Reply:
        await asyncio.sleep(2)
        return Reply("four", ESTIMATE)

    async def story(gateway: Gateway) -> None:
        first = asyncio.create_task(gateway.perform(uses_all, key="a/llm"))
        await asyncio.sleep(1)
        with pytest.raises(BudgetExceededError) as refused:
            await gateway.perform(must_not_be_made, key="b/llm")
        await first
        stop = refused.value.cause.to_dict()
        asked = {"used": 100, "reserved": 0, "requested": 100, "limit": 120}
        assert stop | asked == stop
        assert (stop["dimension"], stop["scope"]) == ("tokens", "run")
        assert "100 used, 100 requested, limit 120" in stop["reason"]

    gateway = gateway_after(story, budget=ONE_ESTIMATE)
    assert gateway.node(3)["metadata"]["waited_ms"] == 1000


def test_a_refused_barrier_leaves_its_place_to_the_next_call() -> None:
    """A reservation ends when the barrier refuses its call, so a limit of one allows the next."""

    async def story(gateway: Gateway) -> None:
        asked = 0

        async def at_barrier() -> None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(1)
            if asked == 1:
                raise HandOver("The database answers too slowly.")

        gateway.journal.at_barrier = at_barrier
        first, second = await two_calls(gateway)
        with pytest.raises(HandOver):
            await first
        assert await second == {"text": "four"}

    gateway = gateway_after(story, budget=Budget(max_llm_calls_small=1))
    assert gateway.spent()["llm_calls_small"] == 1


def test_a_call_inside_a_call_is_refused_what_the_call_around_it_holds() -> None:
    """A nested call is refused at once instead of waiting for its outer call's reservation."""

    async def story(gateway: Gateway) -> None:
        async def outer() -> Reply:
            with pytest.raises(BudgetExceededError):
                await gateway.perform(must_not_be_made, key="a/inner")
            return Reply("four", REAL)

        await gateway.perform(outer, key="a/llm")

    assert gateway_after(story, budget=ONE_ESTIMATE).spent()["tokens"] == 75


async def hangs() -> Reply:
    await asyncio.sleep(100)
    raise AssertionError


def test_what_was_sent_and_not_answered_is_estimated_and_says_so() -> None:
    """An unanswered call is charged at its estimate, marked so in usage, journal and trace."""

    async def story(gateway: Gateway) -> None:
        call = asyncio.create_task(gateway.perform(hangs))
        await asyncio.sleep(1)
        in_flight = gateway.entry()
        assert in_flight.charge[Dimension.TOKENS_ESTIMATED] == 100
        assert in_flight.value[IF_LOST]["tokens_out"] == 20
        call.cancel()
        await asyncio.wait([call])

    gateway = gateway_after(story)
    spent = gateway.spent()
    assert (spent["tokens"], spent["tokens_estimated"]) == (100, 100)
    assert spent["cost_usd"] == spent["cost_usd_estimated"] == Decimal("0.50")
    assert dict(gateway.entry().charge) == spent
    node = gateway.node()
    assert (node["tokens_in"], node["tokens_out"], node["cost_usd"]) == (80, 20, 0.5)
    estimated = {"tokens_in": 80, "tokens_out": 20, "cost_usd": 0.5}
    assert node["metadata"]["estimated"] == estimated
    assert "estimated: 100 tokens and $0.5000" in explain(gateway.graph.snapshot())


def test_a_trace_says_how_much_more_than_reserved_a_call_used() -> None:
    """The call reserved 100 tokens and half a dollar."""
    used = Spent(tokens_in=90, tokens_out=30, cost_usd=Decimal("0.75"))

    async def answers() -> Reply:
        return Reply("four", used)

    gateway = gateway_after(lambda gateway: gateway.perform(answers))

    text = explain(gateway.graph.snapshot())
    assert "overrun: 20 tokens more than reserved" in text
    assert "overrun: $0.2500 more than reserved" in text


def test_of_a_retried_call_only_the_lost_attempt_is_estimated() -> None:
    """Only the failed attempt is charged at its estimate; the provider reports the other one."""
    gateway = gateway_after(lambda gateway: gateway.perform(Attempts(busy())))

    node: Any = gateway.node()
    assert (node["tokens_in"], node["tokens_out"]) == (80 + 70, 20 + 5)
    assert node["metadata"]["estimated"]["tokens_out"] == 20
    assert (gateway.spent()["tokens"], gateway.spent()["tokens_estimated"]) == (175, 100)


def test_a_price_that_is_not_known_is_null_and_not_zero() -> None:
    """A call without a known price costs null in trace and usage; its tokens are counted."""

    async def attempt() -> Reply:
        return Reply("four", Spent(tokens_in=70, tokens_out=5, cost_usd=None))

    gateway = gateway_after(lambda gateway: gateway.perform(attempt, cost=Spent(cost_usd=None)))

    assert gateway.node()["cost_usd"] is None
    usage = gateway.scope.to_dict()
    assert (usage["cost_usd"], usage["unpriced_calls"], usage["tokens"]) == (None, 1, 75)
    assert "unknown" in explain(gateway.graph.snapshot())


@pytest.mark.parametrize("asked", ["2", b"2", object(), float("nan"), [1]])
def test_a_wait_that_is_no_number_of_seconds_is_passed_over(asked: Any) -> None:
    """An invalid Retry-After is ignored; the failure and the retry delays stay unchanged."""
    failure = busy()
    failure.retry_after_seconds = asked

    async def fails() -> Reply:
        raise failure

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError, match="The provider is busy"):
            await gateway.perform(fails)

    assert gateway_after(story).node()["error_class"] == "ProviderBusy"


WIDE = graph("ABC", max_parallel=3)


@pytest.mark.req("000/B1", "004/lifecycle")
@pytest.mark.parametrize("handed_over_after", [None, 3])
def test_a_refused_lane_ends_no_run_whose_allowed_calls_are_handed_over(
    handed_over_after: float | None,
) -> None:
    """A hand-over while allowed calls run wins over the limit, which otherwise ends the run."""

    async def allowed(context: Any, inputs: Any) -> Any:
        await asyncio.sleep(5)
        return {"default": "answered"}

    async def refused(context: Any, inputs: Any) -> Any:
        context.scope.charge({Dimension.TOOL_CALLS: 1})
        return {}

    def before(world: Any) -> None:
        if handed_over_after is not None:
            stop = HandOver("The process is shutting down.")
            loop = asyncio.get_running_loop()
            loop.call_later(handed_over_after, world.gateway.token.trip, stop)

    node = Scripted(A=allowed, B=refused)
    outcome, _ = drive(
        graph("AB", max_parallel=2), node, budget=Budget(max_tool_calls=0), before=before
    )

    if handed_over_after is None:
        assert isinstance(outcome.stop, BudgetExceededError)
        assert outcome.steps["A"].outputs == {"default": "answered"}
    else:
        assert isinstance(outcome.stop, HandOver)


@pytest.mark.req("004/lifecycle")
def test_a_step_beside_a_reached_limit_is_not_executed_in_another_process() -> None:
    """A recovered run ends the step that started before the limit, and reports the limit."""

    def before(world: Any) -> None:
        stop = BudgetExceededError(world.gateway.scope.usage, Budget(), "spent").cause.to_dict()
        remember = world.gateway.journal.remember
        remember("step:B", CallOutcome.UNKNOWN, {"stop": stop, "outputs": {}}, "")
        remember("step:A", CallOutcome.UNKNOWN, None, "")

    outcome, world = drive(WIDE, Scripted(), before=before)

    assert outcome.stop is not None
    assert outcome.stop.cause.reason == "spent"
    assert world.node.seen == []
    assert outcome.steps["A"].status is StepStatus.HALTED
