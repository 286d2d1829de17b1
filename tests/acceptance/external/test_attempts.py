"""Attempts of external runs: new keys, recorded replies, and repeated requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from tests.support.external import OLD, REFUSED, Agent, Api, both, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step


@pytest.mark.req("cw/15.refusals")
@pytest.mark.req("cw/15.resume")
async def test_another_post_opens_an_attempt_and_supersedes_the_earlier_key(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The earlier key is refused finally; a different body is a conflict."""
    first = await start(http, run_id="attempts", name="a")
    await first.ask("FIRST")
    again = await http.post("/runs", json={"kind": "external", "run_id": "attempts", "name": "a"})
    conflict = await http.post(
        "/runs", json={"kind": "external", "run_id": "attempts", "name": "b"}
    )
    second = Agent(http=http, run=again.json())

    assert again.status_code == OLD, again.text
    assert second.run["attempt"] == 2
    assert second.key != first.key
    assert conflict.status_code == 409
    first.require_final(await first.ask("SUPERSEDED"), "superseded")
    assert (await second.ask("SECOND")).status_code == 200
    assert await provider.count("SUPERSEDED") == 0


@asynccontextmanager
async def arriving(agent: Agent, text: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Send the head of a call, which the service accepts; the function sends the body.

    It returns the whole reply.
    """
    content = json.dumps(agent.api.body(text)).encode()
    head = (
        f"POST {agent.api.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {agent.key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nExpect: 100-continue\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.http.base_url.port)
    writer.write(head.encode())
    assert b" 100 " in await reader.readuntil(b"\r\n\r\n")

    async def rest() -> bytes:
        writer.write(content)
        return await reader.read()

    yield rest
    writer.close()


async def test_a_call_whose_attempt_is_superseded_while_its_body_arrives_is_refused(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    first = await start(http)
    async with arriving(first, "LATE") as rest:
        second = await first.next_attempt()
        assert (await second.ask("SECOND")).status_code == 200
        assert b'"superseded"' in await rest()
    assert await provider.count("LATE") == 0


async def test_a_call_of_a_run_that_ends_while_its_body_arrives_is_refused(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    agent = await start(http)
    async with arriving(agent, "AFTER") as rest:
        assert (await agent.finish({"output": 1})).status_code == 200
        reply = await rest()
    assert b'"finished"' in reply, reply
    assert await provider.count("AFTER") == 0


async def test_a_repeated_post_with_an_idempotency_key_only_renews_the_key(
    http: httpx.AsyncClient,
) -> None:
    """A client that lost the response of its POST does not start a second attempt."""
    key = {"Idempotency-Key": "renewed"}
    lost = await start(http, headers=key)
    again = await http.post("/runs", json={"kind": "external"}, headers=key)
    renewed = Agent(http=http, run=again.json())
    used = await renewed.ask("Hello")
    late = await lost.ask("Hello")
    third = await http.post("/runs", json={"kind": "external"}, headers=key)

    assert again.status_code == OLD
    assert renewed.run_id == lost.run_id
    assert renewed.run["attempt"] == 1
    assert used.status_code == 200
    assert late.status_code in (401, REFUSED)
    assert third.json()["attempt"] == 2


async def test_a_finished_run_is_returned_without_access(http: httpx.AsyncClient) -> None:
    """A POST that repeats the body of an ended run opens nothing."""
    agent = await start(http, run_id="over")
    await agent.finish({"output": 1})
    again = await http.post("/runs", json={"kind": "external", "run_id": "over"})

    assert again.status_code == OLD
    assert again.json()["access"] is None
    assert again.json()["status"] == "completed"


@both
async def test_a_later_attempt_gets_the_recorded_replies_without_a_call(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Equal requests get the recorded bytes in the order in which they were made."""
    for text, answers in (("POLL", ["not yet", "done"]), ("FLOW", ["in parts"])):
        await provider.script(text, [Step(text=answer) for answer in answers])
    first = await start(http, api=api, run_id=f"replayed-{api}")
    made = [await first.ask("POLL"), await first.ask("POLL"), await first.ask("FLOW", stream=True)]
    used = (await first.get()).json()["usage"]
    second = await first.next_attempt()
    replayed = [
        await second.ask("POLL"),
        await second.ask("FLOW", stream=True),
        await second.ask("POLL"),
    ]
    now = (await first.get()).json()["usage"]
    await second.ask("POLL")  # one more than recorded
    await second.finish({"output": 1})
    result = (await second.get()).json()["result"]

    assert "not yet" in made[0].text
    assert "done" in made[1].text
    assert [each.content for each in replayed] == [made[each].content for each in (0, 2, 1)]
    assert [each.headers["content-type"] for each in replayed] == [
        made[each].headers["content-type"] for each in (0, 2, 1)
    ]
    names = "tokens", "cost_usd", "llm_calls", "api_calls"
    assert [now[name] for name in names] == [used[name] for name in names]
    assert await provider.count("") == 4
    assert (result["replayed_calls"], result["unused_calls"]) == (3, 0)
    assert await second.events("replay.diverged") == []


@both
@pytest.mark.req("cw/15.resume")
async def test_a_repeated_request_joins_the_call_in_flight_and_others_do_not(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """An idempotency key or a library's retry makes it the same request; equal content does not."""
    step = Step(text="joined in the middle", after_events=3, then="hold")
    await provider.script("JOIN", [step], repeat_last=True)
    agent = await start(http, api=api)
    key, retry = {"Idempotency-Key": "k"}, {"x-stainless-retry-count": "1"}
    async with AsyncExitStack() as stack:

        async def opened(text: str, **headers: str) -> httpx.Response:
            return await stack.enter_async_context(agent.streamed(text, headers))

        async with agent.streamed("JOIN left") as left:
            assert left.status_code == 200
        named, plain, twin = [
            await opened("JOIN named", **key),
            await opened("JOIN plain"),
            await opened("JOIN plain"),
        ]
        await provider.wait_for_arrivals(4, "JOIN")
        joined = [
            await opened("JOIN named", **key),
            await opened("JOIN plain", **retry),
            await opened("JOIN left", **retry),
        ]
        await provider.release()
        replies = [await each.aread() for each in (named, plain, twin, *joined)]

    assert await provider.count("JOIN") == 4
    assert replies[3] == replies[0]
    assert replies[4] in (replies[1], replies[2])
    assert all(api.end in each for each in replies)
