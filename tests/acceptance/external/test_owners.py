"""External runs with several processes: any of them takes a request, and the owner answers it."""

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import psycopg
import pytest
import pytest_asyncio

from caseworker.platform.http.forwarding import HEADER, _signed
from tests.support.external import QUICK_RECOVERY, Agent, start
from tests.support.external_tools import tools_of
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, http_client, model_settings

pytestmark = pytest.mark.req("cw/15.owner")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def urls(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[tuple[str, str]]:
    """Start two processes on one database."""
    settings = {**model_settings(running_provider.openai_url), **QUICK_RECOVERY}
    async with (
        ServiceProcess(module_database_url, settings=settings, name="owner") as owner,
        ServiceProcess(module_database_url, settings=settings, name="other") as other,
    ):
        yield owner.url, other.url


@pytest_asyncio.fixture
async def owner(urls: tuple[str, str], provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(urls[0]) as http:
        yield http


@pytest_asyncio.fixture
async def other(urls: tuple[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(urls[1]) as http:
        yield http


async def test_the_other_process_passes_every_request_to_the_owner(
    owner: httpx.AsyncClient, other: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Whole and streamed calls, a tool call, the heartbeat, and the end of the run."""
    await provider.script("PASSED", [Step(text="one"), Step(text="two")])
    here = await start(owner, run_id="passed", tools=["calculator"])
    there = replace(here, http=other)

    whole = await there.ask("PASSED")
    async with there.streamed("PASSED") as stream:
        parts = await stream.aread()
    async with tools_of(there) as client:
        used = await client.call_tool("calculator", {"expression": "6 * 7"})
    beat = await other.post("/runs/passed/heartbeat")
    finished = await there.finish({"output": "done"})

    assert whole.json()["choices"][0]["message"]["content"] == "one", whole.text
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert parts.rstrip().endswith(b"data: [DONE]")
    assert used.structured_content["value"] == "42"
    assert beat.json()["left"], beat.text
    assert finished.status_code == 200, finished.text
    run = (await here.get()).json()
    assert (run["status"], run["usage"]["llm_calls"]) == ("completed", 2)
    assert (await there.ask("PASSED")).json()["error"]["code"] == "finished"


async def test_a_forwarded_reply_has_the_headers_of_a_direct_one(
    owner: httpx.AsyncClient, other: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """No header is missing, and none is there twice, in whole and streamed replies and refusals."""
    here = await start(owner, run_id="headers")
    there = replace(here, http=other)

    async def replies(agent: Agent) -> list[httpx.Response]:
        async with agent.streamed("Hello") as stream:
            await stream.aread()
        return [
            await agent.ask(),
            stream,
            await agent.ask(model="unknown"),
            await agent.http.post("/runs/headers/heartbeat"),
        ]

    for direct, forwarded in zip(await replies(here), await replies(there), strict=True):
        names = [
            sorted(name.lower() for name, _ in each.headers.raw) for each in (direct, forwarded)
        ]
        assert names[0] == names[1]
        assert len(set(names[1])) == len(names[1])


@pytest.mark.req("cw/15.stop")
async def test_a_cancel_at_either_process_ends_a_forwarded_stream_with_an_error_event(
    owner: httpx.AsyncClient, other: httpx.AsyncClient, provider: FakeProvider
) -> None:
    await provider.script("STOPPED", [Step(text="a long text", after_events=2)])
    here = await start(owner, run_id="stopped")
    async with replace(here, http=other).streamed("STOPPED") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await other.delete("/runs/stopped")
        rest = [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]
    assert rest[-1]["error"]["code"] == "cancelled"


async def test_a_client_that_disconnects_from_the_other_process_leaves_its_call(
    owner: httpx.AsyncClient, other: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The call continues, so that the client's repeated request gets its reply."""
    await provider.script("LEFT", [Step(text="kept", hang=True)])
    here = await start(owner, run_id="left")
    there = replace(here, http=other)
    gone = asyncio.create_task(there.ask("LEFT"))
    await provider.wait_for_arrivals(1, "LEFT")
    gone.cancel()
    await asyncio.wait((gone,))
    again = asyncio.create_task(there.ask("LEFT", headers={"x-stainless-retry-count": "1"}))
    await there.ask("another")
    await provider.release()
    assert (await again).json()["choices"][0]["message"]["content"] == "kept"
    assert await provider.count("LEFT") == 1


async def test_the_next_request_recovers_the_run_of_a_process_that_was_killed(
    database_url: str, provider: FakeProvider
) -> None:
    """Recorded calls are not repeated, and the client needs no new key."""
    await provider.script("LOST", [Step(text=text) for text in ("one", "two", "three")])
    settings = {**model_settings(provider.openai_url), **QUICK_RECOVERY}
    async with (
        ServiceProcess(database_url, settings=settings, name="killed") as killed,
        ServiceProcess(database_url, settings=settings, name="heir") as heir,
        killed.http() as before,
        heir.http() as after,
    ):
        agent = await start(before, run_id="lost")
        await agent.ask("LOST")
        killed.child.kill()
        second = await replace(agent, http=after).ask_until_owned("LOST")
        attempt = await replace(agent, http=after).next_attempt()
        texts = [await attempt.ask("LOST") for _ in range(3)]
        run = (await attempt.get()).json()

    assert second.json()["choices"][0]["message"]["content"] == "two", second.text
    assert [each.json()["choices"][0]["message"]["content"] for each in texts] == [
        "one",
        "two",
        "three",
    ]
    assert await provider.count("LOST") == 3
    assert run["usage"]["llm_calls"] == 3


async def test_a_request_leaves_an_owner_that_hangs_and_loses_the_run(
    database_url: str, provider: FakeProvider
) -> None:
    settings = {**model_settings(provider.openai_url), **QUICK_RECOVERY}
    async with (
        ServiceProcess(database_url, settings=settings, name="frozen") as frozen,
        ServiceProcess(database_url, settings=settings, name="heir") as heir,
        frozen.http() as before,
        heir.http() as after,
    ):
        agent = await start(before, run_id="hung")
        frozen.child.freeze()
        try:
            reply = await replace(agent, http=after).ask_until_owned("HUNG")
        finally:
            frozen.child.thaw()
    assert reply.status_code == 200, reply.text


async def test_a_process_without_a_port_owns_runs_for_one_that_executes_none(
    database_url: str, provider: FakeProvider
) -> None:
    """An API process has a worker start the run, and forwards its calls, its end included."""
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(database_url, "--no-worker", settings=settings, name="api") as api,
        ServiceProcess(database_url, command="worker", settings=settings, name="worker"),
        api.http() as http,
    ):
        agent = await start(http, run_id="apart")
        assert agent.run["access"]["openai_base_url"] == f"{api.url}/gateway/openai/v1"
        assert (await agent.ask()).status_code == 200
        assert (await agent.finish({"output": 1})).status_code == 200


async def test_processes_on_other_hosts_use_the_advertised_url(
    database_url: str, provider: FakeProvider
) -> None:
    """Several processes listen on ports of their own, for forwarded requests only.

    Here the socket file is missing.
    """
    port = free_port()
    settings = {
        **model_settings(provider.openai_url),
        "SERVER_ADVERTISE_URL": f"http://127.0.0.1:{port}",
    }
    async with (
        ServiceProcess(database_url, "--no-worker", settings=settings, name="api") as api,
        ServiceProcess(database_url, command="worker", settings=settings, name="worker"),
        api.http() as http,
    ):
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "CREATE FUNCTION elsewhere() RETURNS trigger AS $$ BEGIN"
                ' NEW.address := NEW.address || \'{"host": "elsewhere"}\'; RETURN NEW;'
                " END $$ LANGUAGE plpgsql;"
                "CREATE TRIGGER elsewhere BEFORE INSERT OR UPDATE ON workers"
                " FOR EACH ROW EXECUTE FUNCTION elsewhere();"
                "UPDATE workers SET beat_at = beat_at"
            )
        agent = await start(http, run_id="far")
        assert (await agent.ask()).status_code == 200
        async with http_client(settings["SERVER_ADVERTISE_URL"]) as unsigned:
            assert (await unsigned.get("/runs")).status_code == 401
        assert (await agent.finish({"output": 1})).status_code == 200


async def test_a_forged_forwarded_request_is_refused(
    urls: tuple[str, str], module_database_url: str, owner: httpx.AsyncClient
) -> None:
    """Signed with a wrong secret, or for another method, path, body, time or client."""
    agent = await start(owner, run_id="forged")
    with psycopg.connect(module_database_url) as connection:
        rows = connection.execute("SELECT address FROM workers ORDER BY started_at").fetchall()
    secrets = [row[0]["secret"] for row in rows]
    at, body = str(int(time.time())), b'{"output": 1}'
    path, digest = "/runs/forged/finish", hashlib.sha256(body).hexdigest()
    right, near = ("POST", path, digest), "127.0.0.1"
    signed = [
        _signed("guessed", *right, near, at),
        _signed(secrets[1], *right, near, at),
        _signed(secrets[0], "GET", path, digest, near, at),
        _signed(secrets[0], "POST", "/runs/other/finish", digest, near, at),
        _signed(secrets[0], "POST", path, hashlib.sha256(b"{}").hexdigest(), near, at),
        _signed(secrets[0], *right, near, str(int(at) - 90)),
        _signed(secrets[0], *right, near, "x"),
        f"{at} {near} {digest} " + _signed(secrets[0], *right, "-", at)[-64:],
        "",
        "x",
    ]
    assert len(secrets) == 2
    for each in signed:
        headers = {HEADER: each, "content-type": "application/json"}
        reply = await owner.post(path, content=body, headers=headers)
        assert reply.status_code == 401, (each, reply.text)
    assert (await agent.get()).json()["status"] == "running"

    with_key = {HEADER: signed[0], "Authorization": f"Bearer {agent.key}"}
    call = await owner.post("/gateway/openai/v1/chat/completions", json={}, headers=with_key)
    assert call.status_code == 401


async def test_a_forwarded_request_is_not_forwarded_again(
    urls: tuple[str, str], module_database_url: str, owner: httpx.AsyncClient
) -> None:
    agent = await start(owner, run_id="away")
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        rows = connection.execute("SELECT address FROM workers ORDER BY started_at").fetchall()
    secret, at = rows[1][0]["secret"], str(int(time.time()))
    signed = _signed(
        secret, "POST", "/runs/away/heartbeat", hashlib.sha256(b"").hexdigest(), "-", at
    )
    async with http_client(urls[1]) as other:
        headers = {HEADER: signed, "Authorization": f"Bearer {agent.key}"}
        reply = await other.post("/runs/away/heartbeat", headers=headers)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1"), reply.text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
