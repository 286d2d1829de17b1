"""Answers that are cut off, withheld, refused or empty, and answers that a stop interrupts."""

import asyncio
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.models.gateway import ModelAnswerIncomplete
from caseworker.models.ports import Delta, ModelError, ModelReply, ModelRequest, ToolCall
from tests.unit.nodes.agent.world import (
    agent,
    asking,
    cut,
    events,
    kinds,
    model_reply,
    result,
    scripted_agent,
    wants,
)
from tests.unit.nodes.world import graph, link, settle_down, step

BROKEN = ToolCall(id="c1", name="echo", arguments='{"say": "he')
NONE_YET = ToolCall(id="c1", name="echo", arguments="")


@pytest.mark.req("cw/13.incomplete")
@pytest.mark.parametrize("why", ["length", "content_filter", "refusal"])
async def test_an_agent_whose_last_answer_is_incomplete_fails(why: str) -> None:
    """The result gives the reason and keeps the partial text."""
    here = scripted_agent(
        model_reply("", wants("echo", say="1")), cut("1, 2, 3, an", why=why, said_so="No more.")
    )

    outcome = await here.run(asking(agent(tools=["echo"])), default="?")

    assert isinstance(outcome.error, ModelAnswerIncomplete)
    assert f"(incomplete: {why}). No more." in str(outcome.error)
    found = result(outcome)
    assert (found["success"], found["terminate_reason"]) == (False, "incomplete")
    assert (found["incomplete"], found["incomplete_reason"]) == (why, "No more.")
    assert (found["raw_content"], found["output"]) == ("1, 2, 3, an", None)
    assert "default" not in outcome.steps["a"].outputs
    assert kinds(here)[-2:] == ["error", "turn_end"]


@pytest.mark.req("cw/13.calls")
@pytest.mark.parametrize("call", [NONE_YET, BROKEN])
async def test_a_call_whose_arguments_were_cut_off_is_not_made(call: ToolCall) -> None:
    """The next prompt reports the cut-off call to the model; a complete call is made."""
    whole = wants("echo", "c0", say="whole")
    here = scripted_agent(cut("", whole, call), "Done.")

    outcome = await here.run(asking(agent(tools=["echo"])), default="?")

    assert result(outcome)["terminate_reason"] == "goal"
    assert result(outcome)["incomplete"] is None
    assert len(here.echo.contexts) == 1
    made, skipped = here.small.requests[1].messages[-2:]
    assert (made.tool_call_id, "whole" in made.content) == ("c0", True)
    assert skipped.tool_call_id == "c1"
    assert "not called" in skipped.content
    assert "(length)" in skipped.content


async def test_a_call_without_arguments_in_a_complete_answer_is_made() -> None:
    """A call with empty arguments in a complete answer is made with the empty object."""
    here = scripted_agent(model_reply("", ToolCall(id="c1", name="echo", arguments="")), "Done.")

    await here.run(asking(agent(tools=["echo"])), default="?")

    assert "say" in here.small.requests[1].messages[-1].content
    assert "not called" not in here.small.requests[1].messages[-1].content


@pytest.mark.parametrize("why", ["length", "content_filter"])
async def test_an_answer_that_is_handed_in_by_an_incomplete_reply_is_incomplete(why: str) -> None:
    """The answer is incomplete although the arguments of ``finish`` are whole; the text is kept."""
    here = scripted_agent(cut("I think:", wants("finish", answer="Two."), why=why))

    outcome = await here.run(asking(agent(tools=["echo"])), default="?")

    found = result(outcome)
    assert isinstance(outcome.error, ModelAnswerIncomplete)
    assert (found["success"], found["terminate_reason"]) == (False, "incomplete")
    assert (found["output"], found["raw_content"], found["incomplete"]) == (None, "Two.", why)


@pytest.mark.req("cw/13.incomplete")
@pytest.mark.parametrize("second", ["Here.", ""])
async def test_an_empty_answer_is_asked_for_once_more(second: str) -> None:
    """The retry belongs to the same turn.

    A second empty answer fails, and no blank message is sent.
    """
    empty = cut(why="empty")
    here = scripted_agent(empty, second or empty)

    outcome = await here.run(asking(agent()), default="?")

    found = result(outcome)
    assert (found["success"], found["turn_count"]) == (bool(second), 1)
    assert found["incomplete"] == (None if second else "empty")
    assert [bool(one.content) for one in here.small.requests[1].messages] == [True] * 3
    assert "was empty" in here.small.requests[1].messages[-1].content


async def test_an_empty_answer_in_the_last_call_is_incomplete() -> None:
    """No call is left for a second attempt."""
    here = scripted_agent(cut(why="empty"), budget=Budget(max_llm_calls_small=1))

    outcome = await here.run(asking(agent()), default="?")

    assert isinstance(outcome.error, ModelAnswerIncomplete)
    assert (result(outcome)["terminate_reason"], result(outcome)["incomplete"]) == (
        "incomplete",
        "empty",
    )


