"""Events of answers: merged, with their offset in the text, and of limited size."""

import asyncio
from typing import Any

import pytest

from caseworker.models.ports import Delta, ModelError, ModelReply, ModelRequest
from caseworker.nodes.agent.activity import CHUNK_CHARS
from caseworker.nodes.agent.references import MAX_SHOWN_CHARS, MIN_CHARS
from tests.support.limits import retry_policy
from tests.unit.nodes.agent.world import (
    agent,
    asking,
    events,
    kinds,
    model_reply,
    scripted_agent,
    text_of,
    wants,
)


@pytest.mark.req("003/FR3.1")
async def test_the_events_of_a_turn_come_in_their_order() -> None:
    """The events are thinking, text, usage, tool calls and the end of the turn, in this order."""
    here = scripted_agent(model_reply("Let me.", wants("echo", say="hi"), thinking="Hm hm"), "Hi.")

    await here.run(asking(agent(tools=["echo"])), default="?")

    assert list(dict.fromkeys(kinds(here))) == [
        "turn_start",
        "thinking",
        "content_chunk",
        "usage",
        "tool_call_start",
        "tool_call_end",
        "turn_end",
    ]
    started = dict(events(here)[kinds(here).index("tool_call_start")][1])
    assert started == {
        "turn_number": 1,
        "tool_call": {"id": "c1", "name": "echo", "arguments": '{"say": "hi"}'},
    }
    ended = dict(events(here)[kinds(here).index("tool_call_end")][1])
    assert (ended["tool_call_id"], ended["name"]) == ("c1", "echo")
    assert ended["result"] == '{"said":"hi","times":1}'


@pytest.mark.req("003/FR3.4")
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_shown_in_parts_that_say_where_they_stand(stream: bool) -> None:
    """Parts stay within the size limit and add up to the whole text, streamed or not."""
    text = "0123456789" * 700
    here = scripted_agent(text)

    await here.run(asking(agent(model={"stream": stream})), default="?")

    found = events(here)
    parts = [data["content"] for kind, data in found if kind == "content_chunk"]
    assert max(map(len, parts)) <= CHUNK_CHARS
    assert "".join(parts) == text_of(found, 1) == text
    assert len(parts) < 20


@pytest.mark.req("003/FR3.4")
async def test_an_answer_that_is_tried_again_is_written_anew() -> None:
    """The retry writes from offset 0, so a client shows only the second answer."""

    async def breaks_off(request: ModelRequest) -> ModelReply:
        assert request.on_delta is not None
        request.on_delta(Delta("content", "The answer is 4"))
        await asyncio.sleep(0)
        raise ModelError("Broken.", retryable=True)

    here = scripted_agent(breaks_off, "It is 42.")
    here.gateway._retry = retry_policy(max_retries=1, initial_delay_seconds=0.001)

    await here.run(asking(agent()), default="?")

    found = events(here)
    chunks = [data for kind, data in found if kind == "content_chunk"]
    assert (chunks[0]["content"], chunks[1]["offset"]) == ("The answer is 4", 0)
    assert text_of(found, 1) == "It is 42."


async def test_what_tools_take_and_give_is_shown_in_bounded_form() -> None:
    """Events truncate arguments and results; the model reads them in full."""
    long: Any = "x" * 50_000
    here = scripted_agent(model_reply("", wants("echo", say=long)), "Ok.")

    await here.run(asking(agent(tools=["echo"])), default="?")

    about = [data for kind, data in events(here) if kind.startswith("tool_")]
    assert about[0] == {
        "turn_number": 1,
        "tool_call": {"id": "c1", "name": "echo", "index": 1},
        "text_of": "a/turn/1",
    }
    assert len(about[1]["result"]) <= MAX_SHOWN_CHARS + 100
    assert len(here.small.requests[1].messages[-1].content) > 50_000


@pytest.mark.parametrize(
    ("chars", "refers"),
    [
        (MIN_CHARS - 1, False),
        (MIN_CHARS, True),
        (MAX_SHOWN_CHARS, True),
        (MAX_SHOWN_CHARS + 1, False),
    ],
)
async def test_an_event_refers_to_a_result_that_is_neither_short_nor_long(
    chars: int, refers: bool
) -> None:
    """A short result costs no more than the reference, and a long one is shown truncated."""
    say: Any = "x" * (chars - len('{"said":"","times":1}'))
    here = scripted_agent(model_reply("", wants("echo", say=say)), "Ok.")

    await here.run(asking(agent(tools=["echo"])), default="?")

    ended = dict(events(here)[kinds(here).index("tool_call_end")][1])
    assert ("text_of" in ended, "result" in ended) == (refers, not refers)
