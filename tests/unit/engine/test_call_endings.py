"""Unusual ends of a call: timeouts, stops, foreign errors and late answers."""

import asyncio

import pytest

from caseworker.core.budget import stops
from caseworker.engine.call import (
    AttemptError,
    CallFailedError,
    Reply,
)
from caseworker.engine.supervision import Supervisor
from tests.support.seeded_loop import now
from tests.unit.engine.gateway import (
    ESTIMATE,
    REAL,
    Attempts,
    Gateway,
    answers,
    busy,
    gateway_after,
)


@pytest.mark.req("000/E2", "002/13.4")
def test_an_attempt_that_takes_too_long_is_cut_off_and_made_again() -> None:
    """Each attempt has its own timeout; a timed-out attempt is charged at the estimate."""
    seen: list[str] = []

    async def attempt() -> Reply:
        seen.append("made")
        if len(seen) == 1:
            await asyncio.sleep(60)
        return await answers()

    async def story(gateway: Gateway) -> None:
        await gateway.perform(attempt, timeout_seconds=2)
        assert now() == 2.5

    gateway = gateway_after(story)
    assert gateway.children()[0]["error_class"] == "TimeoutError"
    assert gateway.children()[0]["stop_reason"] == "No answer within 2 seconds."
    assert gateway.spent()["tokens"] == 175


def test_a_call_that_must_not_be_repeated_is_not_repeated_after_a_timeout() -> None:
    """A timed-out call may have taken effect, so a call that is not repeatable fails."""
    seen: list[str] = []

    async def attempt() -> Reply:
        seen.append("made")
        await asyncio.sleep(60)
        return await answers()

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError, match="No answer within 2 seconds"):
            await gateway.perform(attempt, timeout_seconds=2, repeatable=False)

    gateway_after(story)
    assert seen == ["made"]


@pytest.mark.req("000/E2")
def test_a_timeout_of_the_attempts_own_is_not_taken_for_ours() -> None:
    """A TimeoutError raised by the attempt itself passes through and is not retried."""
    attempts = Attempts(TimeoutError("mine"))

    async def story(gateway: Gateway) -> None:
        with pytest.raises(TimeoutError, match="mine"):
            await gateway.perform(attempts, timeout_seconds=60)

    gateway = gateway_after(story)
    assert len(attempts.made_at) == 1
    assert gateway.node()["status"] == "fail"


def test_an_error_that_no_call_should_raise_fails_the_call_without_its_words() -> None:
    """The message of a foreign error may hold personal data; the call's outcome stays unknown."""
    attempts = Attempts(busy(), RuntimeError("alice@example.org"))

    async def story(gateway: Gateway) -> None:
        with pytest.raises(RuntimeError):
            await gateway.perform(attempts)

    gateway = gateway_after(story)
    node = gateway.node()
    assert (node["status"], node["error_class"]) == ("fail", "RuntimeError")
    assert [child["status"] for child in gateway.children()] == ["fail", "fail"]
    assert "alice" not in str(gateway.graph.snapshot())
    assert gateway.entry().outcome is None
    assert gateway.spent()["tokens"] == 200


@pytest.mark.req("000/C3")
def test_a_stop_in_flight_halts_the_call_and_keeps_its_cost() -> None:
    """The scope, the node and the journal each count a stopped call once, at its estimate."""

    async def attempt() -> Reply:
        await asyncio.sleep(60)
        return await answers()

    async def story(gateway: Gateway) -> None:
        asyncio.get_running_loop().call_later(5, gateway.token.cancel, "enough")
        with pytest.raises(stops.CancelledError):
            await Supervisor(grace_seconds=1).run(
                gateway.perform(attempt), gateway.token, late=lambda _: None
            )

    gateway = gateway_after(story)
    node = gateway.node()
    assert (node["status"], node["stop_reason"]) == ("halt", "enough")
    assert (node["cost_usd"], node["tokens_in"], node["tokens_out"]) == (0.5, 80, 20)
    assert gateway.spent()["cost_usd"] == ESTIMATE.cost_usd
    assert gateway.entry().outcome is None
    assert dict(gateway.entry().charge) == gateway.spent()


def test_something_cancelled_that_an_attempt_waited_for_is_a_failure_of_the_attempt() -> None:
    """A cancelled future that an attempt awaits fails the call; the run was not cancelled."""

    async def attempt() -> Reply:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone
        return await answers()

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError, match="cancelled") as failed:
            await gateway.perform(attempt)
        assert failed.value.attempts == 1

    assert gateway_after(story).node()["error_class"] == "CancelledError"


@pytest.mark.parametrize("ending", ["answers", "fails", "is stopped"])
def test_a_call_that_ends_after_its_run_adds_what_it_has_cost(ending: str) -> None:
    """A call that outlives its run adds its cost; its node stays halted."""

    async def attempt() -> Reply:
        await asyncio.sleep(5)
        if ending == "fails":
            raise AttemptError("No.", error_class="No", retryable=False, spent=REAL)
        if ending == "is stopped":
            raise stops.CancelledError
        return Reply("four", REAL)

    async def story(gateway: Gateway) -> None:
        task = asyncio.create_task(gateway.perform(attempt))
        await asyncio.sleep(1)
        gateway.graph.mark_halt(gateway.root, "enough")
        await asyncio.wait({task})
        assert (task.exception() is None) == (ending == "answers")

    gateway = gateway_after(story)
    cost = 0.5 if ending == "is stopped" else 0.3
    assert (gateway.node()["status"], gateway.node()["cost_usd"]) == ("halt", cost)
    assert gateway.graph.snapshot()["aggregates"]["total_cost_usd"] == cost


def test_an_answer_that_cannot_be_stored_fails_the_call() -> None:
    """An answer that cannot be stored fails its call, not the run later; its cost is kept."""
    answer = {"text": object()}

    async def story(gateway: Gateway) -> None:
        async def attempt() -> Reply:
            return Reply(answer, REAL)

        gateway.journal.refuses = answer
        with pytest.raises(ValueError, match="JSON"):
            await gateway.perform(attempt)

    gateway = gateway_after(story)
    assert (gateway.node()["status"], gateway.node()["cost_usd"]) == ("fail", 0.3)
