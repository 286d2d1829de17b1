"""Streams of external runs, and how calls in flight end."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.external import ANTHROPIC, NEW, OPENAI, Api, both, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step

EVENT_END = b"\n\n"

UNREADABLE = {
    "a page": ("<html><body>Bad gateway</body></html>", "text/html"),
    "a page as JSON": ("<html></html>", "application/json"),
    "half a document": ('{"choices": [{"message"', "application/json"),
    "nested deeply": ("[" * 100_000, "application/json"),
    "nothing": ("", "application/json"),
    "a stream that is none": ("<html></html>", "text/event-stream"),
    "a stream of odd documents": ('data: {"choices": 5}\n\ndata: 7\n\n', "text/event-stream"),
    "a stream of half documents": ('data: {"choices"\n\n', "text/event-stream"),
}


@pytest.mark.parametrize(("body", "kind"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
async def test_a_reply_that_cannot_be_read_is_an_error_of_the_api(
    http: httpx.AsyncClient, provider: FakeProvider, api: Any, body: str, kind: str
) -> None:
    """The client's library understands it, and the run continues."""
    steps = [Step(raw_body=body, headers={"content-type": kind})] * 3
    await provider.script("UNREADABLE", [*steps, Step(text="Fine.")])
    agent = await start(http, api=api)

    reply = await agent.ask("UNREADABLE", stream="event-stream" in kind)
    run = await agent.get()

    assert "urn:" not in reply.text
    if reply.status_code == 200:  # the beginning of a stream was passed on
        reported = json.loads(reply.text.rstrip().rpartition("data: ")[2])
    else:
        assert 400 <= reply.status_code < 600
        reported = reply.json()
    assert reported["error"]["message"], reply.text
    assert run.json()["status"] == "running"


CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}'

STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'

COUNTS = b'"usage":{"prompt_tokens":11,"completion_tokens":7}}'


@pytest.mark.parametrize("end", [b"\n\r\n", b"\r\n\n", b"\r\n\r\n", b"\n\n", b"\r\r"])
@pytest.mark.parametrize("choices", [b'"choices":[],', b"", b'"choices":null,'])
async def test_a_stream_of_any_form_arrives_without_its_usage_chunk(
    http: httpx.AsyncClient, provider: FakeProvider, end: bytes, choices: bytes
) -> None:
    """Endpoints mix the ends of lines, and omit the choices of the chunk with the counts."""
    shown, counts = CONTENT + end + STOP + end, b"data: {" + choices + COUNTS + end
    body = (shown + counts + b"data: [DONE]" + end).decode()
    step = Step(raw_body=body, headers={"content-type": "text/event-stream"})
    await provider.script("FORMS", [step], repeat_last=True)
    agent = await start(http)

    reply = await agent.ask("FORMS", stream=True)
    used = (await agent.get()).json()["usage"]

    assert reply.content == shown + b"data: [DONE]" + end
    assert used["tokens"] == 11 + 7