async def test_an_incomplete_second_try_at_an_output_is_incomplete() -> None:
    """The second attempt is the agent's last answer."""
    here = scripted_agent("no JSON", cut('{"city": "Be'))
    schema = {"type": "object", "required": ["city"]}

    outcome = await here.run(asking(agent(output={"schema": schema})), default="?")

    assert result(outcome)["terminate_reason"] == "incomplete"
    assert result(outcome)["raw_content"] == '{"city": "Be'


@pytest.mark.parametrize("city", ["Bern", None])
async def test_a_second_try_that_is_handed_in_by_an_incomplete_reply_is_incomplete(
    city: str | None,
) -> None:
    """The second answer is kept if it is whole, otherwise the first one."""
    call = wants("finish", city=city) if city else ToolCall(id="c", name="finish", arguments="")
    here = scripted_agent(model_reply("", wants("finish", town="Bern")), cut("", call))
    schema = {"type": "object", "required": ["city"]}

    outcome = await here.run(asking(agent(tools=["echo"], output={"schema": schema})), default="?")

    assert result(outcome)["terminate_reason"] == "incomplete"
    assert result(outcome)["raw_content"] == ('{"city":"Bern"}' if city else '{"town":"Bern"}')


async def test_a_last_answer_after_a_limit_that_is_cut_off_is_no_output() -> None:
    """The agent halts as usual, and its result marks the text as incomplete."""
    calls = (model_reply("", wants("echo", say=f"{n}")) for n in range(2))
    here = scripted_agent(*calls, cut("As far as I"), budget=Budget(max_tool_calls=1))

    outcome = await here.run(asking(agent(tools=["echo"])), default="?")

    found = result(outcome)
    assert (found["terminate_reason"], found["incomplete"]) == ("budget", "length")
    assert (found["raw_content"], found["output"]) == ("As far as I", None)


@pytest.mark.req("cw/13.incomplete")
async def test_a_sub_agent_reports_an_incomplete_answer_to_its_caller() -> None:
    """The caller gets the partial text and continues."""
    inner = agent(name="inner")
    here = scripted_agent(model_reply("", wants("inner", input="?")), cut("So f"), "I see.")

    outcome = await here.run(asking(agent(tools=[{"agent": inner}])), default="?")

    assert result(outcome)["success"] is True
    told = here.small.requests[2].messages[-1].content
    assert '"code":"ModelAnswerIncomplete"' in told
    assert '"so_far":"So f"' in told


@pytest.mark.req("cw/13.incomplete")
@pytest.mark.parametrize("why", ["length", "content_filter", "empty"])
async def test_an_incomplete_summary_never_replaces_messages(why: str) -> None:
    """The messages are trimmed instead, and the event gives the reason."""
    turns = [model_reply("x" * 600, wants("echo", say=f"{n}")) for n in range(4)] + [
        model_reply("Done.")
    ]

    async def answer(request: ModelRequest) -> ModelReply:
        return turns.pop(0) if request.tools else cut("Half a summ", why=why)

    here = scripted_agent(*[answer] * 9)
    conversation = {"max_tokens": 700, "policy": "summarise"}

    outcome = await here.run(
        asking(agent(tools=["echo"], conversation=conversation, model={"stream": False})),
        default="The task.",
    )

    assert result(outcome)["success"] is True
    cuts = [(kind, data) for kind, data in events(here) if kind.startswith("conversation.")]
    assert {kind for kind, _ in cuts} == {"conversation.trimmed"}
    assert {data["summary_incomplete"] for _, data in cuts} == {why}
    assert "Half a summ" not in str([request.messages for request in here.small.requests[1:-1:2]])


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_answer_that_only_calls_a_tool_that_was_not_offered_is_empty(text: str) -> None:
    """A call of a tool that was not offered is an empty answer, in llm steps and in agents."""
    call = model_reply(text, wants("echo", say="1"))
    here = scripted_agent(call, call, call)

    step = await here.run(graph(_llm()))
    asked = await here.run(asking(agent()), default="?")

    assert "(incomplete: empty)" in str(step.error)
    assert (result(asked)["incomplete"], result(asked)["turn_count"]) == ("empty", 1)
    assert all(not one.tool_calls for one in here.small.requests[2].messages)


async def test_a_summary_that_only_calls_a_tool_replaces_no_messages() -> None:
    """The messages are trimmed instead, and the event gives the reason."""
    turns = [model_reply("x" * 600, wants("echo", say=f"{n}")) for n in range(4)] + [
        model_reply("Done.")
    ]

    async def answer(request: ModelRequest) -> ModelReply:
        return turns.pop(0) if request.tools else model_reply("", wants("echo", say="s"))

    here = scripted_agent(*[answer] * 9)
    window = {"max_tokens": 700, "policy": "summarise"}

    await here.run(asking(agent(tools=["echo"], conversation=window)), default="The task.")

    cuts = [(kind, data) for kind, data in events(here) if kind.startswith("conversation.")]
    assert {kind for kind, _ in cuts} == {"conversation.trimmed"}
    assert {data["summary_incomplete"] for _, data in cuts} == {"empty"}


