"""The one gateway through which every LLM and tool call passes."""

import asyncio
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

import pytest

from app.control import stops
from app.control.budget import Budget, Dimension
from app.control.retry import RetryPolicy
from app.control.stops import HandOver, Stop
from app.control.usage import BudgetExceededError
from app.engine.call import (
    AttemptError,
    CallFailedError,
    OutcomeUnknownError,
    Reply,
    Spent,
)
from app.engine.ports import CallOutcome
from app.engine.settling import Supervisor
from tests.support.seeded_loop import SeededLoop
from tests.unit.engine.gateway import ESTIMATE, REAL, Gateway, play

Story = Callable[[Gateway], Coroutine[Any, Any, None]]


def told(story: Story, **settings: Any) -> Gateway:
    """Let a story happen at a gateway; return it as it was left."""
    made: list[Gateway] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        made.append(Gateway(loop, **settings))
        await story(made[0])
        assert made[0].settled()

    play(main)
    return made[0]


def now() -> float:
    return asyncio.get_running_loop().time()


async def answers() -> Reply:
    """An attempt that succeeds at once."""
    return Reply({"text": "four"}, REAL)


async def must_not_be_made() -> Reply:
    """An attempt that nobody may make."""
    pytest.fail("the call was made")


class Attempts:
    """Fails as often as it is told and then answers; notes when it was made."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.made_at: list[float] = []

    async def __call__(self) -> Reply:
        self.made_at.append(now())
        await asyncio.sleep(0.1)
        if self.failures:
            raise self.failures.pop(0)
        return Reply({"text": "four"}, REAL)


def busy(retry_after: float | None = None, spent: Spent | None = None) -> AttemptError:
    """The provider asks for patience."""
    return AttemptError(
        "The provider is busy.",
        error_class="ProviderBusy",
        retryable=True,
        retry_after_seconds=retry_after,
        spent=spent,
    )


# -- the way of a call -------------------------------------------------------------------------


@pytest.mark.req("001/wiring")
def test_a_call_is_begun_reserved_allowed_performed_and_settled_in_this_order() -> None:
    """The barrier stands directly before the attempt; what it cost is settled directly after."""

    async def story(gateway: Gateway) -> None:
        async def attempt() -> Reply:
            gateway.events.append("attempt")
            return await answers()

        assert await gateway.perform(attempt) == {"text": "four"}

    gateway = told(story)
    assert gateway.events == [
        "begin",
        "reserve",
        "note in flight",
        "barrier",
        "running",
        "attempt",
        "settle",
        "note result",
        "success",
    ]


def test_a_call_that_stays_inside_asks_for_no_external_permission() -> None:
    """It may rely on an earlier one."""
    gateway = told(lambda gateway: gateway.perform(answers, external=False))

    assert "barrier inside" in gateway.events


@pytest.mark.req("001/wiring", "002/20.4")
def test_a_call_is_settled_at_what_it_really_cost() -> None:
    """In the scope, on its node and in the journal; the estimate is given back."""

    async def story(gateway: Gateway) -> None:
        held: list[Any] = []

        async def attempt() -> Reply:
            held.append([gateway.scope.reserved(d) for d in (Dimension.TOKENS, Dimension.COST_USD)])
            held.append(dict(gateway.entry().charge))
            return await answers()

        await gateway.perform(attempt)
        assert held[0] == [100, Decimal("0.50")]
        assert held[1][Dimension.TOKENS] == 100

    gateway = told(story)
    spent = {"llm_calls_small": 1, "api_calls": 1, "tokens": 75, "cost_usd": Decimal("0.30")}
    assert gateway.spent() == spent
    node = gateway.node()
    assert (node["status"], node["cost_usd"], node["tokens_in"], node["tokens_out"]) == (
        "success",
        0.3,
        70,
        5,
    )
    assert (node["kind"], node["name"], node["model"]) == ("llm", "plan", "m-1")
    assert node["metadata"] == {"call_key": "step/llm"}
    entry = gateway.entry()
    assert (entry.outcome, entry.value) == (CallOutcome.RESULT, {"text": "four"})
    assert dict(entry.charge) == spent


def test_a_call_that_does_not_say_what_it_cost_is_charged_at_the_estimate() -> None:
    """On its node as well."""

    async def attempt() -> Reply:
        return Reply("four")

    gateway = told(lambda gateway: gateway.perform(attempt))
    assert gateway.spent()["tokens"] == 100
    assert gateway.node()["cost_usd"] == 0.5


@pytest.mark.parametrize(
    "spent",
    [
        {"tokens_in": -1},
        {"tokens_out": -1},
        {"cost_usd": Decimal("-0.01")},
        {"cost_usd": Decimal("NaN")},
        {"cost_usd": Decimal("Infinity")},
    ],
    ids=str,
)
def test_a_cost_that_cannot_be_is_refused_where_it_is_said(spent: dict[str, Any]) -> None:
    """It would give budget back, or poison every sum."""
    with pytest.raises(ValueError, match=r"cost|tokens"):
        Spent(**spent)


# -- refused calls -----------------------------------------------------------------------------


@pytest.mark.req("000/B1", "001/wiring")
@pytest.mark.parametrize(
    "budget",
    [
        Budget(max_api_calls=0),
        Budget(max_llm_calls_small=0),
        Budget(max_tokens=99),
        Budget(max_cost_dollars=0.49),
    ],
    ids=lambda budget: next(iter(budget.limits())),
)
def test_a_call_that_a_limit_refuses_is_a_halted_node_with_the_reason(budget: Budget) -> None:
    """It is never made and costs nothing; an execution that comes later knows that it was not."""

    async def story(gateway: Gateway) -> None:
        with pytest.raises(BudgetExceededError) as refused:
            await gateway.perform(must_not_be_made)
        node = gateway.node()
        assert (node["status"], node["stop_reason"]) == ("halt", refused.value.reason)

    gateway = told(story, budget=budget)
    assert gateway.spent() == {}
    assert "barrier" not in gateway.events
    assert (gateway.entry().outcome, dict(gateway.entry().charge)) == (CallOutcome.NOT_MADE, {})


@pytest.mark.req("000/B1")
def test_of_three_calls_two_are_allowed_where_two_are() -> None:
    """N allows exactly N."""

    async def story(gateway: Gateway) -> None:
        for number in range(2):
            await gateway.perform(answers, key=f"call {number}")
        with pytest.raises(BudgetExceededError):
            await gateway.perform(must_not_be_made, key="call 3")

    assert told(story, budget=Budget(max_api_calls=2)).spent()["api_calls"] == 2


@pytest.mark.parametrize(
    "refusal", [stops.CancelledError("enough"), HandOver("lost")], ids=lambda stop: str(stop)
)
def test_a_call_that_the_barrier_refuses_is_a_halted_node_with_the_reason(refusal: Stop) -> None:
    """Nothing is charged, nothing stays reserved, and the stop passes through."""

    async def story(gateway: Gateway) -> None:
        async def refuse() -> None:
            raise refusal

        gateway.journal.at_barrier = refuse
        with pytest.raises(type(refusal)):
            await gateway.perform(must_not_be_made)
        assert (gateway.node()["status"], gateway.node()["stop_reason"]) == ("halt", str(refusal))

    gateway = told(story)
    assert gateway.spent() == {}
    assert gateway.entry().outcome is CallOutcome.NOT_MADE


@pytest.mark.req("000/C3")
def test_a_stop_that_arrives_while_the_barrier_is_asked_is_heard_before_the_call() -> None:
    """The answer may be yes, from a moment before."""

    async def story(gateway: Gateway) -> None:
        async def cancelled_meanwhile() -> None:
            gateway.token.cancel("just now")

        gateway.journal.at_barrier = cancelled_meanwhile
        with pytest.raises(stops.CancelledError):
            await gateway.perform(must_not_be_made)
        assert gateway.node()["stop_reason"] == "just now"

    told(story)


@pytest.mark.req("000/C3")
def test_after_a_stop_no_call_is_even_begun() -> None:
    """There is no node and no question to the journal."""

    async def story(gateway: Gateway) -> None:
        gateway.token.cancel()
        with pytest.raises(stops.CancelledError):
            await gateway.perform(must_not_be_made)

    assert told(story).events == []


# -- retries -----------------------------------------------------------------------------------


@pytest.mark.req("002/21.1", "002/21.4", "002/13.2")
@pytest.mark.parametrize(
    ("draws", "waits"),
    [([0.0, 0.0], [0.5, 1.0]), ([1.0, -1.0], [0.6, 0.8]), ([-0.5, 0.5], [0.45, 1.1])],
)
def test_a_failed_attempt_is_made_again_after_exactly_its_wait(
    draws: list[float], waits: list[float]
) -> None:
    """Half a second, then twice that, each with its jitter; an attempt takes a tenth here."""
    attempts = Attempts(busy(), busy())

    gateway = told(lambda gateway: gateway.perform(attempts), draws=draws)

    second = 0.1 + waits[0]
    assert attempts.made_at == pytest.approx([0, second, second + 0.1 + waits[1]])
    assert gateway.node()["status"] == "success"


@pytest.mark.req("002/4.3", "002/21.1")
def test_the_provider_says_how_long_to_wait() -> None:
    """Its Retry-After counts where it is longer than the usual wait."""
    attempts = Attempts(busy(retry_after=7), busy(retry_after=0.01))

    told(lambda gateway: gateway.perform(attempts))

    assert attempts.made_at == pytest.approx([0, 7.1, 8.2])


@pytest.mark.req("001/wiring")
def test_attempts_are_children_of_the_call_with_their_real_times() -> None:
    """The first is added when the second begins; cost and tokens stand on the call alone."""
    attempts = Attempts(busy(), busy())

    gateway = told(lambda gateway: gateway.perform(attempts))

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
    """It is one node."""
    gateway = told(lambda gateway: gateway.perform(answers))

    assert gateway.children() == []
    assert gateway.node()["retries_used"] == 0


@pytest.mark.req("002/21.2", "002/21.5", "002/13.5")
def test_when_the_retries_are_used_up_the_call_fails() -> None:
    """With the last failure, and its class, on the node; a replay fails alike."""
    attempts = Attempts(*[busy() for _ in range(5)])

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError, match="provider is busy") as failed:
            await gateway.perform(attempts)
        assert (failed.value.error_class, failed.value.attempts) == ("ProviderBusy", 3)

    gateway = told(story)
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
    """Such as a request that the provider calls wrong."""
    attempts = Attempts(AttemptError("Bad request.", error_class="BadRequest", retryable=False))

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError) as failed:
            await gateway.perform(attempts)
        assert failed.value.attempts == 1

    gateway = told(story)
    assert gateway.children() == []
    assert attempts.made_at == [0]


@pytest.mark.req("002/21.2", "002/4.2")
@pytest.mark.parametrize(("seconds", "made"), [(0.6, 1), (0.601, 2), (1.7, 2), (1.71, 3)])
def test_no_wait_goes_past_the_seconds_that_are_left(seconds: float, made: int) -> None:
    """Waits of 0.5 and 1.0 begin at 0.1 and 0.7; one that would end too late is not begun."""
    attempts = Attempts(*[busy() for _ in range(5)])

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError):
            await gateway.perform(attempts)

    told(story, budget=Budget(max_time_seconds=seconds))
    assert len(attempts.made_at) == made


@pytest.mark.req("000/B1", "002/20.4")
def test_every_attempt_is_charged_and_the_call_once() -> None:
    """A failure costs what it says, or the estimate if it does not say."""
    attempts = Attempts(busy(), busy(spent=Spent(tokens_in=3, cost_usd=Decimal("0.01"))))

    gateway = told(lambda gateway: gateway.perform(attempts))

    assert gateway.spent() == {
        "llm_calls_small": 1,
        "api_calls": 3,
        "tokens": 100 + 3 + 75,
        "cost_usd": Decimal("0.81"),
    }
    assert dict(gateway.entry().charge) == gateway.spent()
    assert gateway.node()["cost_usd"] == 0.81
    assert gateway.node()["tokens_in"] == 80 + 3 + 70


@pytest.mark.req("002/21.3")
def test_a_retry_that_the_budget_does_not_allow_halts_the_call() -> None:
    """With what the attempt before it had cost; it is no retry, for it never began."""
    attempts = Attempts(busy(), busy())

    async def story(gateway: Gateway) -> None:
        with pytest.raises(BudgetExceededError):
            await gateway.perform(attempts)

    gateway = told(story, budget=Budget(max_api_calls=1))
    node = gateway.node()
    assert (node["status"], node["cost_usd"], node["retries_used"]) == ("halt", 0.5, 0)
    assert gateway.children() == []
    assert gateway.spent()["api_calls"] == 1


def test_while_a_call_waits_the_journal_holds_what_it_has_really_cost() -> None:
    """Not what was reserved for the attempt that is over."""
    cheap = busy(spent=Spent(tokens_in=3))

    async def story(gateway: Gateway) -> None:
        task = asyncio.create_task(gateway.perform(Attempts(cheap)))
        await asyncio.sleep(0.3)
        assert gateway.entry().charge[Dimension.TOKENS] == 3
        assert gateway.entry().charge[Dimension.API_CALLS] == 1
        await task

    told(story)


@pytest.mark.req("000/C3")
def test_a_stop_interrupts_the_wait_for_a_retry() -> None:
    """At once; the call is halted, at the cost of the attempt that was made."""
    attempts = Attempts(busy(retry_after=20))

    async def story(gateway: Gateway) -> None:
        asyncio.get_running_loop().call_later(5, gateway.token.cancel, "enough")
        with pytest.raises(stops.CancelledError):
            await Supervisor(grace_seconds=1).run(
                gateway.perform(attempts), gateway.token, late=lambda _: None
            )
        assert now() == 5

    gateway = told(story)
    node = gateway.node()
    assert (node["status"], node["stop_reason"], node["cost_usd"]) == ("halt", "enough", 0.5)
    assert len(attempts.made_at) == 1
    assert node["retries_used"] == 0


# -- timeouts, cancels, surprises ----------------------------------------------------------------


@pytest.mark.req("000/E2", "002/13.4")
def test_an_attempt_that_takes_too_long_is_cut_off_and_made_again() -> None:
    """Each has its own time; the lost one is charged at the estimate."""
    seen: list[str] = []

    async def attempt() -> Reply:
        seen.append("made")
        if len(seen) == 1:
            await asyncio.sleep(60)
        return await answers()

    async def story(gateway: Gateway) -> None:
        await gateway.perform(attempt, timeout_seconds=2)
        assert now() == 2.5

    gateway = told(story)
    assert gateway.children()[0]["error_class"] == "TimeoutError"
    assert gateway.children()[0]["stop_reason"] == "No answer within 2 seconds."
    assert gateway.spent()["tokens"] == 175


def test_a_call_that_must_not_be_repeated_is_not_repeated_after_a_timeout() -> None:
    """It may have taken effect."""
    seen: list[str] = []

    async def attempt() -> Reply:
        seen.append("made")
        await asyncio.sleep(60)
        return await answers()

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError, match="No answer within 2 seconds"):
            await gateway.perform(attempt, timeout_seconds=2, repeatable=False)

    told(story)
    assert seen == ["made"]


@pytest.mark.req("000/E2")
def test_a_timeout_of_the_attempts_own_is_not_taken_for_ours() -> None:
    """It is an error like any other, raised as it is and not tried again."""
    attempts = Attempts(TimeoutError("mine"))

    async def story(gateway: Gateway) -> None:
        with pytest.raises(TimeoutError, match="mine"):
            await gateway.perform(attempts, timeout_seconds=60)

    gateway = told(story)
    assert len(attempts.made_at) == 1
    assert gateway.node()["status"] == "fail"


def test_an_error_that_no_call_should_raise_fails_the_call_without_its_words() -> None:
    """They could hold anything; and nobody can tell what came of the call."""
    attempts = Attempts(busy(), RuntimeError("alice@example.org"))

    async def story(gateway: Gateway) -> None:
        with pytest.raises(RuntimeError):
            await gateway.perform(attempts)

    gateway = told(story)
    node = gateway.node()
    assert (node["status"], node["error_class"]) == ("fail", "RuntimeError")
    assert [child["status"] for child in gateway.children()] == ["fail", "fail"]
    assert "alice" not in str(gateway.graph.snapshot())
    assert gateway.entry().outcome is None
    assert gateway.spent()["tokens"] == 200


@pytest.mark.req("000/C3")
def test_a_stop_in_flight_halts_the_call_and_keeps_its_cost() -> None:
    """At the estimate, for nobody can tell; in the journal as well, and once only."""

    async def attempt() -> Reply:
        await asyncio.sleep(60)
        return await answers()

    async def story(gateway: Gateway) -> None:
        asyncio.get_running_loop().call_later(5, gateway.token.cancel, "enough")
        with pytest.raises(stops.CancelledError):
            await Supervisor(grace_seconds=1).run(
                gateway.perform(attempt), gateway.token, late=lambda _: None
            )

    gateway = told(story)
    node = gateway.node()
    assert (node["status"], node["stop_reason"]) == ("halt", "enough")
    assert (node["cost_usd"], node["tokens_in"], node["tokens_out"]) == (0.5, 80, 20)
    assert gateway.spent()["cost_usd"] == ESTIMATE.cost_usd
    assert gateway.entry().outcome is None
    assert dict(gateway.entry().charge) == gateway.spent()


def test_something_cancelled_that_an_attempt_waited_for_is_a_failure_of_the_attempt() -> None:
    """Nobody has asked the run to end."""

    async def attempt() -> Reply:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone
        return await answers()

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError, match="cancelled") as failed:
            await gateway.perform(attempt)
        assert failed.value.attempts == 1

    assert told(story).node()["error_class"] == "CancelledError"


@pytest.mark.parametrize("ending", ["answers", "fails", "is stopped"])
def test_a_call_that_ends_after_its_run_adds_what_it_has_cost(ending: str) -> None:
    """It had ignored its stop; its node stays halted."""

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

    gateway = told(story)
    cost = 0.5 if ending == "is stopped" else 0.3
    assert (gateway.node()["status"], gateway.node()["cost_usd"]) == ("halt", cost)
    assert gateway.graph.snapshot()["aggregates"]["total_cost_usd"] == cost


def test_an_answer_that_cannot_be_stored_fails_the_call() -> None:
    """Rather than the run, later; what it cost is kept."""
    answer = {"text": object()}

    async def story(gateway: Gateway) -> None:
        async def attempt() -> Reply:
            return Reply(answer, REAL)

        gateway.journal.refuses = answer
        with pytest.raises(ValueError, match="JSON"):
            await gateway.perform(attempt)

    gateway = told(story)
    assert (gateway.node()["status"], gateway.node()["cost_usd"]) == ("fail", 0.3)


# -- calls of earlier executions -----------------------------------------------------------------


def test_a_recorded_result_is_returned_without_a_call() -> None:
    """No node, no barrier, no charge; not even a stop or an empty budget is in its way."""

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", CallOutcome.RESULT, {"text": "before"})
        gateway.token.cancel()
        assert await gateway.perform(must_not_be_made) == {"text": "before"}

    gateway = told(story, budget=Budget(max_api_calls=0))
    assert gateway.events == []
    assert gateway.spent() == {}


def test_a_recorded_failure_fails_again_without_a_call() -> None:
    """With the same words, class and count."""
    value = {"error_class": "ProviderBusy", "message": "Busy.", "attempts": 3}

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", CallOutcome.FAILURE, value)
        with pytest.raises(CallFailedError, match="Busy") as failed:
            await gateway.perform(must_not_be_made)
        assert (failed.value.error_class, failed.value.attempts) == ("ProviderBusy", 3)

    assert told(story).events == []


@pytest.mark.parametrize("outcome", CallOutcome)
def test_what_was_recorded_of_another_request_is_not_replayed(outcome: CallOutcome) -> None:
    """The call is made, and charged in full."""

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", outcome, {"text": "before"}, hashed="other")
        assert await gateway.perform(answers, repeatable=False) == {"text": "four"}

    assert told(story).spent()["llm_calls_small"] == 1


def test_a_call_whose_outcome_is_unknown_is_not_repeated_if_that_could_do_harm() -> None:
    """The caller is told."""

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", CallOutcome.UNKNOWN)
        with pytest.raises(OutcomeUnknownError):
            await gateway.perform(must_not_be_made, repeatable=False)

    assert told(story).spent() == {}


def test_a_call_whose_outcome_is_unknown_is_made_again_as_the_same_logical_call() -> None:
    """The lost try has counted it already; the new attempt is one more for the provider."""

    async def story(gateway: Gateway) -> None:
        gateway.scope.add({Dimension.LLM_CALLS_SMALL: 1, Dimension.API_CALLS: 1})
        gateway.journal.remember("step/llm", CallOutcome.UNKNOWN)
        assert await gateway.perform(answers) == {"text": "four"}

    gateway = told(story, budget=Budget(max_llm_calls_small=1, max_api_calls=2))
    assert gateway.spent()["llm_calls_small"] == 1
    assert gateway.spent()["api_calls"] == 2


def test_a_call_that_was_refused_before_it_began_is_made_like_a_new_one() -> None:
    """Also if it must not be repeated: it never took effect, and was never charged."""

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", CallOutcome.NOT_MADE)
        assert await gateway.perform(answers, repeatable=False) == {"text": "four"}

    assert told(story).spent()["llm_calls_small"] == 1


def test_policies_of_one_attempt_do_not_wait() -> None:
    """Tools have those."""
    attempts = Attempts(busy())

    async def story(gateway: Gateway) -> None:
        with pytest.raises(CallFailedError):
            await gateway.perform(attempts, retry=RetryPolicy(max_retries=0))
        assert now() == 0.1

    told(story)
