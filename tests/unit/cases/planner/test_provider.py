"""The offline provider as a ModelProvider: prompts, replies and second plans."""

import json
from typing import Any

import pytest

from caseworker.models.gateway import Tier
from caseworker.models.ports import (
    Message,
    ModelError,
    ModelFault,
    ModelProvider,
    ModelRequest,
    Role,
)
from caseworker.tools.ports import ToolSpec
from caseworker_cases.agent.evidence import CaseEvidence
from caseworker_cases.agent.prompt import CaseTools, Dialogue
from caseworker_cases.planner.provider import OfflineProvider
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from tests.support.limits import case_of
from tests.unit.cases.planner.desk import NOW, Desk

TODAY = {"today": "Wednesday, January 15, 2025"}
SUM = {"tool": "calculator", "args": {"expression": "2 + 2"}}


async def reply(*messages: tuple[Role, str]) -> dict[str, Any]:
    """Return the provider's answer to a conversation."""
    request = ModelRequest(messages=tuple(Message(role=r, content=c) for r, c in messages))
    answer: dict[str, Any] = json.loads((await OfflineProvider().complete("m", request)).text)
    return answer


@pytest.mark.req("002/8.1", "002/10.1", "002/18.1")
async def test_the_reply_is_a_json_plan_of_tools_and_arguments(desk: Desk) -> None:
    """The reply is a JSON plan and nothing else."""
    assert await desk.plan("What is 2 + 2?") == {"actions": [SUM]}


async def test_it_costs_nothing_and_leaves_the_process_never() -> None:
    """The provider reports zero tokens, no cost and no external calls."""
    provider: ModelProvider = OfflineProvider()
    prompt = Message(role="user", content=json.dumps(TODAY | {"question": "2 + 2"}))
    answer = await provider.complete("offline-small", ModelRequest(messages=(prompt,)))
    await provider.aclose()

    assert (provider.name, provider.external) == ("offline", False)
    assert answer.usage is not None
    assert (answer.usage.tokens_in, answer.usage.tokens_out) == (0, 0)
    assert (answer.model, answer.finish_reason) == ("offline-small", "stop")


@pytest.mark.req("002/22.1", "002/22.4")
async def test_the_same_prompt_always_gets_the_same_reply(desk: Desk) -> None:
    """The reply is deterministic."""
    plans = [json.dumps(await desk.plan("the sum of 3, 4 and 5")) for _ in range(5)]

    assert len(set(plans)) == 1


async def test_the_first_message_of_the_user_asks_and_later_ones_say_what_came_of_it() -> None:
    """The first user message is the question; system and assistant messages are ignored."""
    asked = json.dumps(TODAY | {"question": "2 + 2"})
    failed = json.dumps({"failure": "the sky fell"})

    plan = await reply(("system", "Plan."), ("user", asked), ("assistant", "{}"), ("user", failed))

    assert "the sky fell" in plan["cannot"]


async def test_keys_that_it_does_not_know_are_passed_over(desk: Desk) -> None:
    """Unknown keys of the prompt document are ignored."""
    assert await desk.plan("2 + 2", previous_plan=None, hints=["x"], budget={}) == {
        "actions": [SUM]
    }


@pytest.mark.parametrize(
    "content",
    [
        *("", "What is 2 + 2?", "[]", "2", "null", "{", '{"question": 5}', "[" * 100_000),
        json.dumps({"today": "2025-01-15"}),
        json.dumps(TODAY | {"question": "2 + 2", "padding": "x" * 300_000}),
    ],
)
async def test_a_prompt_that_is_not_the_document_is_refused(content: str) -> None:
    """A prompt that is not a case document is refused with the advice to configure a model."""
    with pytest.raises(ModelError, match="configure a model") as refused:
        await reply(("user", content))

    assert refused.value.fault is ModelFault.MISCONFIGURED
    assert not refused.value.retryable


async def test_no_message_at_all_is_refused() -> None:
    """A conversation without a user message is refused."""
    with pytest.raises(ModelError, match="no question"):
        await reply(("system", "Plan."))


async def test_the_prompt_of_a_case_is_understood() -> None:
    """The prompts of the case agent, including evidence and failures, are understood."""
    case = case_of(question="What is 2 + 2?", timezone="Asia/Tokyo", now=NOW)
    specs = [Calculator().spec, Calendar().spec]
    failed = CaseEvidence(
        number=1,
        tier=Tier.SMALL,
        act_step=1,
        tool="calculator",
        args={"expression": "2 + 2"},
        result={"error": "the sky fell", "code": "x"},
    )

    async def planned(offered: list[ToolSpec], *evidence: CaseEvidence) -> dict[str, Any]:
        offer = CaseTools(offered)
        messages = Dialogue(case, offer).ask(evidence, None)
        request = ModelRequest(messages=messages, json_schema=offer.schema)
        found: dict[str, Any] = json.loads((await OfflineProvider().complete("m", request)).text)
        return found

    first, second, other = (
        await planned(specs),
        await planned(specs, failed),
        await planned(specs[1:]),
    )

    assert first == {"actions": [SUM]}
    assert "the sky fell" in second["cannot"]
    assert "calculator" in other["cannot"]


@pytest.mark.req("002/8.3", "002/23.1")
async def test_a_tool_that_may_not_be_used_is_not_planned(desk: Desk) -> None:
    """The refusal names the tool that is needed but not offered."""
    plan = await desk.plan("What is 2 + 2?", tools=["calendar"])

    assert "calculator" in plan["cannot"]


