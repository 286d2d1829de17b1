"""The gateway through which every LLM and tool call passes."""

from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.stops import HandOver, Stop
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import (
    CallFailedError,
    OutcomeUnknownError,
    Reply,
)
from caseworker.engine.ports import CallOutcome
from tests.unit.engine.gateway import Gateway, answers, gateway_after, must_not_be_made


@pytest.mark.req("001/wiring")
def test_a_call_is_begun_reserved_allowed_performed_and_settled_in_this_order() -> None:
    """The barrier comes directly before the attempt, the settlement directly after it."""

    async def story(gateway: Gateway) -> None:
        async def attempt() -> Reply:
            gateway.events.append("attempt")
            return await answers()

        assert await gateway.perform(attempt) == {"text": "four"}

    gateway = gateway_after(story)
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
    """A call without external effect needs no new permission; it may rely on an earlier one."""
    gateway = gateway_after(lambda gateway: gateway.perform(answers, external=False))

    assert "barrier inside" in gateway.events


@pytest.mark.req("001/wiring", "002/20.4")
def test_a_call_is_settled_at_what_it_really_cost() -> None:
    """Scope, node and journal hold the real cost; the rest of the reservation is released."""

    async def story(gateway: Gateway) -> None:
        held: list[Any] = []

        async def attempt() -> Reply:
            held.append([gateway.scope.reserved(d) for d in (Dimension.TOKENS, Dimension.COST_USD)])
            held.append(dict(gateway.entry().charge))
            return await answers()

        await gateway.perform(attempt)
        assert held[0] == [100, Decimal("0.50")]
        assert held[1][Dimension.TOKENS] == 100

    gateway = gateway_after(story)
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
    """A call that reports no usage is charged at the estimate, on its node as well."""

    async def attempt() -> Reply:
        return Reply("four")

    gateway = gateway_after(lambda gateway: gateway.perform(attempt))
    assert gateway.spent()["tokens"] == 100
    assert gateway.node()["cost_usd"] == 0.5


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
    """A call that a limit refuses is never made and costs nothing; the journal records that."""

    async def story(gateway: Gateway) -> None:
        with pytest.raises(BudgetExceededError) as refused:
            await gateway.perform(must_not_be_made)
        node = gateway.node()
        assert (node["status"], node["stop_reason"]) == ("halt", refused.value.reason)

    gateway = gateway_after(story, budget=budget)
    assert gateway.spent() == {}
    assert "barrier" not in gateway.events
    assert (gateway.entry().outcome, dict(gateway.entry().charge)) == (CallOutcome.NOT_MADE, {})


@pytest.mark.req("000/B1")
def test_of_three_calls_two_are_allowed_where_two_are() -> None:
    """A limit of two calls allows exactly two."""

    async def story(gateway: Gateway) -> None:
        for number in range(2):
            await gateway.perform(answers, key=f"call {number}")
        with pytest.raises(BudgetExceededError):
            await gateway.perform(must_not_be_made, key="call 3")

    assert gateway_after(story, budget=Budget(max_api_calls=2)).spent()["api_calls"] == 2


@pytest.mark.parametrize(
    "refusal", [stops.CancelledError("enough"), HandOver("lost")], ids=lambda stop: str(stop)
)
def test_a_call_that_the_barrier_refuses_is_a_halted_node_with_the_reason(refusal: Stop) -> None:
    """A call that the barrier refuses is not charged, and its reservation is released."""

    async def story(gateway: Gateway) -> None:
        async def refuse() -> None:
            raise refusal

        gateway.journal.at_barrier = refuse
        with pytest.raises(type(refusal)):
            await gateway.perform(must_not_be_made)
        assert (gateway.node()["status"], gateway.node()["stop_reason"]) == ("halt", str(refusal))

    gateway = gateway_after(story)
    assert gateway.spent() == {}
    assert gateway.entry().outcome is CallOutcome.NOT_MADE