async def test_the_usage_chunk_is_hidden_from_a_client_that_did_not_ask_for_it(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider is always asked for it, because the run is charged with these counts."""
    await provider.script("COUNTED", [Step(text="on and on", tokens_in=11, tokens_out=7)] * 2)
    agent = await start(http)
    shown = await agent.ask("COUNTED", stream=True, stream_options={"include_usage": True})
    hidden = await agent.ask("COUNTED", stream=True, seed=1)
    used = (await agent.get()).json()["usage"]
    arrivals = await provider.arrivals(bodies=True)

    events, fewer = (reply.content.split(EVENT_END) for reply in (shown, hidden))
    counted = [event for event in events if b'"prompt_tokens": 11' in event]
    assert len(counted) == 1
    stripped = [event for event in events if event not in counted]
    created = [json.loads(event[6:])["created"] for event in (events[0], fewer[0])]
    old, new = (f'"created": {at}'.encode() for at in created)
    assert [event.replace(old, new) for event in stripped] == fewer
    assert used["tokens"] == 2 * (11 + 7)
    assert [each.body["stream_options"] for each in arrivals if each.body] == [
        {"include_usage": True}
    ] * 2


@both
@pytest.mark.req("cw/15.stop")
async def test_a_cancel_closes_the_connection_to_the_provider_and_ends_the_stream_with_an_error(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """No client takes the interrupted stream for a whole answer, and no later call is made."""
    step = Step(text="a long answer " * 5, after_events=4, then="hold")
    await provider.script("STOPPED", [step], repeat_last=True)
    agent = await start(http, api=api)
    async with agent.streamed("STOPPED raw") as reply, agent.library() as (client, sent):
        stream = await api.create(client, "STOPPED", stream=True)
        await anext(stream)
        parts = reply.aiter_bytes()
        received = await anext(parts)
        cancelled = await http.delete(f"/runs/{agent.run_id}", params={"reason": "enough"})
        arrivals = await provider.wait_for_arrivals(2, "STOPPED", ended=True)
        received += b"".join([part async for part in parts])
        with pytest.raises(api.error, match="enough"):
            async for _ in stream:
                pass
        with pytest.raises(api.refused):
            await api.create(client, "STOPPED later")
    run = await agent.ended()
    last = received.rstrip().rsplit(EVENT_END, 1)[1]

    assert cancelled.status_code == NEW
    assert [each.outcome for each in arrivals] == ["client_gone"] * 2
    assert last.startswith(b"data: " if api is OPENAI else b"event: error\ndata: ")
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "cancelled"
    assert api.end not in received
    assert sent == {"200": 1, "400": 1}
    assert run["status"] == "cancelled"
    assert run["stop"]["reason"] == "enough"
    agent.require_final(await agent.ask("STOPPED last"), "cancelled")
    assert await provider.count("STOPPED") == 2


@both
async def test_a_cancel_answers_a_call_that_waits_for_its_whole_reply(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The client library does not repeat the refused call."""
    await provider.script("WAITS", [Step(hang=True)], repeat_last=True)
    agent = await start(http, api=api)
    async with agent.library() as (client, sent):
        call = asyncio.create_task(api.create(client, "WAITS"))
        await provider.wait_for_arrivals(1, "WAITS")
        await http.delete(f"/runs/{agent.run_id}")
        with pytest.raises(api.refused) as caught:
            await call
    (arrival,) = await provider.wait_for_arrivals(1, "WAITS", ended=True)

    agent.require_final(caught.value.response, "cancelled")  # type: ignore[attr-defined]
    assert sent == {"400": 1}
    assert arrival.outcome == "client_gone"


@pytest.mark.req("cw/15.finish")
async def test_finishing_cancels_the_calls_in_flight(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider's connection closes, and the client of the call gets a final refusal."""
    await provider.script("FLIES", [Step(hang=True)])
    agent = await start(http)
    call = asyncio.create_task(agent.ask("FLIES"))
    await provider.wait_for_arrivals(1, "FLIES")
    finished = await agent.finish({"output": "early"})
    reply = await call
    (arrival,) = await provider.wait_for_arrivals(1, "FLIES", ended=True)

    assert finished.json()["status"] == "completed"
    agent.require_final(reply, "finished")
    assert arrival.outcome == "client_gone"
    agent.require_final(await agent.ask("later"), "finished")


@pytest.mark.req("cw/15.finish")
async def test_finishing_ends_an_open_stream_with_an_error_event(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    await provider.script("OPEN", [Step(text="a long text", after_events=2)])
    agent = await start(http)
    async with agent.streamed("OPEN") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await agent.finish({"output": "early"})
        rest = [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]
    assert rest[-1]["error"]["code"] == "finished"


@both
@pytest.mark.req("cw/15.refusals")
async def test_a_provider_is_retried_only_while_no_byte_was_passed_on(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A failure before the first byte is repeated; a stream that breaks off ends with an error."""
    await provider.script("EARLY", [Step(status=503), Step(cut="before"), Step(text="fine")])
    await provider.script("WHOLE", [Step(cut="middle"), Step(text="fine")])
    broken = Step(text="half of an answer", after_events=4, then="cut")
    await provider.script("BROKEN", [broken, Step(text="fine")])
    agent = await start(http, api=api)
    early, whole = await agent.ask("EARLY", stream=True), await agent.ask("WHOLE")
    late = await agent.ask("BROKEN", stream=True)
    last = late.content.rstrip().rsplit(EVENT_END, 1)[1]

    assert (early.status_code, whole.status_code) == (200, 200)
    assert b"fine" in early.content
    assert "fine" in whole.text
    assert await provider.count("EARLY") == 3
    assert await provider.count("WHOLE") == 2
    assert await provider.count("BROKEN") == 1
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "provider_failed"
    assert b"fine" not in late.content
