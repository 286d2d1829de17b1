"""The final answer of a case that halts."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from tests.support.limits import case_defaults
from tests.unit.cases.agent.world import (
    CaseRun,
    calculate,
    case_run,
    events,
    plan,
    provider_down,
    respond,
    result_of,
)

LOOK = plan(("rows", {}))
ANSWER = json.dumps({"answer": "The rows show 17 units for Monday."})
CALLS = Budget(max_llm_calls_small=2, max_llm_calls_big=0)


class Rows:
    """A tool that returns rows, which are no answer alone."""

    spec = ToolSpec(
        name="rows",
        description="Returns rows.",
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return {"rows": [{"day": "Monday", "units": 17.0}]}


class Signs(Rows):
    """A tool that returns an en dash, whose code point is 2013 in hexadecimal."""

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return {"rows": ["Monday \N{EN DASH} Friday"]}


def looking(*replies: Any, **settings: Any) -> CaseRun:
    """Return a world with the rows tool."""
    return case_run(list(replies), more_tools=[Rows()], **{"budget": CALLS, **settings})


async def test_a_case_that_halts_puts_what_it_found_into_words() -> None:
    """The reserved call summarises the evidence; the case stays halted and unverified."""
    here = looking(LOOK, ANSWER)

    outcome = await here.run()

    result = result_of(outcome)
    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "llm_calls_small"
    assert result["answer"] == "The rows show 17 units for Monday."
    assert (result["verified"], result["finish_reason"]) == (False, "budget")
    assert (
        result["counters"]["llm_calls_small"] == 2 == here.scope.usage.to_dict()["llm_calls_small"]
    )
    assert result["counters"]["tokens"]["small"]["input"] == 200
    assert events(result) == ["wrap_up"]


async def test_the_model_is_shown_the_question_and_the_evidence_and_nothing_else() -> None:
    """The summary prompt contains question and evidence, but no tools and no gold answer."""
    here = looking(LOOK, ANSWER)

    await here.run(question="How many units?", gold_answer="seventeen")

    assert here.small.document(1) == {
        "question": "How many units?",
        "functions": [],
        "evidence": [
            {
                "tool": "rows",
                "args": {},
                "result": {"rows": [{"day": "Monday", "units": 17.0}]},
            }
        ],
    }
    assert "never" in here.small.requests[1].messages[0].content


@pytest.mark.parametrize(
    "reply",
    [
        json.dumps({"answer": "About 18 units."}),
        json.dumps({"answer": "17.5 units"}),
        json.dumps({"cannot": "There is nothing about it."}),
        json.dumps({"answer": " "}),
        json.dumps({"answer": "17", "more": 1}),
        json.dumps({"answer": "1\u0000"}),
        json.dumps({"answer": "y" * 2001}),
        plan(respond("17")),
        "17 units",
        "[" * 5000,
    ],
)
async def test_a_number_that_no_tool_has_found_or_a_reply_that_is_no_answer_is_dropped(
    reply: str,
) -> None:
    """A summary with a number outside the evidence, or an invalid reply, is dropped."""
    result = result_of(await looking(LOOK, reply).run())

    assert "answer" not in result
    assert (len(result["evidence"]), result["finish_reason"]) == (1, "budget")


async def test_the_number_of_a_sign_in_the_evidence_is_no_number_that_was_found() -> None:
    """Numbers are looked up in the evidence's text, not in the escapes of its JSON form."""
    reply = json.dumps({"answer": "It was in 2013."})

    result = result_of(await case_run([LOOK, reply], more_tools=[Signs()], budget=CALLS).run())

    assert "answer" not in result
    assert "wrap_up_invented" in events(result)


async def test_planning_leaves_the_reserve_alone_only_where_it_is_wanted() -> None:
    """If the evidence is already an answer, planning uses the whole limit."""
    here = case_run([plan(calculate("7 * 7")), plan(calculate("7 * 8"))], budget=CALLS)

    result = result_of(await here.run(gold_answer="42", act={"no_progress_patience": 5}))

    assert (result["answer"], result["finish_reason"]) == ("56", "budget")
    assert len(here.small.requests) == 2
    assert "wrap_up" not in events(result)


