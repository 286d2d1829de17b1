"""Both clients start, answer, edit, retry and cancel threads of a real service."""

import asyncio

import pytest
from caseworker_client import ApiError, StreamedText

from tests.clients.callers import Callers
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import proxied
from tests.support.service import ServiceProcess

AGENT = {"name": "helper", "prompt": {"system": "Help."}}


@pytest.mark.req("004/chat")
async def test_a_conversation_branches(
    callers: Callers, service: ServiceProcess, provider: FakeProvider
) -> None:
    """Every action returns a turn with its answer, and the branches are listed."""
    name = f"t-{id(callers)}"
    texts = ["One.", "Two.", "Deux.", "Zwei.", "And so on."]
    await provider.script(name, [Step(text=text) for text in texts])
    caller = callers.of(service.url)
    thread = await caller.do("create_thread", thread_id=name, agent=AGENT, title="Counting")

    first = await caller.do("send_message", name, f"1? {name}", wait_seconds=120)
    asked = first.user.message_id
    again = await caller.do("retry_message", name, first.assistant.message_id, wait_seconds=120)
    edited = await caller.do("edit_message", name, asked, f"2? {name}", wait_seconds=120)
    followed = await caller.do(
        "send_message",
        name,
        "In German?",
        parent_id=edited.assistant.message_id,
        wait_seconds=120,
        budget={"max_steps": 9},
    )
    more = await caller.do(
        "continue_message", name, followed.assistant.message_id, wait_seconds=120
    )

    turns = (first, again, edited, followed, more)
    assert [turn.assistant.content for turn in turns] == texts
    assert {turn.run.status for turn in turns} == {"completed"}
    assert again.assistant.siblings == [first.assistant.message_id, again.assistant.message_id]
    assert followed.run.limits["max_steps"] == 9
    newest = await caller.do("list_messages", name)
    assert [one.content for one in newest][1:] == ["Deux.", "In German?", "Zwei.", "And so on."]
    old = await caller.do("list_messages", name, leaf=asked)
    assert [one.content for one in old] == [f"1? {name}", "Two."]
    assert len(await caller.do("list_messages", name, tree=True)) == 8
    assert await caller.do("get_thread", name) == thread
    assert name in {one.thread_id for one in (await caller.do("list_threads")).threads}
    await caller.do("delete_thread", name)
    with pytest.raises(ApiError, match="thread"):
        await caller.do("get_thread", name)


@pytest.mark.req("004/chat", "003/FR3.4")
async def test_an_answer_streams_over_a_connection_that_is_cut(
    callers: Callers, service: ServiceProcess, provider: FakeProvider
) -> None:
    """The message is sent once and every event arrives once, wherever the connection is cut."""
    name = f"cut-{id(callers)}"
    said = "A text that takes a while to write and comes in many pieces."
    await provider.script(name, [Step(text=said, chunk_chars=5)])
    async with proxied(service) as (proxy, url):
        caller = callers.of(url)
        await caller.do("create_thread", thread_id=name, agent=AGENT)
        proxy.cut_each_within(1500)
        text, seen = StreamedText(), []
        async for event in caller.each("stream_message", name, f"Say it {name}"):
            seen.append(event.seq)
            text.add(event)

    assert seen == list(range(1, len(seen) + 1))
    assert text.content == said
    assert len(await callers.of(service.url).do("list_messages", name, tree=True)) == 2
    assert len(await provider.arrivals(name)) == 1


@pytest.mark.req("004/chat", "004/cancel-early")
async def test_what_is_being_written_is_stopped(
    callers: Callers, service: ServiceProcess, provider: FakeProvider
) -> None:
    """All answers of the thread are cancelled, and the receipts name their runs."""
    name = f"stop-{id(callers)}"
    await provider.script(name, [Step(hang=True)])
    caller = callers.of(service.url)
    await caller.do("create_thread", thread_id=name, agent=AGENT)
    turn = await caller.do("send_message", name, f"Well? {name}")
    await provider.wait_for_arrivals(1, name)

    cancelled = await caller.do("cancel_thread", name, reason="enough")
    async with asyncio.timeout(150):
        run = await caller.do("wait_for_run", turn.run.run_id)
    await provider.release()

    assert [one.run_id for one in cancelled.runs] == [run.run_id]
    assert (run.status, run.cancel["reason"]) == ("cancelled", "enough")


async def test_a_run_shows_what_it_goes_on_from(callers: Callers, service: ServiceProcess) -> None:
    """The source is a typed value, with the API's name in JSON."""
    caller = callers.of(service.url)
    source = await caller.do("run_case", "What is 6 * 7?", wait_seconds=120)

    run = await caller.do("create_run", {"from": {"run_id": source.run_id}}, wait_seconds=120)

    assert source.from_ is None
    assert (run.from_.run_id, run.from_.until) == (source.run_id, None)
    assert run.as_json()["from"] == {"run_id": source.run_id, "until": None}
