"""If a model of a tier cannot answer, the next one is called, within one logical call."""

from decimal import Decimal

import pytest
from structlog.testing import capture_logs

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import Stop
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import CallFailedError
from caseworker.models.gateway import Tier
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, asking_after, busy, chain, priced, unpriced

FIRST, SECOND, THIRD = priced("first", 1), priced("second", 10), priced("third", 100)
COUNTED = Step(text="ok", tokens_in=3, tokens_out=2)


@pytest.mark.req("002/21.5", "002/13.5", "002/20.4")
def test_a_model_whose_retries_are_used_up_hands_over_to_the_next() -> None:
    """The fallback is called at once.

    Each attempt counts, and the answering model sets the cost.
    """

    async def story(asking: Asking) -> None:
        asking.provider.script("first", busy(), repeat_last=True)
        asking.provider.script("second", busy(), COUNTED)
        completion = await asking.ask()
        assert (completion.provider, completion.model) == ("openai", "second")
        assert (completion.text, completion.cost_usd) == ("ok", Decimal(50))

    asking = asking_after(story, chain(FIRST, SECOND))

    assert asking.provider.times("first") == pytest.approx([0, 0.5, 1.5])
    assert asking.provider.times("second") == pytest.approx([1.5, 2])
    assert asking.run.spent() == {
        "llm_calls": 1,
        "llm_calls_small": 1,
        "api_calls": 5,
        "tokens": 5,
        "cost_usd": Decimal(50),
    }


@pytest.mark.req("001/wiring")
def test_the_trace_shows_who_was_asked_and_what_came_of_it() -> None:
    """Each model has its own call in the trace, with its attempts below it and its own cost."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", busy(), repeat_last=True)
        asking.provider.script("second", COUNTED)
        await asking.ask()

    asking = asking_after(story, chain(FIRST, SECOND))

    first, second = asking.calls()
    assert (first["model"], first["status"], first["retries_used"]) == ("first", "fail", 2)
    assert (second["model"], second["status"], second["cost_usd"]) == ("second", "success", 50)
    assert first["cost_usd"] == 0
    assert first["error_class"] == "ModelUnavailable"
    assert (first["metadata"]["call_key"], second["metadata"]["call_key"]) == (
        "step/plan",
        "step/plan/fallback/1",
    )
    assert second["metadata"]["fallback"] == 1
    aggregates = asking.run.graph.snapshot()["aggregates"]
    assert (aggregates["total_llm_calls"], aggregates["total_retries"]) == (1, 2)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 307])
def test_a_model_that_is_not_as_configured_hands_over_without_a_retry(status: int) -> None:
    """A wrong key or model name is not retried."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=status, headers={"location": "/x"}))
        assert (await asking.ask()).model == "second"

    assert asking_after(story, chain(FIRST, SECOND)).provider.times() == [0, 0]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_at_fault_itself_is_not_passed_on(status: int) -> None:
    """Every model would reject the request, and some would charge for it."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=status))
        with pytest.raises(CallFailedError):
            await asking.ask()

    assert asking_after(story, chain(FIRST, SECOND)).provider.models() == ["first"]


def test_models_are_asked_in_the_order_of_the_list_until_none_is_left() -> None:
    """The error reports the last model's failure and the attempts of all models."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=401))
        asking.provider.script("second", Step(hang=True), repeat_last=True)
        asking.provider.script("third", busy(), repeat_last=True)
        with pytest.raises(CallFailedError, match="HTTP 503") as failed:
            await asking.ask()
        assert (failed.value.attempts, failed.value.error_class) == (7, "ModelUnavailable")

    asking = asking_after(story, chain(FIRST, SECOND, THIRD))

    assert asking.provider.models() == ["first", *["second"] * 3, *["third"] * 3]
    assert asking.run.spent()["llm_calls_small"] == 1