@pytest.mark.parametrize(
    "failed",
    [
        {"evidence": [SUM | {"result": {"error": "the sky fell", "code": "x"}}]},
        {"evidence": [SUM | {"result": {"value": "4"}}, {"tool": "t", "error": "the sky fell"}]},
        {"failure": "the sky fell"},
        {"failure": {"error": "the sky fell"}},
    ],
)
async def test_a_plan_that_failed_is_not_made_again(desk: Desk, failed: dict[str, Any]) -> None:
    """A plan that failed is not repeated, and the refusal names the error."""
    plan = await desk.plan("What is 2 + 2?", **failed)

    assert list(plan) == ["cannot"]
    assert "the sky fell" in plan["cannot"]


async def test_an_action_that_was_carried_out_is_not_asked_for_again(desk: Desk) -> None:
    """An action with a result is not repeated, because its result would be the same."""
    plan = await desk.plan("What is 2 + 2?", evidence=[SUM | {"result": {"value": "4"}}])

    assert "already" in plan["cannot"]


async def test_evidence_of_something_else_does_not_keep_it_from_planning(desk: Desk) -> None:
    """Evidence of other actions does not prevent a plan."""
    other = {"tool": "calculator", "args": {"expression": "3 + 3"}, "result": {"value": "6"}}

    assert await desk.plan("2 + 2", evidence=[other, "noise", 5]) == {"actions": [SUM]}


@pytest.mark.parametrize("strange", ["\0", "\ud800", "\u202e", "\x1b[31m", "\x7f"])
async def test_a_reply_holds_only_characters_that_print(desk: Desk, strange: str) -> None:
    """The reply contains only printable characters."""
    for plan in (
        await desk.plan(f"what is {strange}"),
        await desk.plan("2 + 2", failure=f"no {strange}"),
    ):
        assert plan["cannot"].isprintable()


RETURN = "What was the total return of AAPL in 2012?"
YEAR = {"symbol": "AAPL", "start": "2012-01-01", "end": "2012-12-31"}


@pytest.mark.req("002/5.3", "002/8.2", "002/9.1")
async def test_expected_tools_that_show_the_prices_of_a_figure_are_used(desk: Desk) -> None:
    """Expected tools for the same prices are added in their usual order; the answer stays."""
    expected = ["plotter", "data_fetch_stock", "numeric_analysis"]

    assert await desk.actions(RETURN, expected_tools=expected) == [
        {"tool": "data_fetch_stock", "args": YEAR},
        {"tool": "numeric_analysis", "args": {"metric": "total_return", **YEAR}},
        {"tool": "plotter", "args": {"kind": "line", **YEAR}},
    ]
    assert await desk.composed(RETURN, expected_tools=expected) == "30.5797"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (RETURN, ["calendar"]),
        (RETURN, ["nonsense", 5, None]),
        (RETURN, "plotter"),
        ("What was the close of AAPL on 2012-09-19?", ["plotter", "numeric_analysis"]),
        ("What is 2 + 2?", ["plotter", "calendar"]),
    ],
)
async def test_expected_tools_that_have_nothing_to_do_with_it_are_not_used(
    desk: Desk, question: str, expected: Any
) -> None:
    """Expected tools that do not fit the question are ignored."""
    assert await desk.actions(question, expected_tools=expected) == await desk.actions(question)


@pytest.mark.req("002/8.3")
async def test_an_expected_tool_that_may_not_be_used_is_named(desk: Desk) -> None:
    """An expected tool that is not offered is named in the refusal."""
    plan = await desk.plan(RETURN, expected_tools=["plotter"], tools=["numeric_analysis"])

    assert "plotter" in plan["cannot"]


async def second_plan(desk: Desk, question: str) -> dict[str, Any]:
    """Plan, execute the plan, and plan again with its evidence."""
    evidence = [found.to_dict() for found in await desk.evidence(question)]
    return await desk.plan(question, evidence=evidence, failure="There is no answer yet.")


@pytest.mark.req("002/8.4")
@pytest.mark.parametrize(
    "question",
    [
        "What was the total return of Facebook in 2012?",
        "How strongly were the daily returns of FB and AAPL correlated in 2012?",
        "Plot the closing price of FB in May 2012.",
    ],
)
async def test_a_period_is_cut_to_the_days_from_the_first_price_on(
    desk: Desk, question: str
) -> None:
    """A named period is shortened to the first available price after a failed plan."""
    plan = await second_plan(desk, question)

    assert plan["actions"][0]["args"]["start"] == "2012-05-18"


@pytest.mark.parametrize(
    "question",
    [
        "What was the total return of FB from 2012-01-03 to 2012-12-31?",
        "What was the total return of AAPL in 2013?",
        "What was the total return of FB in 2010?",
        "What was the closing price of TSLA on 2012-01-03?",
    ],
)
async def test_days_that_were_given_or_end_too_late_are_never_changed(
    desk: Desk, question: str
) -> None:
    """Explicit dates, and periods that end too late, are not changed."""
    plan = await second_plan(desk, question)

    assert plan["cannot"].startswith("My plan failed")


async def test_another_failure_keeps_the_days_as_they_are(desk: Desk) -> None:
    """Another failure in the evidence prevents shortening the period."""
    question = "What was the total return of FB in 2012?"
    broken = {"tool": "plotter", "args": {}, "result": {"error": "no room", "code": "x"}}
    evidence = [*(found.to_dict() for found in await desk.evidence(question)), broken]

    plan = await desk.plan(question, evidence=evidence)

    assert plan["cannot"].endswith("plotter: no room")
