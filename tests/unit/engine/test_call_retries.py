"""Retries of a call: their delays, their number and their cost."""

import asyncio
from dataclasses import replace
from decimal import Decimal

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import (
    AttemptError,
    CallFailedError,
    Spent,
)
from caseworker.engine.ports import IF_LOST, CallOutcome
from caseworker.engine.supervision import Supervisor
from tests.support.limits import retry_policy
from tests.support.seeded_loop import now
from tests.unit.engine.gateway import Attempts, Gateway, answers, busy, gateway_after


@pytest.mark.req("002/21.1", "002/21.4", "002/13.2")
@pytest.mark.parametrize(
    ("draws", "waits"),
    [([0.0, 0.0], [0.5, 1.0]), ([1.0, -1.0], [0.6, 0.8]), ([-0.5, 0.5], [0.45, 1.1])],
)
def test_a_failed_attempt_is_made_again_after_exactly_its_wait(
    draws: list[float], waits: list[float]
) -> None:
    """Retries wait 0.5 and then 1.0 seconds, each with its jitter; an attempt takes 0.1 here."""
    attempts = Attempts(busy(), busy())

    gateway = gateway_after(lambda gateway: gateway.perform(attempts), draws=draws)

    second = 0.1 + waits[0]
    assert attempts.made_at == pytest.approx([0, second, second + 0.1 + waits[1]])
    assert gateway.node()["status"] == "success"


@pytest.mark.req("002/4.3", "002/21.1")
def test_the_provider_says_how_long_to_wait() -> None:
    """The provider's Retry-After applies where it is longer than the usual delay."""
    attempts = Attempts(busy(retry_after=7), busy(retry_after=0.01))

    gateway_after(lambda gateway: gateway.perform(attempts))

    assert attempts.made_at == pytest.approx([0, 7.1, 8.2])


@pytest.mark.req("002/4.3", "002/13.5")
def test_a_call_that_may_not_wait_long_enough_says_so() -> None:
    """The failure names the wait that the provider asked for, and the time that is left."""

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError) as caught:
            await gateway.perform(Attempts(busy(retry_after=7)))
        explained = "The provider asked to wait 7 s, which exceeds the time that is left (2.9 s)."
        assert str(caught.value) == f"The provider is busy. {explained}"

    gateway = gateway_after(story, budget=Budget(max_seconds=3))
    assert gateway.node()["stop_reason"] == gateway.entry().value["message"]


@pytest.mark.req("001/wiring")
def test_attempts_are_children_of_the_call_with_their_real_times() -> None:
    """The first attempt is added when the second begins; only the call carries cost and tokens."""
    attempts = Attempts(busy(), busy())

    gateway = gateway_after(lambda gateway: gateway.perform(attempts))

    shown = [
        (
            child["kind"],
            child["name"],
            child["status"],
            child["start_ts_ms"],
            child["end_ts_ms"],
            child["error_class"],
            child["metadata"],
        )
        for child in gateway.children()
    ]
    assert shown == [
        ("system", "attempt", "fail", 0, 100, "ProviderBusy", {"attempt": 1}),
        ("system", "attempt", "fail", 600, 700, "ProviderBusy", {"attempt": 2}),
        ("system", "attempt", "success", 1700, 1800, None, {"attempt": 3}),
    ]
    assert all(child["cost_usd"] == 0 for child in gateway.children())
    assert gateway.node()["retries_used"] == 2
    assert gateway.graph.snapshot()["aggregates"]["total_retries"] == 2
    assert gateway.graph.snapshot()["aggregates"]["total_llm_calls"] == 1


def test_a_call_that_succeeds_at_once_has_no_attempts_below_it() -> None:
    """A call that succeeds at the first attempt is a single node."""
    gateway = gateway_after(lambda gateway: gateway.perform(answers))

    assert gateway.children() == []
    assert gateway.node()["retries_used"] == 0


@pytest.mark.req("002/21.2", "002/21.5", "002/13.5")
def test_when_the_retries_are_used_up_the_call_fails() -> None:
    """The node and the journal keep the class and message of the last failure, for replays."""
    attempts = Attempts(*[busy() for _ in range(5)])

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError, match="provider is busy") as failed:
            await gateway.perform(attempts)
        assert (failed.value.error_class, failed.value.attempts) == ("ProviderBusy", 3)

    gateway = gateway_after(story)
    assert len(attempts.made_at) == len(gateway.children()) == 3
    node = gateway.node()
    assert (node["status"], node["error_class"]) == ("fail", "ProviderBusy")
    entry = gateway.entry()
    assert entry.outcome is CallOutcome.FAILURE
    assert entry.value == {
        "error_class": "ProviderBusy",
        "message": "The provider is busy.",
        "attempts": 3,
    }


