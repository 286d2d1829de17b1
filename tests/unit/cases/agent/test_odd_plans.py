"""Unusable replies of planners; the case still ends properly."""

import json
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.models.ports import Incomplete, ModelReply, TokenUsage
from tests.unit.cases.agent.world import calculate, case_run, events, plan, respond, result_of

GOOD = plan(calculate("6 * 7"))
ACT = {"tool": "calculator", "args": {"expression": "1"}}
NO_PLANS = {
    "prose": "Sure! I would use the calculator.",
    "empty": "",
    "no actions": '{"actions": []}',
    "four actions": json.dumps({"actions": [ACT] * 4}),
    "args as text": json.dumps({"actions": [ACT | {"args": "1 + 1"}]}),
    "args as list": json.dumps({"actions": [ACT | {"args": [1]}]}),
    "args missing": json.dumps({"actions": [{"tool": "calculator"}]}),
    "one action alone": json.dumps(ACT),
    "huge": json.dumps({"actions": [ACT | {"args": {"expression": "1" * 500_000}}]}),
    "deep": json.dumps({"actions": [ACT | {"args": {"x": json.loads("[" * 40 + "]" * 40)}}]}),
    "endless": '{"actions":' * 30_000,
    "half": GOOD[:-3],
}


@pytest.mark.req("002/8.1", "002/8.2", "002/8.5", "002/10.2", "002/18.2", "002/18.4")
@pytest.mark.parametrize("reply", NO_PLANS.values(), ids=NO_PLANS.keys())
async def test_no_plan_is_mended_by_one_reprompt(reply: str) -> None:
    """An unusable reply costs one reprompt within the same pass."""
    here = case_run([reply, GOOD])

    result = result_of(await here.run())

    assert (result["answer"], result["verified"]) == ("42", True)
    assert events(result) == ["plan_schema_error"]
    counters = result["counters"]
    assert (counters["llm_calls_small"], counters["tool_calls"], counters["act_steps"]) == (2, 1, 1)
    assert len(here.small.requests[1].messages[-1].content) < 10_000


@pytest.mark.req("002/8.5", "002/18.4", "002/13.5")
@pytest.mark.parametrize("reply", NO_PLANS.values(), ids=NO_PLANS.keys())
async def test_a_case_that_never_gets_a_plan_ends_with_what_it_had(reply: str) -> None:
    """A case without a usable plan keeps its earlier evidence and counts every call."""
    first = plan(calculate("7 * 7"))
    here = case_run([first, reply, reply], budget=Budget(max_llm_calls_big=0))

    outcome = await here.run(gold_answer="42")

    result = result_of(outcome)
    assert outcome.stop is not None
    assert (result["answer"], result["verified"], result["finish_reason"]) == (
        "49",
        False,
        "budget",
    )
    counters = result["counters"]
    assert (counters["llm_calls_small"], counters["tool_calls"], counters["act_steps"]) == (3, 1, 2)


@pytest.mark.req("002/4.4", "002/8.3", "002/10.3", "002/23.2")
@pytest.mark.parametrize("deny", [frozenset(), frozenset({"respond"})])
async def test_a_plan_of_tools_that_may_not_be_used_ends_well(deny: frozenset[str]) -> None:
    """Unknown and denied tools lead to a warning; they are neither run nor counted."""
    name = "respond" if deny else "abacus"
    stubborn = plan((name, {"answer": "42"}))
    here = case_run([stubborn] * 4, budget=Budget(max_llm_calls_big=0), deny=deny)

    outcome = await here.run()

    result = result_of(outcome)
    assert outcome.stop is not None
    assert {found["warning"] for found in result["evidence"]} == {"unknown_tool"}
    assert (result["counters"]["tool_calls"], result["verified"]) == (0, False)
    assert "answer" not in result


@pytest.mark.parametrize(
    ("actions", "answer", "verified"),
    [
        ([calculate("6 * 7")] * 2, "42", True),
        ([calculate("6 * 7"), calculate("7 * 6")], "42; 42", True),
        ([respond("42")] * 3, "42", False),
    ],
)
async def test_an_action_that_is_planned_twice_is_answered_once(
    actions: list[Any], answer: str, verified: bool
) -> None:
    """A duplicate action runs and counts as planned, but its result appears once in the answer."""
    result = result_of(await case_run([plan(*actions)]).run())

    assert (result["answer"], result["verified"]) == (answer, verified)
    assert result["counters"]["tool_calls"] == len(actions) == len(result["evidence"])


@pytest.mark.req("cw/13.incomplete")
@pytest.mark.parametrize("why", list(Incomplete))
async def test_a_plan_that_is_not_complete_is_not_executed(why: Incomplete) -> None:
    """An incomplete plan is not executed; the reprompt names the reason."""
    usage = TokenUsage(tokens_in=1, tokens_out=1)
    half = ModelReply(text=plan(calculate("6 * 7")), model="m", usage=usage, incomplete=why)
    whole = plan(calculate("6 * 8"))

    mended, failed = case_run([half, whole]), case_run([half] * 9, big=[half] * 9)
    result, without = result_of(await mended.run()), result_of(await failed.run())

    assert f"({why.value})" in mended.small.prompts
    assert [each["args"] for each in result["evidence"]] == [{"expression": "6 * 8"}]
    assert without["evidence"] == []
    assert (without["verified"], without["finish_reason"]) != (True, "success")
    assert "answer" not in without
