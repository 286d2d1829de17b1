"""Calls that wait for a rate slot of a model."""

import asyncio
from functools import partial
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.trace.explain import explain
from caseworker.engine.call import CallFailedError, Reply, Spent
from caseworker.engine.ports import CallOutcome
from caseworker.models.gateway import Tier
from caseworker.models.ports import ModelError, RateLimit
from caseworker.models.turns import Allowance, Turns
from tests.support.fake_provider.script import Step
from tests.support.memory_rate_limits import MemoryRateLimits
from tests.support.seeded_loop import now
from tests.unit.engine.gateway import Gateway, gateway_after
from tests.unit.models.asking import Asking, asking_after, priced

LIMIT = RateLimit(model="m", requests_per_minute=60)
TOKENS = RateLimit(model="m", tokens_per_minute=6000)
ANSWER = Step(text="four", tokens_in=3, tokens_out=2)


async def answers() -> Reply:
    return Reply({"text": "four"}, Spent(tokens_in=15, tokens_out=5))


def waited_ms(gateway: Gateway, number: int) -> int:
    metadata: Any = gateway.node(number)["metadata"]
    return int(metadata.get("waited_for_model_ms", 0))


def test_calls_take_turns_and_the_trace_says_how_long_they_waited() -> None:
    """One call at a time asks for the slot, and the other queued calls sleep."""
    limits = MemoryRateLimits(every_seconds=2)

    async def story(gateway: Gateway) -> None:
        turn = partial(Turns(limits).turn, LIMIT, "t")
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(gateway.perform(answers, key=f"{number}/llm", turn=turn))
        assert now() == pytest.approx(4, abs=0.1)

    gateway = gateway_after(story)
    waits = sorted(waited_ms(gateway, number) for number in (2, 3, 4))
    assert waits == pytest.approx([0, 2000, 4000], abs=10)
    assert "waited 2.00 s for the model's rate limit" in explain(gateway.graph.snapshot())
    assert len(limits.asked) <= 6
    assert limits.left == []


def test_who_waits_for_a_turn_holds_nothing_that_others_need() -> None:
    """A call that waits for a rate slot does not hold budget that another call needs."""
    limits = MemoryRateLimits()
    limits.free_at = 10.0

    async def story(gateway: Gateway) -> None:
        turn = partial(Turns(limits).turn, LIMIT, "t")
        waits = asyncio.create_task(gateway.perform(answers, key="a/llm", turn=turn))
        await asyncio.sleep(1)
        assert gateway.journal.events[-1] == "touch"  # the stored trace shows that it waits
        await gateway.perform(answers, key="b/llm")
        assert now() == 1
        await waits
        assert now() >= 10

    gateway_after(story, budget=Budget(max_tokens=130))


def test_who_waits_for_budget_lets_others_have_their_turn() -> None:
    """A run that waits for its own budget does not block other runs of its tenant."""
    limits = MemoryRateLimits(every_seconds=0.5)

    async def long() -> Reply:
        await asyncio.sleep(20)
        return await answers()

    async def story(gateway: Gateway) -> None:
        turns = Turns(limits)
        turn = partial(turns.turn, LIMIT, "t")
        other = Gateway(gateway.loop)
        first = asyncio.create_task(gateway.perform(answers, key="a/llm", turn=turn))
        await first
        second = asyncio.create_task(gateway.perform(answers, key="b/llm", turn=turn))
        await asyncio.sleep(0.1)
        holds = asyncio.create_task(gateway.perform(long, key="c/llm"))
        await other.perform(answers, turn=turn)
        assert now() < 2
        await second
        assert now() > 20
        await holds

    gateway_after(story, budget=Budget(max_tokens=150))


def test_a_stop_ends_the_wait_at_once_and_the_place_is_given_up() -> None:
    """The call is recorded as not made, and its trace shows how long it waited."""
    limits = MemoryRateLimits()
    limits.free_at = 100.0

    async def story(gateway: Gateway) -> None:
        turns = Turns(limits)
        turn = partial(turns.turn, LIMIT, "t")
        tasks = [
            asyncio.create_task(gateway.perform(answers, key=f"{number}/llm", turn=turn))
            for number in range(3)
        ]
        await asyncio.sleep(5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert now() == 5
        await turns.aclose()

    gateway = gateway_after(story)
    for number in (2, 3, 4):
        assert gateway.node(number)["status"] == "halt"
        assert waited_ms(gateway, number) >= 4990
        assert gateway.entry(number).outcome is CallOutcome.NOT_MADE
    assert limits.left == ["t"]


def test_a_replayed_call_takes_no_turn() -> None:
    """A replayed call is not made, so it needs no slot."""
    limits = MemoryRateLimits()

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", CallOutcome.RESULT, {"text": "four"})
        turn = partial(Turns(limits).turn, LIMIT, "t")
        assert await gateway.perform(answers, turn=turn) == {"text": "four"}

    gateway_after(story)
    assert limits.asked == []


def test_tokens_that_were_not_needed_are_given_back_and_wake_the_next() -> None:
    """The next request for a slot returns the unused tokens."""
    limits = MemoryRateLimits(every_seconds=60)

    async def story(gateway: Gateway) -> None:
        turn = partial(Turns(limits).turn, TOKENS, "t")

        async def soon() -> Reply:
            await asyncio.sleep(1)
            limits.free_at = 0
            return await answers()

        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.perform(soon, key="a/llm", turn=turn))
            await asyncio.sleep(0.5)
            group.create_task(gateway.perform(answers, key="b/llm", turn=turn))
        assert now() < 2

    gateway_after(story)
    assert limits.asked == [("t", 100, 0), ("t", 100, 0), ("t", 100, 80)]


