"""Escalation to the big tier, and the mode with a single small attempt."""

from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker_cases.agent.node import CaseFailedError
from tests.unit.cases.agent.world import (
    calculate,
    cannot,
    case_run,
    decisions,
    events,
    plan,
    provider_down,
    result_of,
)

WRONG = plan(calculate("1 / 0"))
RIGHT = plan(calculate("6 * 7"))


@pytest.mark.req("002/3.3", "002/4.5", "002/8.4", "002/13.3")
async def test_the_big_tier_has_a_second_attempt_that_is_told_what_was_wrong() -> None:
    """The prompt of the second big attempt contains the previous plan and its failure."""
    here = case_run([cannot()], big=[WRONG, RIGHT])

    result = result_of(await here.run())

    told = here.big.document(1)
    assert told["previous_plan"]["actions"][0]["args"] == {"expression": "1 / 0"}
    assert "division by zero" in told["failure"]
    assert (result["answer"], result["counters"]["llm_calls_big"]) == ("42", 2)


@pytest.mark.req("002/8.4")
async def test_the_first_big_attempt_is_told_how_the_small_tier_failed() -> None:
    """The first big attempt's prompt contains the small tier's last plan and its failure."""
    here = case_run([WRONG], big=[RIGHT])

    await here.run(mode="fallback_only")

    assert here.big.document(0)["previous_plan"]["actions"][0]["tool"] == "calculator"
    assert "division by zero" in here.big.document(0)["failure"]


@pytest.mark.req("002/3.4", "002/17.1")
async def test_a_big_tier_that_fails_twice_fails_the_case_with_big_fail() -> None:
    """After two failed big attempts the step fails with big_fail and keeps its evidence."""
    here = case_run([cannot()], big=[WRONG, WRONG, RIGHT])

    outcome = await here.run()

    assert isinstance(outcome.error, CaseFailedError)
    told = str(outcome.error)
    assert told.startswith("No verified answer after 2 attempts on the big tier. ")
    assert "division by zero" in told
    result = result_of(outcome)
    assert (result["verified"], result["finish_reason"]) == (False, "big_fail")
    assert len(result["evidence"]) == 2
    assert result["counters"]["llm_calls_big"] == 2
    assert "answer" not in result


async def test_a_wrong_answer_of_the_big_tier_is_shown_but_not_verified() -> None:
    """A wrong answer of the big tier is returned as unverified."""
    here = case_run([cannot()], big=[plan(calculate("6 * 8")), plan(calculate("6 * 9"))])

    result = result_of(await here.run(gold_answer="42"))

    assert (result["answer"], result["verified"], result["finish_reason"]) == (
        "54",
        False,
        "big_fail",
    )


async def test_a_big_planner_that_gives_up_is_not_asked_again() -> None:
    """A big planner that replies ``cannot`` gets no second attempt."""
    here = case_run([cannot()], big=[cannot()])

    outcome = await here.run()

    assert isinstance(outcome.error, CaseFailedError)
    assert result_of(outcome)["counters"]["llm_calls_big"] == 1


@pytest.mark.req("002/13.5")
async def test_a_big_provider_that_is_down_has_its_second_attempt_too() -> None:
    """A failing big provider gets a second attempt; then the case fails with big_fail."""
    here = case_run([provider_down()], big=[provider_down(), provider_down()])

    result = result_of(await here.run())

    assert events(result) == [
        "provider_error",
        "escalate_to_big",
        "provider_error",
        "provider_error",
    ]
    assert (result["finish_reason"], result["counters"]["llm_calls_big"]) == ("big_fail", 2)


@pytest.mark.req("002/13.5")
async def test_the_end_of_a_case_names_the_failure_of_its_provider() -> None:
    """The reason has the provider's error, whether or not there is a big tier to escalate to."""
    failed = await case_run([provider_down()], big=[provider_down(), provider_down()]).run()
    halted = await case_run([provider_down()], budget=Budget(max_llm_calls_big=0)).run()

    told = "The last planner gave no reply. The provider refused."
    assert str(failed.error) == f"No verified answer after 2 attempts on the big tier. {told}"
    assert halted.stop is not None
    limit = "Big-tier LLM call limit exceeded: 0 used, limit 0 (scope run)"
    assert halted.stop.cause.reason == f"{limit}. {told}"


