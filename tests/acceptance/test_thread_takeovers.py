"""Answers in threads whose process is killed during the stream, followed by the client."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import httpx
import pytest
from caseworker_client import AsyncCaseworkerClient, Event, RetryPolicy, StreamedText

from tests.support.agent_runs import ANSWER, CALL
from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy, address_of
from tests.support.service import ServiceProcess, model_settings
from tests.support.threads import ThreadClient

PATIENT = RetryPolicy(reconnect_seconds=900)
AGENT = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}
ONCE = {"turn_start", "tool_call_start", "tool_call_end", "usage", "turn_end"}


@pytest.mark.req("003/resume", "003/FR3.4", "004/chat")
@pytest.mark.parametrize("by", ["the process itself", "another replica"])
async def test_an_answer_in_a_thread_is_whole_although_its_process_is_killed(
    database_url: str, provider: FakeProvider, by: str
) -> None:
    """The stream has no gap or repetition, and no finished model or tool call is repeated."""
    settings = model_settings(provider.openai_url)
    called = Step(text=ANSWER, tool_calls=[CALL])
    whole = Step(text=ANSWER, chunk_chars=6)
    held = Step(text=ANSWER, chunk_chars=6, after_events=8, then="hold")
    await provider.script("(killed)", [called, held])
    async with AsyncExitStack() as stack:
        first = ServiceProcess(database_url, settings=settings)
        survivor = await stack.enter_async_context(first)
        if by == "another replica":
            other = ServiceProcess(database_url, settings=settings, name="other")
            survivor = await stack.enter_async_context(other)
        proxy = await stack.enter_async_context(FaultProxy(address_of(first)))
        host, port = proxy.address
        url = f"http://{host}:{port}"
        client = await stack.enter_async_context(AsyncCaseworkerClient(url, retry=PATIENT))
        await client.create_thread(thread_id="t", agent=AGENT)

        async def take_over() -> None:
            if survivor is first:
                await first.start()
            proxy.lead_to(address_of(survivor))

        seen: list[Event] = []
        text, before_kill, taking_over = StreamedText(), "", None
        async with asyncio.timeout(900):
            async for event in client.stream_message("t", "6 times 7? (killed)", run_id="answer"):
                seen.append(event)
                if text.add(event) and event.data["turn_number"] == 2 and taking_over is None:
                    before_kill = text.content
                    await provider.script("(killed)", [whole])
                    first.child.kill()
                    await provider.release()
                    taking_over = asyncio.create_task(take_over())
        assert taking_over is not None
        await taking_over
        run = await client.get_run("answer")
        question, answer = await client.list_messages("t")
        [made] = [one async for one in client.iterate_runs()]
        await provider.script("(killed)", [Step(text="Nothing.")])
        following = await client.send_message("t", "What else?", wait_seconds=120)

    assert 0 < len(before_kill) < len(ANSWER), "it was killed in the middle of the answer"
    assert (run.status, run.attempts, made.run_id) == ("completed", 2, "answer")
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert (seen[-1].type, text.content) == ("run.completed", ANSWER)
    told = Counter((one.type, one.data["turn_number"]) for one in seen if one.type in ONCE)
    assert set(told.values()) == {1}
    assert (question.content, answer.content) == ("6 times 7? (killed)", ANSWER)
    assert (answer.status, answer.run_id) == ("completed", "answer")
    assert run.usage is not None
    assert run.usage.tool_calls == 1
    assert following.assistant.content == "Nothing."
    assert len(await provider.arrivals("(killed)")) == 4, "two, the lost one again, the next"
    require_sound_events(database_url)


@pytest.mark.req("004/chat")
@pytest.mark.parametrize("end", ["cancelled at once", "cancelled after the take-over", "failed"])
async def test_text_that_was_streamed_before_a_crash_is_kept(
    database_url: str, provider: FakeProvider, end: str
) -> None:
    """The text is in the result, the message and the next prompt, whatever the run's end."""
    begun = Step(text="Turn off the water. Then wait.", after_events=4, then="hold")
    second = Step(status=400) if end == "failed" else Step(hang=True)
    await provider.script("(tap)", [begun, second])
    service = ServiceProcess(database_url, settings=model_settings(provider.openai_url))
    async with service, httpx.AsyncClient(timeout=150, trust_env=False) as http:
        http.base_url = service.url
        thread = await ThreadClient.begin(http, "tap")
        turn = await thread.post(content="How? (tap)")
        run_id = turn["run"]["run_id"]
        shown = StreamedText()
        async with AsyncCaseworkerClient(service.url) as client:
            async for event in client.stream_events(run_id):
                if shown.add(event) and shown.content:
                    break
        service.child.kill()
        await service.start()
        http.base_url = service.url
        if end == "cancelled after the take-over":
            await provider.wait_for_arrivals(2, "(tap)")
        if end != "failed":
            await http.post(f"{thread.path}/cancel")
        run = await thread.ended(run_id)
        (_, answer) = await thread.messages()
        await provider.release()
        await provider.script("(tap)", [Step(text="Undo the screw.")])
        await thread.answer(content="Go on.")

    status = "failed" if end == "failed" else "cancelled"
    assert (run["status"], run["result"]["steps"]["agent"]["status"]) == (status, status)
    result = run["result"]["outputs"]["agent"]["result"]
    assert result["raw_content"].startswith(shown.content)
    assert (result["incomplete"], answer["incomplete"]) == ("cancelled", "cancelled")
    assert answer["content"] == result["raw_content"]
    assert answer["content"] in (await provider.arrivals("(tap)"))[-1].prompt