def limited(story: Any, limits: MemoryRateLimits, limit: RateLimit | None = LIMIT) -> Asking:
    return asking_after(story, priced("m", limit=limit), turns=Turns(limits))


def test_a_model_is_asked_when_it_is_the_tenants_turn() -> None:
    """The slot is requested for the largest possible usage; a model without a limit needs none."""
    limits = MemoryRateLimits(every_seconds=3)

    async def story(asking: Asking) -> None:
        asking.provider.script("m", ANSWER, repeat_last=True)
        await asking.ask(key="a")
        await asking.ask(key="b", max_output_tokens=10)

    asking = limited(story, limits, TOKENS)
    assert asking.provider.times() == pytest.approx([0, 3], abs=0.1)
    (_, most, _), *_, (_, less, unused) = limits.asked
    assert most - less == 1024 - 10
    assert unused == 0  # returned with the previous request
    assert sum(each[2] for each in limits.asked) == most - 5

    free = MemoryRateLimits()
    limited(story, free, None)
    assert free.asked == []


def test_another_model_of_the_same_provider_has_no_limit() -> None:
    """The limit belongs only to the model that it was configured for."""
    limits = MemoryRateLimits()

    async def story(asking: Asking) -> None:
        await asking.ask(model="unlisted")
        assert asking.models.table[Tier.SMALL].limit is LIMIT

    limited(story, limits)
    assert limits.asked == []


@pytest.mark.parametrize(("headers", "seconds"), [({"retry-after": "7"}, 7), ({}, 1)])
def test_a_refusal_for_being_asked_too_often_pauses_the_model(
    headers: dict[str, str], seconds: float
) -> None:
    """The pause applies to all callers and lasts as long as the provider asks for."""
    limits = MemoryRateLimits(every_seconds=0.01)

    async def story(asking: Asking) -> None:
        asking.provider.script("m", Step(status=429, headers=headers), ANSWER, repeat_last=True)
        first = asyncio.create_task(asking.ask(key="a"))
        await asyncio.sleep(0.5)
        second = asyncio.create_task(asking.ask(key="b"))
        await asyncio.wait([first, second])
        assert first.exception() is None
        assert second.exception() is None

    asking = limited(story, limits)
    assert limits.paused == [seconds]
    assert asking.provider.times()[1] >= seconds


def test_a_pause_has_an_end_whatever_a_provider_asks_for() -> None:
    """A pause is capped at one minute; a failure without a wait causes none."""
    limits = MemoryRateLimits()

    async def story(gateway: Gateway) -> None:
        turns = Turns(limits)
        turns.refused(LIMIT, ModelError("busy", retryable=True, status=503))
        turns.refused(
            LIMIT, ModelError("busy", retryable=True, status=503, retry_after_seconds=86400)
        )
        await turns.aclose()

    gateway_after(story)
    assert limits.paused == [60]


def test_an_allowance_never_lets_more_through_in_a_minute_than_its_limit() -> None:
    """The burst and the refill of one minute stay within the limit."""
    for per_minute in (1, 2, 59, 60, 61, 500, 3_000, 1_000_000):
        for seconds in (1, 3):
            allowance = Allowance.of(per_minute, burst_seconds=seconds)
            assert allowance.burst >= 1
            assert allowance.per_second > 0
            most = allowance.burst + 60 * allowance.per_second
            assert most == pytest.approx(per_minute + 1)
            assert 60 * allowance.per_second >= 0.94 * per_minute


def test_a_call_that_fails_before_it_is_made_gives_its_turn_up() -> None:
    """A refused barrier frees the slot for the next call."""
    limits = MemoryRateLimits(every_seconds=0.5)

    async def story(gateway: Gateway) -> None:
        turn = partial(Turns(limits).turn, TOKENS, "t")

        async def refuse() -> None:
            gateway.journal.at_barrier = None
            raise CallFailedError("no", error_class="X", attempts=0)

        gateway.journal.at_barrier = refuse
        with pytest.raises(CallFailedError):
            await gateway.perform(answers, key="a/llm", turn=turn)
        await gateway.perform(answers, key="b/llm", turn=turn)

    gateway_after(story)
    assert limits.asked[-1] == ("t", 100, 0)
    assert sum(unused for _, _, unused in limits.asked) == 100
