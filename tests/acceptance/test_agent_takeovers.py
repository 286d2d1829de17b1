"""Agents whose process is killed during an answer, followed by the published client."""

import asyncio
import socket
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from caseworker_client import AsyncCaseworkerClient, Event, RetryPolicy, StreamedText

from tests.support.agent_runs import ANSWER, CALL, agent_run
from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.memory_rows import RUN_ENDS
from tests.support.service import ServiceProcess, finished, model_settings

PATIENT = RetryPolicy(reconnect_seconds=900)
THINKING = "First I think about it for a while, and then a bit more."
ONCE = {"turn_start", "tool_call_start", "tool_call_end", "usage", "turn_end"}


@pytest.mark.req("003/resume", "003/FR3.4")
@pytest.mark.parametrize("by", ["the process itself", "another replica"])
async def test_a_client_reads_one_whole_story_although_the_process_is_killed(
    database_url: str, provider: FakeProvider, by: str
) -> None:
    """No event is missing or repeated, its texts are complete, and no finished call is repeated."""
    settings = {**model_settings(provider.openai_url), "SERVER_PORT": str(_free_port())}
    whole = Step(text=ANSWER, thinking=THINKING, chunk_chars=6)
    held = Step(text=ANSWER, thinking=THINKING, chunk_chars=6, after_events=14, then="hold")
    await provider.script("(killed)", [Step(text=ANSWER, tool_calls=[CALL]), held])
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ServiceProcess(database_url, settings=settings))
        survivor, url = first, first.url
        if by == "another replica":
            other = {**settings, "SERVER_PORT": "0"}
            survivor = await stack.enter_async_context(
                ServiceProcess(database_url, settings=other, name="other")
            )
            async with first.client() as posting:
                await posting.post_run(agent_run("killed"))
            url = survivor.url
        client = await stack.enter_async_context(AsyncCaseworkerClient(url, retry=PATIENT))
        if survivor is first:
            await client.create_run(agent_run("killed"))
        seen: list[Event] = []
        texts, before_kill, restarting = StreamedText(), "", None
        async with asyncio.timeout(900):
            async for event in client.stream_events("killed"):
                seen.append(event)
                if texts.add(event) and event.data["turn_number"] == 2 and not before_kill:
                    before_kill = texts.of(2, step_id="a")
                    if not before_kill:
                        continue
                    await provider.script("(killed)", [whole])
                    first.child.kill()
                    await provider.release()
                    if survivor is first:
                        restarting = asyncio.create_task(first.start())
                if event.type in RUN_ENDS:
                    break
        if restarting is not None:
            await restarting
        async with survivor.client() as reading:
            run = await finished(reading, "killed")
            again = [event async for event in reading.events("killed")]

    assert run["status"] == "completed", run
    assert 0 < len(before_kill) < len(ANSWER), "it was killed in the middle of the answer"
    assert run["attempts"] == 2
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert texts.content == texts.of(2, step_id="a") == ANSWER
    assert texts.of(2, step_id="a", kind="thinking") == THINKING
    assert texts.of(1, step_id="a") == ANSWER
    told = Counter((e.type, e.data["turn_number"]) for e in seen if e.type in ONCE)
    assert set(told.values()) == {1}
    assert len(told) == 8, told
    assert len(await provider.arrivals("(killed)")) == 3
    assert run["usage"]["tool_calls"] == 1
    assert [message["content"] for message in _answers(run)] == [ANSWER, ANSWER]
    assert _texts_of(again) == {(1, ANSWER), (2, ANSWER)}, "read again, it says the same"
    require_sound_events(database_url)


def _answers(run: dict[str, Any]) -> list[dict[str, Any]]:
    messages = run["result"]["outputs"]["a"]["result"]["messages"]
    return [message for message in messages if message["role"] == "assistant"]


def _texts_of(events: list[dict[str, Any]]) -> set[tuple[int, str]]:
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_chunk":
            data = event["data"]
            turn = data["turn_number"]
            texts[turn] = texts.get(turn, "")[: data["offset"]] + data["content"]
    return set(texts.items())


def _free_port() -> int:
    """Return a port for a process that must listen on the same one after it was killed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
