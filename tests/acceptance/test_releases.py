"""A process ends by SIGTERM: its calls in flight end, and another process resumes its runs."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from caseworker.platform.postgres.connections import driver_url
from tests.support.external import ANTHROPIC, Agent, start
from tests.support.external_tools import Notes, code_of, tools_of
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.mcp_servers import GENERATIONS
from tests.support.noting_tool import HELD
from tests.support.processes import run_caseworker
from tests.support.service import QUICK, ServiceProcess, finished, model_settings
from tests.support.stores import eventually, open_oracle

pytestmark = pytest.mark.req("cw/5.release")

CALCULATOR = {"id": "call_1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
AGENT = {"name": "worker", "prompt": {"system": "Use the calculator."}, "tools": ["calculator"]}
OWNED = """
SELECT count(*) > 0 FROM runs JOIN workers USING (worker_id) WHERE drain_requested_at IS NULL
"""
BLOCKED = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
ENDING = "SELECT count(*) > 0 FROM workers WHERE drain_requested_at IS NOT NULL"


@asynccontextmanager
async def process(
    database_url: str, provider: FakeProvider, name: str, **settings: str
) -> AsyncIterator[tuple[ServiceProcess, httpx.AsyncClient]]:
    """Run a process whose grace period is longer than each call."""
    about = {**model_settings(provider.openai_url), "SHUTDOWN_GRACE_SECONDS": "60", **settings}
    async with (
        ServiceProcess(database_url, settings=about, name=name) as service,
        service.http() as http,
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


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_tool_call_that_waits_is_answered_by_the_next_owner(
    database_url: str, provider: FakeProvider, tmp_path: Path, generation: str
) -> None:
    """The client sends one request, and the approval keeps its ID."""
    notes, reported = Notes(tmp_path / "notes"), asyncio.Event()

    async def moved(progress: float, total: float | None, message: str | None) -> None:
        reported.set()

    async with (
        process(database_url, provider, "first", **notes.settings) as (first, http),
        process(database_url, provider, "second", **notes.settings) as (_, other),
    ):
        agent = await start(http, run_id="asks", tools=["note"])
        async with tools_of(agent, generation) as client:
            await client.list_tools()  # otherwise it does so after its call
            args = {"text": "approved"}
            asked = asyncio.create_task(client.call_tool("note", args, progress_callback=moved))
            (approval,) = await approvals_of(agent)
            await shutting_down(first, database_url)
            async with open_oracle(database_url) as oracle:
                await eventually(lambda: oracle.value(OWNED))
            reported.clear()
            await reported.wait()
            assert await approvals_of(replace(agent, http=other)) == [approval]
            path = f"/runs/asks/approvals/{approval}"
            await other.post(path, json={"decision": "approve"})
            result = await asked
        run = (await replace(agent, http=other).get()).json()
        assert await first.child.wait() == 0

    assert result.structured_content == {"noted": "approved"}
    assert notes.of(agent) == ["approved"]
    assert (run["status"], run["attempts"], run["usage"]["tool_calls"]) == ("running", 1, 1)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_tool_call_in_flight_ends_before_its_process(
    database_url: str, provider: FakeProvider, tmp_path: Path, generation: str
) -> None:
    """The progress that it reports after the signal shows that its reply is not cut."""
    notes, reported = Notes(tmp_path / "notes"), asyncio.Event()

    async def moved(progress: float, total: float | None, message: str | None) -> None:
        reported.set()

    async with process(database_url, provider, "only", **notes.settings) as (only, http):
        agent = await start(http, run_id="works", tools=["jot"])
        async with tools_of(agent, generation) as client:
            await client.list_tools()  # otherwise it does so after its call
            args = {"text": HELD}
            called = asyncio.create_task(client.call_tool("jot", args, progress_callback=moved))
            await notes.wait_for(agent, HELD)
            await shutting_down(only, database_url)
            reported.clear()
            await reported.wait()
            notes.release()
            result = await called
        assert await only.child.wait() == 0

    assert result.structured_content == {"noted": HELD}


async def test_a_tool_call_that_no_process_can_answer_is_refused(
    database_url: str, provider: FakeProvider, tmp_path: Path
) -> None:
    """The error has the code of the other refusals, so that the client may call again."""
    notes = Notes(tmp_path / "notes")
    async with process(database_url, provider, "only", **notes.settings) as (only, http):
        agent = await start(http, run_id="alone", tools=["note"])
        async with tools_of(agent) as client:
            asked = asyncio.create_task(client.call_tool("note", {"text": "later"}))
            await approvals_of(agent)
            only.child.signal(signal.SIGTERM)
            code = await code_of(asked)
        assert await only.child.wait() == 0

    assert code == "external-run-elsewhere"
    assert notes.of(agent) == []


async def test_requests_that_the_grace_period_cuts_may_be_repeated(
    database_url: str, provider: FakeProvider
) -> None:
    """A model call and a count of tokens; the next owner answers the repetitions."""
    claude = {"provider": "anthropic", "base_url": provider.url, "model": "fake", "api_key": "sk"}
    settings = {"MODELS_NAMED": json.dumps({"claude": claude}), "SHUTDOWN_GRACE_SECONDS": "1"}
    marks = ("CALLED", "COUNTED")
    for mark in marks:
        await provider.script(mark, [Step(hang=True), Step(text="one")])
    async with (
        process(database_url, provider, "first", **settings) as (first, http),
        process(database_url, provider, "second", **settings) as (_, other),
    ):
        agent = await start(http, api=ANTHROPIC, run_id="cut", models={"*": "claude"})
        body = ANTHROPIC.body("COUNTED")
        body.pop("max_tokens")
        headers, path = {"x-api-key": agent.key}, f"{ANTHROPIC.path}/count_tokens"

        def requests(to: httpx.AsyncClient) -> list[asyncio.Task[httpx.Response]]:
            return [
                asyncio.create_task(replace(agent, http=to).ask("CALLED")),
                asyncio.create_task(to.post(path, json=body, headers=headers)),
            ]

        sent = requests(http)
        for mark in marks:
            await provider.wait_for_arrivals(1, mark)
        first.child.signal(signal.SIGTERM)
        refused = [await each for each in sent]
        replies = [await each for each in requests(other)]
        run = (await replace(agent, http=other).get()).json()
        assert await first.child.wait() == 0

    assert [each.status_code for each in refused] == [503, 503], [each.text for each in refused]
    assert {each.headers["retry-after"] for each in refused} == {"1"}
    assert [each.status_code for each in replies] == [200, 200], [each.text for each in replies]
    assert await provider.count("CALLED") == 2
    assert (run["status"], run["attempts"]) == ("running", 1)


async def test_a_child_that_starts_at_the_release_is_recorded_by_the_next_owner(
    database_url: str, provider: FakeProvider
) -> None:
    """It is created once, although its client sends no ID, and shares the budget of its parent."""
    async with (
        process(database_url, provider, "first") as (first, http),
        process(database_url, provider, "second") as (_, other),
        await psycopg.AsyncConnection.connect(driver_url(database_url)) as locking,
    ):
        parent = await start(http, run_id="above")
        await locking.execute("LOCK TABLE runs IN SHARE MODE")  # no run can be created
        body = {"kind": "external", "parent": {"run_id": "above"}}
        created = asyncio.create_task(http.post("/runs", json=body))
        async with open_oracle(database_url) as oracle:
            await eventually(lambda: oracle.value(BLOCKED))
            await shutting_down(first, database_url)
        await locking.rollback()
        child = Agent(http=other, run=(await created).raise_for_status().json())
        reply = await child.ask()
        runs = (await other.get("/runs")).json()["runs"]
        nodes = (await replace(parent, http=other).get("/trace")).json()["snapshot"]["nodes"]
        assert await first.child.wait() == 0

    recorded = [node["metadata"].get("child_run_id") for node in nodes.values()]
    assert reply.status_code == 200, reply.text
    assert {each["run_id"] for each in runs} == {"above", child.run_id}
    assert recorded.count(child.run_id) == 1


async def test_requests_that_have_arrived_at_the_signal_are_answered(
    database_url: str, provider: FakeProvider
) -> None:
    """On new connections, which the process has not accepted yet, and on open ones."""
    async with process(database_url, provider, "only") as (service, _):
        host, port = service.url.removeprefix("http://").split(":")
        request = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
        for reader, writer in opened:
            writer.write(request)
            await _head(reader)
        service.child.freeze()
        opened += [await asyncio.open_connection(host, int(port)) for _ in range(50)]
        for _, writer in opened:
            writer.write(request)
            await writer.drain()
        service.child.signal(signal.SIGTERM)
        service.child.thaw()
        heads = [await _head(reader) for reader, _ in opened]
        for _, writer in opened:
            writer.close()
        assert await service.child.wait() == 0

    assert {head.split(b"\r\n")[0] for head in heads} == {b"HTTP/1.1 200 OK"}


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


async def approvals_of(agent: Agent) -> list[str]:
    """Return the IDs of the pending approvals of a run, once there is one."""
    found: list[str] = []

    async def is_asked() -> bool:
        approvals = (await agent.get("/approvals")).json()["approvals"]
        found[:] = [each["approval_id"] for each in approvals]
        return bool(found)

    await eventually(is_asked)
    return found


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of a response with a body, and read the body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    await reader.readexactly(int(length))
    return head


def _text(reply: httpx.Response) -> str:
    return str(reply.json()["choices"][0]["message"]["content"])


def _quoted(worker: dict[str, Any]) -> str:
    return "'" + str(worker["worker_id"]).replace("'", "''") + "'"