@pytest.mark.req("002/2.2")
async def test_big_reprompts_count_and_use_up_the_second_attempt() -> None:
    """A reprompt of the big tier counts as a call; without calls left, the case fails."""
    here = case_run([cannot()], big=["no plan", WRONG, RIGHT], budget=Budget(max_llm_calls_big=2))

    outcome = await here.run()

    assert isinstance(outcome.error, CaseFailedError)
    assert here.scope.usage.to_dict()["llm_calls_big"] == 2


async def test_one_big_call_is_one_attempt() -> None:
    """With one big call allowed, its single attempt decides the case."""
    budget = Budget(max_llm_calls_big=1)

    failed = await case_run([cannot()], big=[WRONG, RIGHT], budget=budget).run()
    solved = await case_run([cannot()], big=[RIGHT], budget=budget).run()

    assert isinstance(failed.error, CaseFailedError)
    assert result_of(solved)["verified"] is True


async def test_nothing_escalates_to_a_big_tier_that_may_not_be_asked() -> None:
    """Without big calls in the budget, the run ends with that limit instead of escalating."""
    here = case_run([cannot()], budget=Budget(max_llm_calls_big=0))

    outcome = await here.run()

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "llm_calls_big"
    result = result_of(outcome)
    assert (result["finish_reason"], events(result)) == ("budget", ["planner_cannot"])


async def test_the_small_tier_never_draws_on_the_calls_of_the_big_one() -> None:
    """Small calls do not reduce the big tier's call limit."""
    here = case_run(
        [WRONG, WRONG],
        big=[WRONG, RIGHT],
        budget=Budget(max_llm_calls_small=2, max_llm_calls_big=2),
    )

    result = result_of(await here.run())

    assert result["counters"]["llm_calls_small"] == 2
    assert (result["counters"]["llm_calls_big"], result["answer"]) == (2, "42")


@pytest.mark.req("002/3.2", "002/24.1", "002/24.5")
@pytest.mark.parametrize("max_steps", [0, 1])
async def test_fallback_only_makes_one_small_pass_before_it_escalates(max_steps: int) -> None:
    """In mode fallback_only, one small pass precedes the escalation."""
    here = case_run([WRONG, RIGHT], big=[RIGHT])

    result = result_of(
        await here.run(mode="fallback_only", act={"max_steps_fallback_only": max_steps})
    )

    assert len(here.small.requests) == 1
    assert result["counters"]["act_steps"] == max_steps
    assert (result["answer"], result["counters"]["llm_calls_big"]) == ("42", 1)


@pytest.mark.parametrize("max_steps", [0, 1])
async def test_fallback_only_ends_with_the_small_pass_if_that_is_verified(max_steps: int) -> None:
    """A verified small pass ends a fallback_only case without a big call."""
    here = case_run([RIGHT])

    result = result_of(
        await here.run(mode="fallback_only", act={"max_steps_fallback_only": max_steps})
    )

    assert (result["verified"], here.big.requests) == (True, [])


@pytest.mark.parametrize(
    ("max_steps", "ruling"),
    [(0, "escalate: not_verified"), (1, "stop: act_max_steps")],
)
async def test_under_fail_a_gated_pass_ends_with_budget_and_a_verified_one_escalates(
    max_steps: int, ruling: str
) -> None:
    """With escalate_when=fail, a step limit stops the case; without one, the failure escalates."""
    here = case_run([WRONG], big=[RIGHT])

    act: dict[str, Any] = {"max_steps_fallback_only": max_steps, "escalate_when": "fail"}
    result = result_of(await here.run(mode="fallback_only", act=act))

    assert decisions(result)[1] == ruling
    assert result["finish_reason"] == ("budget" if max_steps else "success")


async def test_without_a_big_model_a_case_stops_after_the_small_one() -> None:
    """Without a big model, the stop names the missing model, and the result lists no big one."""
    here = case_run([cannot()], big=[RIGHT], has_big=False)

    outcome = await here.run()

    assert here.big.requests == []
    assert outcome.stop is not None
    cause = outcome.stop.cause
    assert (cause.dimension, cause.scope) == ("llm_calls_big", "run/no_big_model")
    assert result_of(outcome)["finish_reason"] == "budget"
    assert list(result_of(outcome)["models"]) == ["small"]
