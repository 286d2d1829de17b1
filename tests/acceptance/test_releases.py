"""A process ends by SIGTERM: its calls in flight end, and another process resumes its runs."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.acceptance.test_external_runs import start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.processes import run_caseworker
from tests.support.service import QUICK, ServiceProcess, finished, model_settings
from tests.support.stores import eventually, open_oracle

pytestmark = pytest.mark.req("cw/5.release")

CALCULATOR = {"id": "call_1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
AGENT = {"name": "worker", "prompt": {"system": "Use the calculator."}, "tools": ["calculator"]}
ENDING = "SELECT count(*) > 0 FROM workers WHERE drain_requested_at IS NOT NULL"


@asynccontextmanager
async def process(
    database_url: str, provider: FakeProvider, name: str, **settings: str
) -> AsyncIterator[tuple[ServiceProcess, httpx.AsyncClient]]:
    """Run a process whose grace period is longer than each call."""
    about = {**model_settings(provider.openai_url), "SHUTDOWN_GRACE_SECONDS": "60", **settings}
    async with (
        ServiceProcess(database_url, settings=about, name=name) as service,
        httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=150) as http,
    ):
        yield service, http


async def shutting_down(service: ServiceProcess, database_url: str) -> None:
    """Send SIGTERM, and wait until the process accepts no more runs."""
    service.child.signal(signal.SIGTERM)
    async with open_oracle(database_url) as oracle:
        await eventually(lambda: oracle.value(ENDING))


async def events_of(client: JsonClient, run_id: str) -> list[dict[str, Any]]:
    return [event async for event in client.events(run_id)]


async def test_a_call_in_flight_ends_and_the_next_one_is_made_by_another_process(
    database_url: str, provider: FakeProvider
) -> None:
    """No call is made twice, none is estimated, and the trace shows where the run was resumed."""
    await provider.script("MOVED", [Step(tool_calls=[CALCULATOR], hang=True), Step(text="42")])
    async with process(database_url, provider, "first") as (first, http):
        body = {"run_id": "moved", "kind": "agent", "agent": AGENT, "input": "MOVED"}
        (await http.post("/runs", json=body)).raise_for_status()
        await provider.wait_for_arrivals(1, "MOVED")
        await shutting_down(first, database_url)
        await provider.release()
        assert await first.child.wait() == 0
        made_by_first = await provider.count("MOVED")
        async with (
            process(database_url, provider, "second") as (second, _),
            second.client() as client,
        ):
            run = await finished(client, "moved")
            events = await events_of(client, "moved")

    assert (run["status"], run["attempts"]) == ("completed", 1)
    assert (made_by_first, await provider.count("MOVED")) == (1, 2)
    assert run["usage"]["llm_calls"] == 2
    assert not run["usage"].get("estimated_tokens")
    kinds = [event["type"] for event in events]
    assert kinds.count("run.resumed") == 1
    assert kinds.count("step.started") == kinds.count("step.completed") == 1
    resumed = kinds.index("run.resumed")
    names = [(event["type"], event["data"].get("kind")) for event in events[:resumed]]
    assert names.count(("call.started", "llm")) == names.count(("call.completed", "llm")) == 1
    assert ("call.started", "tool") not in names


async def test_external_calls_end_and_later_requests_go_to_the_next_owner(
    database_url: str, provider: FakeProvider
) -> None:
    """Whole and streamed calls in flight, a later call, a heartbeat and the finish."""
    text = "a long text in many parts"
    await provider.script("WHOLE", [Step(text="one", hang=True)])
    await provider.script("STREAM", [Step(text=text, after_events=2)])
    await provider.script("LATER", [Step(text="two")])
    async with (
        process(database_url, provider, "first") as (first, http),
        process(database_url, provider, "second") as (_, other),
    ):
        here = await start(http, run_id="kept")
        there = replace(here, http=other)
        whole = asyncio.create_task(here.ask("WHOLE"))
        await provider.wait_for_arrivals(1, "WHOLE")
        async with here.streamed("STREAM") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await shutting_down(first, database_url)
            beat = await other.post("/runs/kept/heartbeat")
            later = asyncio.create_task(there.ask("LATER"))
            await provider.release()
            rest = [line async for line in lines if line]
        replies = [await whole, await later]
        ended = await there.finish({"output": "done"})
        assert await first.child.wait() == 0
        run = (await there.get()).json()

    assert [each.status_code for each in replies] == [200, 200], [each.text for each in replies]
    assert [_text(each) for each in replies] == ["one", "two"]
    assert rest[-1] == "data: [DONE]"
    assert beat.json()["status"] == "running", beat.text
    assert ended.status_code == 200, ended.text
    assert (run["status"], run["attempts"], run["usage"]["llm_calls"]) == ("completed", 1, 3)
    assert [await provider.count(each) for each in ("WHOLE", "STREAM", "LATER")] == [1, 1, 1]


async def test_a_parent_is_released_after_its_children(
    database_url: str, provider: FakeProvider
) -> None:
    """The parent only waits, but its end would end the call of its child."""
    await provider.script("CHILD", [Step(text="one", hang=True), Step(text="two")])
    async with (
        process(database_url, provider, "first") as (first, http),
        process(database_url, provider, "second") as (_, other),
    ):
        parent = await start(http, run_id="parent")
        child = await start(http, run_id="child", parent={"run_id": "parent"})
        call = asyncio.create_task(child.ask("CHILD"))
        await provider.wait_for_arrivals(1, "CHILD")
        await shutting_down(first, database_url)
        await provider.release()
        replies = [await call, await replace(child, http=other).ask("CHILD")]
        ended = await replace(child, http=other).finish({"output": 1})
        ended_parent = await replace(parent, http=other).finish({"output": 1})
        assert await first.child.wait() == 0

    assert [_text(each) for each in replies] == ["one", "two"]
    assert (ended.status_code, ended_parent.status_code) == (200, 200), ended.text
    assert await provider.count("CHILD") == 2


async def test_a_drained_process_forwards_requests_to_the_next_owner(
    database_url: str, provider: FakeProvider
) -> None:
    """It stays up and answers, but owns no run; new external runs start elsewhere, too."""
    await provider.script("DRAINED", [Step(text=text) for text in ("one", "two", "three")])
    async with process(database_url, provider, "first") as (_, http):
        agent = await start(http, run_id="drained")
        first = await agent.ask("DRAINED")
        env = {**QUICK, "DATABASE_URL": database_url}
        (worker,) = json.loads(run_caseworker("workers", "--json", env=env).stdout)
        async with process(database_url, provider, "second") as (second, _):
            assert run_caseworker("drain", worker["worker_id"], env=env).returncode == 0
            async with open_oracle(database_url) as oracle:
                owner = "SELECT count(*) = 0 FROM runs WHERE worker_id = $1"
                await eventually(lambda: oracle.value(owner.replace("$1", _quoted(worker))))
            second_reply = await agent.ask("DRAINED")
            newer = await start(http, run_id="newer")
            third = await newer.ask("DRAINED")
            finished_there = await agent.finish({"output": 1})
            assert await second.child.terminate() == 0

    replies = [first, second_reply, third]
    assert [_text(each) for each in replies] == ["one", "two", "three"], replies[1].text
    assert finished_there.status_code == 200, finished_there.text


async def test_without_another_process_a_request_is_refused_at_once(
    database_url: str, provider: FakeProvider
) -> None:
    """The client may repeat it, and the run stays queued for the next process."""
    await provider.script("ALONE", [Step(text="one", hang=True)])
    async with process(database_url, provider, "only", WORKER_DRAIN_SECONDS="60") as (_, http):
        agent = await start(http, run_id="alone")
        call = asyncio.create_task(agent.ask("ALONE"))
        await provider.wait_for_arrivals(1, "ALONE")
        env = {**QUICK, "DATABASE_URL": database_url}
        (worker,) = json.loads(run_caseworker("workers", "--json", env=env).stdout)
        run_caseworker("drain", worker["worker_id"], env=env)

        async def is_refused() -> bool:
            return (await http.get("/readyz")).status_code == 503

        await eventually(is_refused)
        async with asyncio.timeout(4):
            refused = [
                await agent.ask("later"),
                await http.post("/runs", json={"kind": "external"}),
            ]
        await provider.release()
        reply = await call
        async with asyncio.timeout(4):
            refused += [await agent.ask("later"), await agent.finish({"output": 1})]
        run = (await agent.get()).json()

    assert reply.status_code == 200, reply.text
    assert [each.status_code for each in refused] == [503] * 4, [each.text for each in refused]
    assert {each.headers["retry-after"] for each in refused} == {"1"}
    assert run["status"] == "queued"


def _text(reply: httpx.Response) -> str:
    return str(reply.json()["choices"][0]["message"]["content"])


def _quoted(worker: dict[str, Any]) -> str:
    return "'" + str(worker["worker_id"]).replace("'", "''") + "'"
