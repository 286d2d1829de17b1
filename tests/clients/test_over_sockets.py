"""Both clients use a real service that is killed, replaced and cut off."""

import asyncio
import itertools
from collections.abc import AsyncGenerator

import pytest
from caseworker_client import (
    Event,
    RetryPolicy,
    ServiceUnreachableError,
    WaitTimeoutError,
)

from tests.clients.callers import Callers
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import address_of, proxied
from tests.support.graph_documents import edge
from tests.support.service import ServiceProcess, model_settings

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
QUESTION = "What is 6 times 7?"


async def everything(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


def require_whole(events: list[Event], end: str = "run.completed") -> None:
    """Check that every event occurs once, in order, and that the last one is the end."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events if event.ends] == [end]


@pytest.fixture
async def answering(provider: FakeProvider) -> FakeProvider:
    """Script the provider to plan the calculation."""
    await provider.script("6 times 7", [Step(plan=PLAN)], repeat_last=True)
    return provider


@pytest.mark.usefixtures("answering")
async def test_a_case_is_asked_for_waited_for_and_looked_at(
    callers: Callers, service: ServiceProcess
) -> None:
    """The client reads its answer, its trace as JSON and text, its calls and its files."""
    caller = callers.of(service.url)

    run = await caller.do("run_case", QUESTION, wait_seconds=120, metadata={"kept": True})
    trace = await caller.do("get_trace", run.run_id)
    explained = await caller.do("explain_run", run.run_id)
    nodes = trace.snapshot["nodes"]
    [node_id] = [each for each, node in nodes.items() if node["kind"] == "tool"]
    call = await caller.do("get_call", run.run_id, node_id)

    assert (run.status, run.ended, run.result.answer) == ("completed", True, "42")
    assert run.usage is not None
    assert run.usage.tool_calls == 1
    assert run.metadata == {"kept": True}
    for again in ("get_run", "wait_for_run"):
        assert (await caller.do(again, run.run_id)).as_json() == run.as_json()
    assert "calculator" in explained
    assert (call.name, call.request) == ("calculator", {"args": {"expression": "6 * 7"}})
    assert await caller.do("list_artifacts", run.run_id) == []
    assert (await caller.do("get_trace", run.run_id, payloads=True)).model_extra.keys() > set(
        trace.model_extra
    )
    assert "calculator" in {tool["name"] for tool in await caller.do("list_tools")}
    assert await caller.do("service_version") == "0.2.0"


async def test_a_run_is_cancelled_before_it_exists_and_while_it_works(
    callers: Callers, service: ServiceProcess, provider: FakeProvider
) -> None:
    """The receipt lists the started calls, and a timed-out wait returns the last known run."""
    await provider.script("6 times 7", [Step(hang=True)], repeat_last=True)
    caller = callers.of(service.url)
    early, late = (f"{name}-{id(callers)}" for name in ("early", "late"))

    receipt = await caller.do("cancel_run", early, reason="no")
    never = await caller.do("run_case", QUESTION, run_id=early)
    await caller.do("run_case", QUESTION, run_id=late)
    await provider.wait_for_arrivals(1, "6 times 7")
    with pytest.raises(WaitTimeoutError) as waited:
        await caller.do("wait_for_run", late, timeout_seconds=0.3)
    stopped = await caller.do("cancel_run", late, reason="enough")
    run = await caller.do("wait_for_run", late, timeout_seconds=150)

    assert (receipt.status, never.status) == (None, "cancelled")
    assert (waited.value.run.run_id, waited.value.run.ended) == (late, False)
    assert [call["kind"] for call in stopped.calls] == ["llm"]
    assert (run.status, run.stop.reason, run.cancel["reason"]) == ("cancelled", "enough", "enough")
    assert (await caller.do("cancel_run", late)).already_finished


async def test_all_runs_are_listed_page_by_page(callers: Callers, service: ServiceProcess) -> None:
    """Each run is listed once, newest first."""
    caller = callers.of(service.url)
    posted = []
    for _ in range(5):
        run = await caller.do(
            "run_graph", {"steps": [calculation("s")], "edges": []}, metadata={"of": "a list"}
        )
        posted.append(run.run_id)

    first = await caller.do("list_runs", limit=2)
    listed = [run.run_id async for run in caller.each("iterate_runs", page_size=2)]
    cancelled = [run async for run in caller.each("iterate_runs", status="cancelled")]

    assert listed[:5] == posted[::-1]
    assert len(set(listed)) == len(listed)
    assert [run.run_id for run in first.runs] == listed[:2]
    assert {run.status for run in cancelled} <= {"cancelled"}


@pytest.mark.usefixtures("answering")
async def test_a_lost_answer_makes_no_second_run(callers: Callers, service: ServiceProcess) -> None:
    """The request was executed, but its answer was lost."""
    marked = {"test": f"lost-{id(callers)}"}
    async with proxied(service) as (proxy, url):
        caller = callers.of(url)
        proxy.lose_answer(b"POST /runs", b"HTTP/1.1 202")
        run = await caller.do("run_case", QUESTION, metadata=marked)
        listed = [each async for each in caller.each("iterate_runs", page_size=200)]

    assert proxy.counts.answers_dropped == 1
    assert [each.run_id for each in listed if each.metadata == marked] == [run.run_id]


def calculation(step_id: str) -> dict[str, object]:
    arguments = {"expression": "6 * 7"}
    return {"id": step_id, "type": "tool", "data": {"tool": "calculator", "args": arguments}}


@pytest.mark.guarantee(12)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.proof) for n in (1, 2))])
async def test_a_stream_that_is_cut_at_random_bytes_brings_every_event_once(
    callers: Callers, service: ServiceProcess, seed: int
) -> None:
    """Events stay in order, wherever within an event, a number or the headers the cut is."""
    names = [f"s{number}" for number in range(40)]
    graph = {
        "steps": [calculation(name) for name in names],
        "edges": [edge(one, other, channel="flow") for one, other in itertools.pairwise(names)],
    }
    direct = callers.of(service.url)
    run = await direct.do("run_graph", graph)
    async with proxied(service, seed) as (proxy, url):
        caller = callers.of(url, retry=RetryPolicy(pause_factor=0.05))
        proxy.cut_each_within(2500)
        seen = await everything(caller.each("stream_events", run.run_id))
    stored = await everything(direct.each("stream_events", run.run_id))

    assert proxy.counts.cut >= 4
    assert seen == stored
    require_whole(seen)


@pytest.mark.parametrize(
    "callers", ["sync", pytest.param("async", marks=pytest.mark.proof)], indirect=True
)
async def test_a_stream_and_a_wait_outlive_the_service(
    callers: Callers, database_url: str, provider: FakeProvider
) -> None:
    """The service is killed during a call, and started again elsewhere after a while."""
    await provider.script("6 times 7", [Step(hang=True)])
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        proxied(service) as (proxy, url),
    ):
        following, waiting = callers.of(url), callers.of(url)
        run = await following.do("run_case", QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        waited = asyncio.create_task(waiting.do("wait_for_run", run.run_id, timeout_seconds=60))
        seen: list[Event] = []
        async for event in following.each("stream_events", run.run_id):
            seen.append(event)
            if event.seq == 1:
                service.child.kill()
                await provider.script("6 times 7", [Step(plan=PLAN)], repeat_last=True)
                await service.start()
                proxy.lead_to(address_of(service))
        ended = await waited

    assert (ended.status, ended.attempts) == ("completed", 2)
    require_whole(seen)


@pytest.mark.parametrize(
    "callers", [pytest.param("sync", marks=pytest.mark.proof), "async"], indirect=True
)
async def test_a_stream_goes_on_at_another_replica(
    callers: Callers, database_url: str, provider: FakeProvider
) -> None:
    """The first replica is gone permanently, together with its execution of the run."""
    await provider.script("6 times 7", [Step(hang=True)])
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        proxied(first) as (proxy, url),
    ):
        caller = callers.of(url)
        run = await caller.do("run_case", QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        await provider.script("6 times 7", [Step(plan=PLAN)], repeat_last=True)
        seen: list[Event] = []
        async for event in caller.each("stream_events", run.run_id):
            seen.append(event)
            if event.seq == 1:
                first.child.kill()
                proxy.lead_to(address_of(second))
        later = [
            event.seq
            async for event in caller.each("stream_events", run.run_id, after=len(seen) - 1)
        ]
        nothing = [event async for event in caller.each("stream_events", run.run_id, after=999)]

    require_whole(seen)
    assert (later, nothing) == ([len(seen)], [])


async def test_a_service_that_stays_away_ends_a_stream(
    callers: Callers, service: ServiceProcess, provider: FakeProvider
) -> None:
    """The stream ends after the timeout of the caller."""
    await provider.script("6 times 7", [Step(hang=True)], repeat_last=True)
    async with proxied(service) as (proxy, url):
        caller = callers.of(url, retry=RetryPolicy(pause_factor=0.01, reconnect_seconds=0.2))
        run = await caller.do("run_case", QUESTION)
        events = caller.each("stream_events", run.run_id)
        seen = await anext(events)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ServiceUnreachableError, match="No answer from"):
            await everything(events)
        await callers.of(service.url).do("cancel_run", run.run_id)

    assert proxy.counts.refused > 1
    assert seen.seq == 1
