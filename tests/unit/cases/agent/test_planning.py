"""Replies that cannot be executed as they are."""

import pytest

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.tools.functions import functions_of
from caseworker_cases.agent.plan import plan_schema
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.respond import Respond
from tests.unit.cases.agent.world import (
    BrokenTool,
    calculate,
    cannot,
    case_run,
    decisions,
    events,
    plan,
    provider_down,
    respond,
    result_of,
)

PROSE = "Sure! Here is my plan: use the calculator."
FOUR = plan(calculate("1"), calculate("2"), calculate("3"), calculate("4"))


@pytest.mark.req("002/8.5", "002/10.2", "002/18.2", "002/18.4")
@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (PROSE, "not JSON"),
        (FOUR, "1 to 3 items, not 4"),
        ('{"actions": []}', "1 to 3 items, not 0"),
        ('{"actions": [{"tool": "calculator"}]}', "tool and args"),
    ],
)
async def test_a_reply_that_is_no_plan_is_logged_and_reprompted_once(reply: str, told: str) -> None:
    """An invalid reply is logged and reprompted once; the reprompt counts as a call."""
    here = case_run([reply, plan(calculate("6 * 7"))])

    result = result_of(await here.run())

    assert (result["verified"], events(result)) == (True, ["plan_schema_error"])
    assert told in here.small.document(1)["failure"]
    assert result["counters"]["llm_calls_small"] == 2
    assert result["counters"]["act_steps"] == 1


async def test_a_second_reply_that_is_no_plan_escalates() -> None:
    """A second invalid reply escalates, even with escalate_when=fail."""
    here = case_run([PROSE, FOUR], big=[plan(calculate("6 * 7"))])

    result = result_of(await here.run(act={"escalate_when": "fail"}))

    assert events(result) == ["plan_schema_error", "plan_schema_error", "escalate_to_big"]
    assert decisions(result)[1] == "escalate: unusable_plan"
    assert result["counters"]["llm_calls_small"] == 2
    assert result["verified"] is True


async def test_a_planner_that_gives_up_is_not_asked_again() -> None:
    """A planner that refuses is not called again; the big tier's prompt contains the reason."""
    here = case_run([cannot("That is beyond me.")], big=[plan(calculate("6 * 7"))])

    result = result_of(await here.run(act={"escalate_when": "fail"}))

    assert decisions(result)[1] == "escalate: planner_cannot"
    assert "That is beyond me." in here.big.document(0)["failure"]
    assert (result["counters"]["llm_calls_small"], result["finish_reason"]) == (1, "success")


@pytest.mark.req("002/4.4", "002/10.3", "002/18.3", "002/8.3")
async def test_an_unknown_tool_is_a_warning_and_the_plan_gets_one_reprompt() -> None:
    """A plan with an unknown tool gets one reprompt, which lists the available tools."""
    here = case_run([plan(("abacus", {}), calculate("6 * 7")), plan(calculate("6 * 7"))])

    result = result_of(await here.run())

    refused = result["evidence"][0]
    assert refused["warning"] == "unknown_tool"
    assert refused["result"]["code"] == "unknown_tool"
    assert events(result) == ["unknown_tool"]
    told = here.small.document(1)
    assert "calculator, respond" in told["failure"]
    assert told["previous_plan"]["actions"][0]["tool"] == "abacus"
    assert result["counters"]["tool_calls"] == 1
    assert result["verified"] is True


@pytest.mark.req("002/4.4")
async def test_what_is_still_unknown_is_skipped_and_the_rest_is_executed() -> None:
    """Actions with unknown tools are skipped without counting as calls; the rest runs."""
    stubborn = plan(("abacus", {}), calculate("6 * 7"))
    here = case_run([stubborn, stubborn])

    result = result_of(await here.run())

    assert [found["tool"] for found in result["evidence"]] == ["abacus", "abacus", "calculator"]
    assert (result["answer"], result["verified"]) == ("42", True)
    assert result["counters"]["tool_calls"] == 1


@pytest.mark.req("002/23.1", "002/23.2")
async def test_a_denied_tool_is_as_unknown_as_one_that_does_not_exist() -> None:
    """A denied tool is neither offered nor run, like an unknown one."""
    here = case_run([plan(calculate("6 * 7")), plan(respond("42"))], deny=frozenset({"calculator"}))

    result = result_of(await here.run())

    assert here.small.document(0)["functions"] == ["respond", "cannot"]
    assert result["evidence"][0]["result"]["code"] == "unknown_tool"
    assert result["answer"] == "42"


@pytest.mark.req("002/4.2", "002/8.5", "002/13.5", "002/21.5")
async def test_a_provider_that_stays_down_escalates_and_its_call_counts() -> None:
    """A failing provider escalates even with escalate_when=fail, and its call counts."""
    here = case_run([provider_down()], big=[plan(calculate("6 * 7"))])

    result = result_of(await here.run(act={"escalate_when": "fail"}))

    assert events(result) == ["provider_error", "escalate_to_big"]
    told = next(entry for entry in result["logs"] if entry.get("event") == "provider_error")
    assert (told["error_class"], told["attempts"]) == ("ModelRequestRefused", 1)
    assert (result["counters"]["llm_calls_small"], result["verified"]) == (1, True)


