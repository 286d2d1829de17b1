"""Event streams over real sockets: from any replica, resumable, and without delaying others."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from tests.support.event_log import require_sound_events, stored_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.memory_rows import RUN_ENDS
from tests.support.service import ServiceProcess, finished, model_settings, two_services

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
RUN = {"run_id": "followed", "input": "What is 6 times 7?"}


async def events_of(
    service: ServiceProcess, *, after: int = 0, opened: asyncio.Event | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """Follow the run at one replica from the last known sequence number."""
    headers = {"Last-Event-ID": str(after)}
    url = f"{service.url}/runs/followed/events"
    async with (
        httpx.AsyncClient(timeout=150, trust_env=False) as client,
        client.stream("GET", url, headers=headers) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        if opened is not None:
            opened.set()
        async for event in _data(answer):
            yield event


async def _data(answer: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def _seen(service: ServiceProcess, opened: asyncio.Event) -> list[dict[str, Any]]:
    return [event async for event in events_of(service, opened=opened)]


@pytest.mark.req("004/lifecycle")
@pytest.mark.guarantee(12, 18)
async def test_a_client_that_comes_again_elsewhere_sees_every_event_once(
    database_url: str, provider: FakeProvider
) -> None:
    """The client reconnects elsewhere after each event, even after the end of the run."""
    settings = model_settings(provider.openai_url)
    await provider.script("6 times 7", [Step(plan=PLAN)])
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, "--no-worker", settings=settings, name="second") as second,
        first.client() as client,
    ):
        await client.post_run(RUN)
        seen: list[dict[str, Any]] = []
        replicas = [first, second]
        async with asyncio.timeout(150):
            while not seen or seen[-1]["type"] not in RUN_ENDS:
                replica = replicas[len(seen) % 2]
                async with aclosing(events_of(replica, after=len(seen))) as events:
                    async for event in events:
                        seen.append(event)
                        break
        whole = [[event async for event in events_of(replica)] for replica in replicas]

    [(_, stored)] = stored_events(database_url).values()
    assert [event["seq"] for event in seen] == [event.seq for event in stored]
    assert whole == [seen, seen]
    require_sound_events(database_url)


async def test_a_post_streams_the_run_and_a_closed_connection_does_not_cancel_it(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The first event names the run, and the same request again continues the stream."""
    await provider.script("6 times 7", [Step(text="It is 42.", hang=True)])
    headers = {"Accept": "text/event-stream", "Idempotency-Key": "streamed"}
    body = {"kind": "agent", "agent": {"name": "a", "prompt": {}}, "input": "6 times 7?"}
    async with service.http() as http:
        async with http.stream("POST", "/runs", headers=headers, json=body) as answer:
            assert answer.status_code == 200
            events = _data(answer)
            first, *_ = seen = [await anext(events) for _ in range(3)]
        run_id = first["run_id"]
        assert answer.headers["location"] == f"/runs/{run_id}"
        assert (first["type"], first["seq"]) == ("run.accepted", 0)
        assert (await client.get_run(run_id))["status"] == "running"
        await provider.release()
        again = headers | {"Last-Event-ID": str(seen[-1]["seq"])}
        async with http.stream("POST", "/runs", headers=again, json=body) as answer:
            seen += [event async for event in _data(answer)]
        refused = await http.post("/runs", headers=headers, json={"kind": "agent"})

    assert [event["seq"] for event in seen] == list(range(len(seen)))
    assert seen[-1]["type"] == "run.completed"
    assert refused.headers["content-type"] == "application/problem+json"


async def test_open_streams_do_not_hold_up_the_end_of_a_process(
    database_url: str, provider: FakeProvider
) -> None:
    """SIGTERM ends the streams, and another replica serves the remaining events."""
    settings = model_settings(provider.openai_url)
    await provider.script("6 times 7", [Step(hang=True)])
    async with two_services(database_url, settings) as (first, second, client):
        async with first.client() as posting:
            await posting.post_run(RUN)
        await provider.wait_for_arrivals(1, "6 times 7")
        await provider.script("6 times 7", [Step(plan=PLAN)], repeat_last=True)
        async with asyncio.TaskGroup() as group:
            opened = [asyncio.Event() for _ in range(20)]
            streams = [group.create_task(_seen(first, each)) for each in opened]
            for each in opened:
                await each.wait()
            assert await first.child.terminate() == 0
        [seen, *others] = [stream.result() for stream in streams]
        run = await finished(client, "followed")
        rest = [event async for event in events_of(second, after=len(seen))]

    assert all(other == seen for other in others)
    assert run["status"] == "completed"
    assert [event["seq"] for event in seen + rest] == list(range(1, len(seen + rest) + 1))
    assert [*seen, *rest][-1]["type"] == "run.completed"
    require_sound_events(database_url)