def test_what_a_retry_cannot_help_is_not_tried_again() -> None:
    """A failure that is not retryable, such as a bad request, is not retried."""
    attempts = Attempts(AttemptError("Bad request.", error_class="BadRequest", retryable=False))

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError) as failed:
            await gateway.perform(attempts)
        assert failed.value.attempts == 1

    gateway = gateway_after(story)
    assert gateway.children() == []
    assert attempts.made_at == [0]


@pytest.mark.req("002/21.2", "002/4.2")
@pytest.mark.parametrize(("seconds", "made"), [(0.6, 1), (0.601, 2), (1.7, 2), (1.71, 3)])
def test_no_wait_goes_past_the_seconds_that_are_left(seconds: float, made: int) -> None:
    """The delays of 0.5 and 1.0 start at 0.1 and 0.7; one that would end too late is skipped."""
    attempts = Attempts(*[busy() for _ in range(5)])

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError):
            await gateway.perform(attempts)

    gateway_after(story, budget=Budget(max_time_seconds=seconds))
    assert len(attempts.made_at) == made


@pytest.mark.parametrize(("seconds", "made"), [(0.6, 1), (0.601, 2)])
def test_no_wait_goes_past_the_deadline(seconds: float, made: int) -> None:
    """A retry whose delay would end after the deadline is skipped."""
    attempts = Attempts(busy())

    async def story(gateway: Gateway) -> None:
        backoff = gateway.calls.backoff
        gateway.calls.backoff = replace(backoff, deadline_in=lambda: seconds - now())
        if made == 2:
            await gateway.perform(attempts)
            return
        with pytest.raises(CallFailedError):
            await gateway.perform(attempts)

    gateway_after(story)
    assert len(attempts.made_at) == made


@pytest.mark.req("000/B1", "002/20.4")
def test_every_attempt_is_charged_and_the_call_once() -> None:
    """A failed attempt costs its reported usage, or the estimate if it reports none."""
    attempts = Attempts(busy(), busy(spent=Spent(tokens_in=3, cost_usd=Decimal("0.01"))))

    gateway = gateway_after(lambda gateway: gateway.perform(attempts))

    assert gateway.spent() == {
        "llm_calls_small": 1,
        "api_calls": 3,
        "tokens": 100 + 3 + 75,
        "cost_usd": Decimal("0.81"),
        "tokens_estimated": 100,
        "cost_usd_estimated": Decimal("0.50"),
    }
    assert dict(gateway.entry().charge) == gateway.spent()
    assert gateway.node()["cost_usd"] == 0.81
    assert gateway.node()["tokens_in"] == 80 + 3 + 70


@pytest.mark.req("002/21.3")
def test_a_retry_that_the_budget_does_not_allow_halts_the_call() -> None:
    """The halted call keeps the cost of its first attempt; the refused retry is not counted."""
    attempts = Attempts(busy(), busy())

    async def story(gateway: Gateway) -> None:
        with pytest.raises(BudgetExceededError):
            await gateway.perform(attempts)

    gateway = gateway_after(story, budget=Budget(max_api_calls=1))
    node = gateway.node()
    assert (node["status"], node["cost_usd"], node["retries_used"]) == ("halt", 0.5, 0)
    assert gateway.children() == []
    assert gateway.spent()["api_calls"] == 1


def test_while_a_call_waits_the_journal_holds_what_it_has_really_cost() -> None:
    """Between attempts, the journal holds the real cost of the last one, not its reservation."""
    cheap = busy(spent=Spent(tokens_in=3))

    async def story(gateway: Gateway) -> None:
        task = asyncio.create_task(gateway.perform(Attempts(cheap)))
        await asyncio.sleep(0.3)
        assert gateway.entry().charge[Dimension.TOKENS] == 3
        assert gateway.entry().charge[Dimension.API_CALLS] == 1
        if_lost = gateway.entry().value[IF_LOST]  # the trace of a lost call uses these
        assert (if_lost["tokens_in"], if_lost["estimated"]) == (3, {})
        await task

    gateway_after(story)


@pytest.mark.req("000/C3")
def test_a_stop_interrupts_the_wait_for_a_retry() -> None:
    """A stop ends the retry delay at once; the halted call keeps the cost of its one attempt."""
    attempts = Attempts(busy(retry_after=20))

    async def story(gateway: Gateway) -> None:
        asyncio.get_running_loop().call_later(5, gateway.token.cancel, "enough")
        with pytest.raises(stops.CancelledError):
            await Supervisor(grace_seconds=1).run(
                gateway.perform(attempts), gateway.token, late=lambda _: None
            )
        assert now() == 5

    gateway = gateway_after(story)
    node = gateway.node()
    assert (node["status"], node["stop_reason"], node["cost_usd"]) == ("halt", "enough", 0.5)
    assert len(attempts.made_at) == 1
    assert node["retries_used"] == 0


def test_policies_of_one_attempt_do_not_wait() -> None:
    """A retry policy of one attempt, as tools have, does not wait."""
    attempts = Attempts(busy())

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError):
            await gateway.perform(attempts, retry=retry_policy(max_retries=0))
        assert now() == 0.1

    gateway_after(story)
