"""Agents whose process is killed during an answer, followed by the published client."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
WHOLE = Step(text=ANSWER, thinking=THINKING, chunk_chars=6)
HELD = Step(text=ANSWER, thinking=THINKING, chunk_chars=6, after_events=14, then="hold")
ONCE = {"turn_start", "tool_call_start", "tool_call_end", "usage", "turn_end"}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The events that a client received, from the start of a run to its end."""

    events: Sequence[Event]
    texts: StreamedText
    partial_answer: str
    """The part of the second answer that had arrived when the process was killed."""


async def stream_through_kill(
    client: AsyncCaseworkerClient, kill: Callable[[], Awaitable[None]]
) -> Stream:
    """Follow the run to its end; call ``kill`` after the first part of the second answer."""
    events, texts, partial_answer = [], StreamedText(), ""
    async with asyncio.timeout(900):
        async for event in client.stream_events("killed"):
            events.append(event)
            added = texts.add(event) and event.data["turn_number"] == 2
            if added and not partial_answer and (partial_answer := texts.of(2, step_id="a")):
                await kill()
            if event.type in RUN_ENDS:
                break
    return Stream(events=events, texts=texts, partial_answer=partial_answer)


@pytest.fixture
async def kill(provider: FakeProvider) -> Callable[[ServiceProcess], Awaitable[None]]:
    """Script an answer that stops in the middle; return a function that kills during it.

    The next process gets the whole answer.
    """
    await provider.script("(killed)", [Step(text=ANSWER, tool_calls=[CALL]), HELD])

    async def kill(service: ServiceProcess) -> None:
        await provider.script("(killed)", [WHOLE])
        service.child.kill()
        await provider.release()

    return kill


async def require_one_story(
    stream: Stream, service: ServiceProcess, provider: FakeProvider
) -> None:
    """Require complete texts, each event once, and no second request of a finished call."""
    async with service.client() as client:
        run = await finished(client, "killed")
        repeated = [event async for event in client.events("killed")]

    texts = stream.texts
    assert run["status"] == "completed", run
    assert 0 < len(stream.partial_answer) < len(ANSWER), "it was killed during the answer"
    assert run["attempts"] == 2
    assert [event.seq for event in stream.events] == list(range(1, len(stream.events) + 1))
    assert texts.content == texts.of(2, step_id="a") == ANSWER
    assert texts.of(2, step_id="a", kind="thinking") == THINKING
    assert texts.of(1, step_id="a") == ANSWER
    of_turns = Counter((e.type, e.data["turn_number"]) for e in stream.events if e.type in ONCE)
    assert set(of_turns.values()) == {1}
    assert len(of_turns) == 8, of_turns
    assert len(await provider.arrivals("(killed)")) == 3
    assert run["usage"]["tool_calls"] == 1
    assert [message["content"] for message in _answers(run)] == [ANSWER, ANSWER]
    assert _texts_of(repeated) == {(1, ANSWER), (2, ANSWER)}, "a second reader gets the same"


@pytest.mark.req("003/resume", "003/FR3.4")
async def test_a_client_reads_one_whole_story_although_its_process_is_killed_and_restarts(
    database_url: str,
    provider: FakeProvider,
    kill: Callable[[ServiceProcess], Awaitable[None]],
) -> None:
    """No event is missing or repeated, its texts are complete, and no finished call is repeated."""
    settings = {**model_settings(provider.openai_url), "SERVER_PORT": str(_free_port())}
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        AsyncCaseworkerClient(service.url, retry=PATIENT) as client,
        asyncio.TaskGroup() as group,
    ):
        await client.create_run(agent_run("killed"))

        async def restart() -> None:
            await kill(service)
            group.create_task(service.start())

        stream = await stream_through_kill(client, restart)
        await require_one_story(stream, service, provider)
    require_sound_events(database_url)


@pytest.mark.req("003/resume", "003/FR3.4")
async def test_a_client_of_another_replica_reads_one_whole_story_although_the_process_is_killed(
    database_url: str,
    provider: FakeProvider,
    kill: Callable[[ServiceProcess], Awaitable[None]],
) -> None:
    """The replica that streams the events recovers the run and repeats no finished call."""
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(database_url, settings=settings) as first,
        ServiceProcess(database_url, settings=settings, name="other") as replica,
        AsyncCaseworkerClient(replica.url, retry=PATIENT) as client,
    ):
        async with first.client() as posting:
            await posting.post_run(agent_run("killed"))
        stream = await stream_through_kill(client, lambda: kill(first))
        await require_one_story(stream, replica, provider)
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
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