async def test_a_case_that_can_escalate_keeps_nothing_back() -> None:
    """A case that can escalate reserves no call, because the big tier has its own limit."""
    here = looking(LOOK, LOOK, budget=Budget(max_llm_calls_small=2, max_llm_calls_big=1))
    here.big.replies = [plan(calculate("6 * 7"))]

    result = result_of(await here.run(act={"no_progress_patience": 5}))

    assert len(here.small.requests) == 2
    assert result["answer"] == "42"


@pytest.mark.parametrize(
    ("budget", "reserve"),
    [
        (Budget(max_llm_calls_small=1, max_llm_calls_big=0), 1),
        (Budget(max_llm_calls_small=2, max_llm_calls_big=0), 0),
    ],
)
async def test_a_limit_of_one_or_a_reserve_of_none_is_for_planning(
    budget: Budget, reserve: int
) -> None:
    """With a limit of one or a reserve of zero, every call is for planning."""
    defaults = case_defaults(timezone="UTC", wrap_up_reserve=reserve)
    here = looking(LOOK, LOOK, budget=budget, defaults=defaults)

    result = result_of(await here.run(act={"no_progress_patience": 5}))

    assert len(here.small.requests) == budget.max_llm_calls_small
    assert "wrap_up" not in events(result)


async def test_the_reserve_is_out_of_the_limit_and_never_beyond_it() -> None:
    """The reserve is part of the limit: a limit of three allows exactly three calls."""
    here = looking(LOOK, LOOK, ANSWER, budget=Budget(max_llm_calls_small=3, max_llm_calls_big=0))

    result = result_of(await here.run(act={"no_progress_patience": 5}))

    assert len(here.small.requests) == 3 == result["counters"]["llm_calls_small"]
    assert result["answer"].startswith("The rows")


async def test_a_limit_of_tool_calls_in_the_middle_of_a_plan_is_wrapped_up_too() -> None:
    """A tool call limit reached within a plan leads to a summary, and the stop names it."""
    here = looking(plan(("rows", {}), ("rows", {})), ANSWER, budget=Budget(max_tool_calls=1))

    outcome = await here.run()

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "tool_calls"
    assert result_of(outcome)["answer"].startswith("The rows")


async def test_a_case_without_any_finding_halts_without_a_word() -> None:
    """A case without findings halts without a summary call."""
    here = case_run([plan(calculate("1 / 0")), plan(calculate("2 / 0"))], budget=CALLS)

    result = result_of(await here.run(act={"no_progress_patience": 5}))

    assert len(here.small.requests) == 2
    assert "answer" not in result


async def test_a_provider_that_fails_leaves_the_case_as_it_was() -> None:
    """A provider error during the summary does not change why the case halted."""
    outcome = await looking(LOOK, provider_down()).run()

    assert outcome.stop is not None
    result = result_of(outcome)
    assert (result["finish_reason"], events(result)) == ("budget", ["provider_error"])
    assert result["counters"]["llm_calls_small"] == 2


async def test_a_limit_that_forbids_the_call_leaves_the_case_as_it_was() -> None:
    """The reserve does not override other limits, so one of them can refuse the summary."""
    budget = Budget(max_llm_calls_small=2, max_llm_calls_big=0, max_api_calls=1)

    outcome = await looking(LOOK, ANSWER, budget=budget).run()

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "llm_calls_small"
    assert events(result_of(outcome)) == ["wrap_up_refused"]


async def test_a_stop_wins_over_the_last_words() -> None:
    """A cancel stops a running summary call."""
    asked = asyncio.Event()

    async def think() -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    here = looking(LOOK, think)
    running = asyncio.create_task(here.run())
    await asked.wait()
    here.token.cancel("enough")
    running.cancel()

    result = result_of(await running)

    assert (result["finish_reason"], result["counters"]["llm_calls_small"]) == (None, 2)


async def test_a_run_that_is_executed_again_says_the_same_words() -> None:
    """A second execution takes the summary from the journal."""
    here = looking(LOOK, ANSWER)

    results = [result_of(await here.run()), result_of(await here.run_again())]

    assert results[0]["answer"] == results[1]["answer"]
    assert results[0]["counters"] == results[1]["counters"]
    assert len(here.small.requests) == 2