@pytest.mark.req("000/C3")
def test_a_stop_that_arrives_while_the_barrier_is_asked_is_heard_before_the_call() -> None:
    """A stop that arrives during the barrier prevents the call, even if the barrier allows it."""

    async def story(gateway: Gateway) -> None:
        async def cancelled_meanwhile() -> None:
            gateway.token.cancel("just now")

        gateway.journal.at_barrier = cancelled_meanwhile
        with pytest.raises(stops.CancelledError):
            await gateway.perform(must_not_be_made)
        assert gateway.node()["stop_reason"] == "just now"

    gateway_after(story)


@pytest.mark.req("000/C3")
def test_after_a_stop_no_call_is_even_begun() -> None:
    """After a stop, a new call creates no node and does not reach the journal."""

    async def story(gateway: Gateway) -> None:
        gateway.token.cancel()
        with pytest.raises(stops.CancelledError):
            await gateway.perform(must_not_be_made)

    assert gateway_after(story).events == []


def test_a_recorded_result_is_returned_without_a_call() -> None:
    """A replayed result needs no node, barrier or charge, even after a stop or without budget."""

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", CallOutcome.RESULT, {"text": "before"})
        gateway.token.cancel()
        assert await gateway.perform(must_not_be_made) == {"text": "before"}

    gateway = gateway_after(story, budget=Budget(max_api_calls=0))
    assert gateway.events == []
    assert gateway.spent() == {}


def test_a_recorded_failure_fails_again_without_a_call() -> None:
    """A replayed failure has the recorded message, class and number of attempts."""
    value = {"error_class": "ProviderBusy", "message": "Busy.", "attempts": 3}

    async def story(gateway: Gateway) -> None:
        gateway.journal.remember("step/llm", CallOutcome.FAILURE, value)
        with pytest.raises(CallFailedError, match="Busy") as failed:
            await gateway.perform(must_not_be_made)
        assert (failed.value.error_class, failed.value.attempts) == ("ProviderBusy", 3)

    assert gateway_after(story).events == []


RESULT, FAILURE, UNKNOWN, NOT_MADE = CallOutcome
MADE, RETRIED, REPLAYED, REFUSED = "made", "made as the same logical call", "replayed", "refused"


@pytest.mark.parametrize(
    ("outcome", "own", "own_of_another_request", "imported"),
    [
        (RESULT, REPLAYED, MADE, REPLAYED),
        (FAILURE, REPLAYED, MADE, REPLAYED),
        (UNKNOWN, RETRIED, MADE, MADE),
        (NOT_MADE, MADE, MADE, MADE),
    ],
)
@pytest.mark.parametrize("repeatable", [True, False])
def test_a_recorded_call_is_replayed_repeated_or_refused(
    outcome: CallOutcome, own: str, own_of_another_request: str, imported: str, repeatable: bool
) -> None:
    """An imported record applies to any request, and this run has not been charged for it.

    Only an unknown outcome of a call that is not repeatable forbids another call. A repeated call
    counts no second time, because this run has counted its lost attempt already.
    """
    failure = {"error_class": "Broken", "message": "before", "attempts": 1}
    value = failure if outcome is FAILURE else {"text": "before"}

    def became(**record: Any) -> str:
        found: list[Any] = []

        async def story(gateway: Gateway) -> None:
            gateway.journal.remember("step/llm", outcome, value, **record)
            try:
                found.append(await gateway.perform(answers, repeatable=repeatable))
            except (CallFailedError, OutcomeUnknownError) as error:
                found.append(error)

        spent = gateway_after(story).spent()
        if found == [{"text": "four"}]:
            assert spent["api_calls"] == 1
            return MADE if spent.get("llm_calls_small") == 1 else RETRIED
        assert spent == {}
        return REFUSED if isinstance(found[0], OutcomeUnknownError) else REPLAYED

    refused = outcome is UNKNOWN and not repeatable
    assert became() == (REFUSED if refused else own)
    assert became(hashed="other") == own_of_another_request
    for hashed in ("h", "other"):
        assert became(imported=True, hashed=hashed) == (REFUSED if refused else imported)