async def test_a_last_answer_that_only_calls_a_tool_keeps_what_was_said() -> None:
    """After a limit refuses a tool call, the model is offered no tools but calls one again."""
    again = model_reply("", wants("echo", say="2"))
    here = scripted_agent(
        model_reply("So far.", wants("echo", say="1")), again, budget=Budget(max_tool_calls=0)
    )

    outcome = await here.run(asking(agent(tools=["echo"])), default="?")

    assert (result(outcome)["raw_content"], result(outcome)["output"]) == ("So far.", None)


def _llm(**data: Any) -> Any:
    return step("q", "llm", {"prompt": "Say.", **data})


@pytest.mark.req("cw/13.incomplete")
@pytest.mark.parametrize("why", ["length", "refusal", "empty"])
async def test_an_llm_step_fails_with_an_incomplete_answer(why: str) -> None:
    """The step's policy applies; ``allow_incomplete`` accepts the answer."""
    here = scripted_agent(
        cut("1, 2", why=why), cut("1, 2", why=why), cut("1, 2", why=why), "1, 2, 3"
    )

    failed = await here.run(graph(_llm()))
    taken = await here.run(graph(_llm(allow_incomplete=True)))
    policy = {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 0}
    retried = await here.run(graph({**_llm(), "policy": policy}))

    assert type(failed.error).__name__ == "ModelAnswerIncomplete"
    assert taken.steps["q"].outputs["default"] == "1, 2"
    assert retried.steps["q"].outputs["default"] == "1, 2, 3"


@pytest.mark.parametrize("allow", [False, True])
async def test_an_llm_step_with_tools_treats_incomplete_answers_alike(allow: bool) -> None:
    """An llm step with tools runs the same loop as an agent."""
    here = scripted_agent(model_reply("", wants("echo", say="1")), cut("1, 2"))
    toolset = step("t", "toolset", {"tools": ["echo"]})

    outcome = await here.run(
        graph(_llm(allow_incomplete=allow), toolset, link("t", "q")), default="?"
    )

    if allow:
        assert outcome.steps["q"].outputs["default"] == "1, 2"
    else:
        assert isinstance(outcome.error, ModelAnswerIncomplete)


@pytest.mark.req("cw/13.incomplete", "cw/13.streamed")
@pytest.mark.parametrize("end", ["cancel", "timeout"])
async def test_text_that_was_streamed_before_a_stop_is_kept(end: str) -> None:
    """The text is in ``raw_content``, marked as incomplete."""
    begun = asyncio.Event()

    async def writes(request: ModelRequest) -> ModelReply:
        assert request.on_delta is not None
        for word in ("Turn off ", "the water."):
            request.on_delta(Delta("content", word))
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    here = scripted_agent(writes)
    limits = {"timeout_ms": 1000} if end == "timeout" else {}
    running = asyncio.create_task(here.run(asking(agent(limits=limits)), default="?"))
    await begun.wait()
    if end == "cancel":
        here.token.cancel("Enough.")
        running.cancel()
    await settle_down()
    outcome = await running

    found = result(outcome)
    assert found["raw_content"] == "Turn off the water."
    assert (found["incomplete"], found["terminate_reason"]) == (
        ("cancelled", "aborted") if end == "cancel" else ("timeout", "timeout")
    )
    shown = [data["content"] for kind, data in events(here) if kind == "content_chunk"]
    assert "".join(shown) == "Turn off the water."


@pytest.mark.parametrize("end", ["cancelled", "timeout"])
async def test_text_that_came_with_a_call_before_a_stop_is_no_complete_answer(end: str) -> None:
    """The text belongs to the first turn; the second has produced none yet."""
    asked = asyncio.Event()

    async def waits(_: ModelRequest) -> ModelReply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    here = scripted_agent(model_reply("First text.", wants("echo", say="1")), waits)
    limits = {"timeout_ms": 1000} if end == "timeout" else {}
    running = asyncio.create_task(
        here.run(asking(agent(tools=["echo"], limits=limits)), default="?")
    )
    await asked.wait()
    if end == "cancelled":
        here.token.cancel("Enough.")
        running.cancel()
    await settle_down()

    found = result(await running)

    assert (found["raw_content"], found["incomplete"]) == ("First text.", end)


async def test_text_that_was_streamed_before_the_provider_failed_is_marked_so() -> None:
    """The text is marked as cancelled although no client cancelled the run."""

    async def fails(request: ModelRequest) -> ModelReply:
        assert request.on_delta is not None
        request.on_delta(Delta("content", "Turn off "))
        raise ModelError("m: cut off", retryable=False)

    here = scripted_agent(fails)

    outcome = await here.run(asking(agent()), default="?")

    found = result(outcome)
    assert (found["terminate_reason"], found["incomplete"]) == ("error", "cancelled")
    assert found["raw_content"] == "Turn off "