def test_each_model_is_reserved_at_its_own_price() -> None:
    """A fallback that could exceed the cost limit is refused and not called."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=404))
        with pytest.raises(BudgetExceededError) as refused:
            await asking.ask(max_output_tokens=10)
        assert refused.value.cause.dimension == "cost_usd"

    asking = asking_after(story, chain(FIRST, THIRD), budget=Budget(max_cost_dollars=1000))

    assert asking.provider.models() == ["first"]


@pytest.mark.req("001/wiring")
@pytest.mark.parametrize("failing", [[], ["first"]])
def test_a_limited_cost_refuses_the_first_model_whose_price_is_not_known(
    failing: list[str],
) -> None:
    """A refused call costs nothing, whichever model of the tier has no price."""
    tier = chain(*(priced(name) for name in failing), unpriced("house-model"))

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=404))
        with pytest.raises(Stop, match="'house-model' of openai is not known") as stop:
            await asking.ask(max_output_tokens=10)
        assert (stop.value.cause.kind, stop.value.cause.dimension) == ("budget", "cost_usd")

    asking = asking_after(story, tier, budget=Budget(max_cost_dollars=1000))

    assert asking.provider.models() == failing
    refused = asking.calls()[-1]
    assert (refused["model"], refused["status"]) == ("house-model", "halt")
    assert "not known" in str(refused["stop_reason"])
    asked = {"llm_calls": 1, "llm_calls_small": 1, "api_calls": 1}
    assert asking.run.spent() == (asked if failing else {})


def test_an_unlimited_cost_lets_a_model_answer_whose_price_is_not_known() -> None:
    """Without a cost limit an unpriced model may answer, and its tokens are counted."""

    async def story(asking: Asking) -> None:
        asking.provider.script("house-model", COUNTED)
        await asking.ask()

    assert asking_after(story, unpriced("house-model")).run.spent()["tokens"] == 5


def test_a_limit_of_attempts_counts_those_of_all_models() -> None:
    """The fallback's attempt exceeds the limit of attempts."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=401))
        with pytest.raises(BudgetExceededError):
            await asking.ask()

    asking = asking_after(story, chain(FIRST, SECOND), budget=Budget(max_api_calls=1))

    assert asking.provider.models() == ["first"]
    assert asking.calls()[-1]["status"] == "halt"


def test_a_limit_of_calls_holds_for_all_models_together() -> None:
    """Two calls of either tier are allowed; a fallback counts as part of its call."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=401))
        await asking.ask()
        await asking.ask(tier=Tier.BIG, key="big")
        for tier in Tier:
            with pytest.raises(BudgetExceededError) as refused:
                await asking.ask(tier=tier, key=f"more/{tier}")
            assert refused.value.cause.dimension == "llm_calls"

    asking = asking_after(story, chain(FIRST, SECOND), budget=Budget(max_llm_calls=2))

    spent = asking.run.spent()
    assert (spent["llm_calls"], spent["llm_calls_small"], spent["llm_calls_big"]) == (2, 1, 1)


@pytest.mark.req("002/22.4")
def test_a_run_that_is_executed_again_asks_nobody_who_has_answered_or_failed() -> None:
    """A resumed run replays both model calls from the journal and is charged once."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", busy(), repeat_last=True)
        before = await asking.ask()
        asking.begin(asking.run.journal)
        assert await asking.ask() == before

    asking = asking_after(story, chain(FIRST, SECOND))

    assert len(asking.provider.arrivals) == 4
    assert asking.run.spent() == {}


def test_a_fallback_that_was_in_flight_at_a_crash_is_asked_again_as_the_same_logical_call() -> None:
    """The first model's failure is replayed, and the logical call is not counted again."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=404))
        await asking.ask()
        journal = asking.run.journal
        asking.begin(journal)
        lost = asking.run.journal.earlier["step/plan/fallback/1"]
        asking.run.journal.remember(
            "step/plan/fallback/1", type(lost.outcome).UNKNOWN, hashed=lost.request_hash
        )
        assert (await asking.ask()).model == "second"

    asking = asking_after(story, chain(FIRST, SECOND))

    assert asking.provider.models() == ["first", "second", "second"]
    assert asking.run.spent()["api_calls"] == 1
    assert "llm_calls_small" not in asking.run.spent()


@pytest.mark.req("002/13.5")
def test_failures_and_fallbacks_are_logged() -> None:
    """Warnings name the model, the failure, the attempt and the fallback that is called next."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", busy(), repeat_last=True)
        asking.provider.script("second", COUNTED)
        await asking.ask()

    with capture_logs() as lines:
        asking_after(story, chain(FIRST, SECOND))

    assert [(line["event"], line["log_level"], line["model"]) for line in lines] == [
        *[("model.failed", "warning", "first")] * 3,
        ("model.fallback", "warning", "first"),
    ]
    assert [line["attempt"] for line in lines[:3]] == [1, 2, 3]
    assert (lines[3]["fallback"], lines[3]["error_class"]) == ("second", "ModelUnavailable")