@pytest.mark.req("002/2.1")
async def test_the_limit_of_small_calls_lets_exactly_that_many_through() -> None:
    """A limit of two small calls, reprompts included, allows exactly two before escalation."""
    here = case_run(
        [PROSE, plan(calculate("1 / 0"))],
        big=[plan(calculate("6 * 7"))],
        budget=Budget(max_llm_calls_small=2, max_llm_calls_big=2),
    )

    result = result_of(await here.run())

    assert decisions(result)[1] == "escalate: max_llm_calls_small"
    assert here.scope.usage.to_dict()["llm_calls_small"] == 2
    assert result["verified"] is True


async def test_no_small_calls_at_all_go_straight_to_the_big_tier() -> None:
    """Without any small calls, the case starts with the big tier."""
    here = case_run(
        big=[plan(calculate("6 * 7"))], budget=Budget(max_llm_calls_small=0, max_llm_calls_big=2)
    )

    result = result_of(await here.run())

    assert result["counters"]["llm_calls_small"] == 0
    assert (result["answer"], result["counters"]["act_steps"]) == ("42", 0)


@pytest.mark.req("002/2.1", "002/18.4")
@pytest.mark.parametrize("replies", [[PROSE], [plan(calculate("1 / 0"))]])
async def test_under_fail_used_up_small_calls_end_the_run_with_budget(replies: list[str]) -> None:
    """With escalate_when=fail, exhausted small calls end the run, even at a reprompt."""
    here = case_run(replies, budget=Budget(max_llm_calls_small=1))

    outcome = await here.run(act={"escalate_when": "fail"})

    assert outcome.stop is not None
    assert outcome.stop.cause.to_dict() | {"reason": ""} == {
        "kind": "budget",
        "dimension": "llm_calls_small",
        "scope": "run",
        "limit": 1,
        "used": 1,
        "reason": "",
    }
    assert result_of(outcome)["finish_reason"] == "budget"


@pytest.mark.req("002/18.4", "002/4.4")
async def test_without_a_call_left_for_the_reprompt_known_actions_are_executed() -> None:
    """Without a call left for a reprompt, only the known actions of the plan run."""
    here = case_run(
        [plan(("abacus", {}), calculate("6 * 7"))], budget=Budget(max_llm_calls_small=1)
    )

    assert result_of(await here.run())["answer"] == "42"


async def test_small_calls_that_others_have_used_escalate_as_well() -> None:
    """Small calls of other steps count for the run's limit and can cause escalation."""
    here = case_run(
        [plan(calculate("1 / 0"))],
        big=[plan(calculate("6 * 7"))],
        budget=Budget(max_llm_calls_small=2, max_llm_calls_big=1),
        used_by_others={Dimension.LLM_CALLS_SMALL: 1},
    )

    result = result_of(await here.run())

    assert decisions(result)[2] == "escalate: max_llm_calls_small"
    assert "division by zero" in here.big.document(0)["failure"]
    assert result["counters"]["llm_calls_small"] == 1
    assert result["answer"] == "42"


async def test_models_are_asked_to_keep_to_the_plan_schema() -> None:
    """The request to the provider contains the JSON schema of plans."""
    here = case_run([plan(calculate("6 * 7"))])

    await here.run()

    offered = (*functions_of(Calculator.spec), *functions_of(Respond.spec))
    assert here.small.requests[0].json_schema == plan_schema(offered)


@pytest.mark.parametrize(
    ("expected", "offered"),
    [
        ([], ["broken", "calculator", "respond", "cannot"]),
        (["calculator"], ["calculator", "respond", "cannot"]),
        (["broken", "respond"], ["broken", "respond", "cannot"]),
        (["abacus"], ["broken", "calculator", "respond", "cannot"]),
    ],
)
async def test_expected_tools_narrow_what_is_offered(
    expected: list[str], offered: list[str]
) -> None:
    """Expected tools narrow the offer to them and ``respond``; unknown names change nothing."""
    here = case_run([plan(calculate("6 * 7"))] * 4, more_tools=[BrokenTool()])

    await here.run(expected_tools=expected)

    assert here.small.document(0)["functions"] == offered


async def test_the_result_an_action_takes_is_no_part_of_the_answer() -> None:
    """If an action uses an earlier result, only the last result becomes the answer."""
    here = case_run([plan(calculate("6 * 7"), calculate("${result.1} + 8"))])

    result = result_of(await here.run("Take 6 times 7 and add 8."))

    assert (result["answer"], result["verified"]) == ("50", True)
    assert result["verification"]["confirmed_by"] == "computed_otherwise"
    assert len(result["evidence"]) == 2
