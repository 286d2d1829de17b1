"""The offline provider as a ModelProvider: its prompt, its reply, its second try."""

import json
from typing import Any

import pytest

from app.adapters.providers.offline.provider import OfflineProvider
from app.llm.gateway import Tier
from app.llm.messages import Message, ModelRequest, Role
from app.llm.ports import ModelProvider
from app.nodes.case.evidence import Evidence
from app.nodes.case.offer import ToolOffer
from app.nodes.case.prompt import prompt
from app.tools.calculator import Calculator
from app.tools.calendar import Calendar
from tests.support.limits import case_of
from tests.unit.adapters.providers.offline.desk import NOW, Desk

TODAY = {"today": "2025-01-15", "timezone": "UTC", "tools": ["calculator"], "evidence": []}
SUM = {"tool": "calculator", "args": {"expression": "2 + 2"}}


async def reply(*messages: tuple[Role, str]) -> dict[str, Any]:
    """Return the provider's answer to a conversation."""
    request = ModelRequest(messages=tuple(Message(role=r, content=c) for r, c in messages))
    answer: dict[str, Any] = json.loads((await OfflineProvider().complete("m", request)).text)
    return answer


@pytest.mark.req("002/8.1", "002/10.1", "002/18.1")
async def test_the_reply_is_a_json_plan_of_tools_and_arguments(desk: Desk) -> None:
    """And nothing else."""
    assert await desk.plan("What is 2 + 2?") == {"actions": [SUM]}


async def test_it_costs_nothing_and_leaves_the_process_never() -> None:
    """It counts no tokens, because it has none."""
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
    """There is no chance in it, with or without a seed."""
    plans = [json.dumps(await desk.plan("the sum of 3, 4 and 5")) for _ in range(5)]

    assert len(set(plans)) == 1


async def test_the_last_message_of_the_user_is_the_prompt() -> None:
    """System prompts and earlier turns are for real models."""
    first = json.dumps(TODAY | {"question": "1 + 1"})
    second = json.dumps(TODAY | {"question": "2 + 2"})

    plan = await reply(("system", "Plan."), ("user", first), ("assistant", "{}"), ("user", second))

    assert plan == {"actions": [SUM]}


async def test_keys_that_it_does_not_know_are_passed_over(desk: Desk) -> None:
    """The prompt may grow."""
    assert await desk.plan("2 + 2", previous_plan=None, hints=["x"], budget={}) == {
        "actions": [SUM]
    }


@pytest.mark.parametrize(
    "content",
    [
        *("", "What is 2 + 2?", "[]", "2", "null", "{", '{"question": 5}', "[" * 100_000),
        json.dumps({"question": "2 + 2"}),
        json.dumps({"question": "2 + 2", "today": "tomorrow"}),
        json.dumps({"question": "2 + 2", "today": 5}),
        json.dumps(TODAY | {"question": "2 + 2", "padding": "x" * 300_000}),
    ],
)
async def test_a_prompt_that_is_not_the_document_is_refused(content: str) -> None:
    """It says so instead of raising or guessing."""
    plan = await reply(("user", content))

    assert plan["cannot"].startswith("I do not understand the prompt")


async def test_no_message_at_all_is_refused() -> None:
    """A conversation of system prompts asks nothing."""
    assert "cannot" in await reply(("system", "Plan."))


async def test_the_prompt_of_a_case_is_understood() -> None:
    """What the case agent really sends, with evidence and a failure on the second try."""
    case = case_of(question="What is 2 + 2?", timezone="Asia/Tokyo", now=NOW)
    specs = [Calculator().spec, Calendar().spec]
    failed = Evidence(
        number=1,
        tier=Tier.SMALL,
        act_step=1,
        tool="calculator",
        args={"expression": "2 + 2"},
        result={"error": "the sky fell", "code": "x"},
    )

    first = await reply(*((m.role, m.content) for m in prompt(case, ToolOffer(specs), [])))
    second = await reply(*((m.role, m.content) for m in prompt(case, ToolOffer(specs), [failed])))
    other = await reply(*((m.role, m.content) for m in prompt(case, ToolOffer(specs[1:]), [])))

    assert first == {"actions": [SUM]}
    assert "the sky fell" in second["cannot"]
    assert "calculator" in other["cannot"]


@pytest.mark.req("002/8.3", "002/23.1")
async def test_a_tool_that_may_not_be_used_is_not_planned(desk: Desk) -> None:
    """The reason names it."""
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
    """The reply names the error."""
    plan = await desk.plan("What is 2 + 2?", **failed)

    assert list(plan) == ["cannot"]
    assert "the sky fell" in plan["cannot"]


async def test_an_action_that_was_carried_out_is_not_asked_for_again(desk: Desk) -> None:
    """If its result was not enough, the same result is not either."""
    plan = await desk.plan("What is 2 + 2?", evidence=[SUM | {"result": {"value": "4"}}])

    assert "already" in plan["cannot"]


async def test_evidence_of_something_else_does_not_keep_it_from_planning(desk: Desk) -> None:
    """Only its own actions count."""
    other = {"tool": "calculator", "args": {"expression": "3 + 3"}, "result": {"value": "6"}}

    assert await desk.plan("2 + 2", evidence=[other, "noise", 5]) == {"actions": [SUM]}


@pytest.mark.parametrize("strange", ["\0", "\ud800", "\u202e", "\x1b[31m", "\x7f"])
async def test_a_reply_holds_only_characters_that_print(desk: Desk, strange: str) -> None:
    """What cannot be stored or spoils a terminal is not repeated."""
    for plan in (
        await desk.plan(f"what is {strange}"),
        await desk.plan("2 + 2", failure=f"no {strange}"),
    ):
        assert plan["cannot"].isprintable()
