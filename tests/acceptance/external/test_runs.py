"""The life of external runs: their creation and keys, heartbeats, finish and end."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.external import (
    NEW,
    OLD,
    start,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess


@pytest.mark.req("cw/15.create")
async def test_creating_a_run_returns_a_key_that_is_shown_once_and_stored_hashed(
    http: httpx.AsyncClient, service: ServiceProcess, module_database_url: str
) -> None:
    """The response has the key and the base URL; no other response and no row has the key."""
    agent = await start(http, name="Reporter", input={"topic": "rain"}, metadata={"team": "a"})
    await agent.ask()
    await agent.finish({"output": 1})
    others = [(await agent.get(part)).text for part in ("", "/trace", "/events")]
    listed = (await http.get("/runs", params={"agent": "Reporter"})).text

    named = [agent.run, *json.loads(listed)["runs"]]
    assert [run["agent"] for run in named] == [{"name": "Reporter", "version": None}] * 2
    assert agent.run["kind"] == "external"
    assert agent.run["status"] == "running"
    assert agent.run["input"] == {"topic": "rain"}
    assert agent.run["attempt"] == 1
    assert agent.key.startswith("cwr_")
    assert agent.run["access"]["openai_base_url"] == f"{service.url}/gateway/openai/v1"
    assert not [text for text in (*others, listed) if agent.key in text]
    with psycopg.connect(module_database_url) as connection:
        (stored,) = connection.execute(
            "SELECT sha256 FROM external_attempts WHERE run_id = %s", (agent.run_id,)
        ).fetchone() or (None,)
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT table_name FROM information_schema.tables"
                " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
            )
        ]
        holding = [
            name
            for name in tables
            for (found,) in connection.execute(
                f'SELECT count(*) FROM "{name}" t WHERE t::text LIKE %s',  # noqa: S608
                (f"%{agent.key}%",),
            )
            if found
        ]
    assert bytes(stored) == hashlib.sha256(agent.key.encode()).digest()
    assert "external_attempts" in tables
    assert holding == []
    assert agent.key not in service.child.stderr + service.child.stdout


async def test_the_base_urls_start_with_the_address_that_a_trusted_proxy_names(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """The client of these tests has the address of the proxy."""
    named = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "agents.example.com:8443"}
    odd = {"X-Forwarded-Proto": "file", "X-Forwarded-Host": "a/b@c"}
    found = [(await start(http, headers=each)).run["access"] for each in (named, odd)]
    assert [access["openai_base_url"] for access in found] == [
        "https://agents.example.com:8443/gateway/openai/v1",
        f"{service.url}/gateway/openai/v1",
    ]


async def test_a_finish_while_the_run_halts_waits_for_its_end(http: httpx.AsyncClient) -> None:
    """The run ends a moment after the refusal, and has ended differently."""
    agents = [await start(http, budget={"max_llm_calls": 0}) for _ in range(20)]
    for agent in agents:
        await agent.ask()
        finished = await agent.finish({"output": 1})
        assert finished.status_code == 409, finished.text
        assert finished.json()["type"].endswith("external-run-ended")


@pytest.mark.req("cw/15.stop")
async def test_a_cancel_before_the_run_exists_holds(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The run is created as cancelled, without access."""
    early = await http.delete("/runs/cancelled-early")
    posted = await http.post("/runs", json={"kind": "external", "run_id": "cancelled-early"})

    assert early.status_code == NEW
    assert posted.status_code in (OLD, NEW), posted.text
    assert posted.json()["status"] == "cancelled"
    assert posted.json()["access"] is None


@pytest.mark.req("cw/15.finish")
async def test_finishing_with_an_output_completes_the_run(http: httpx.AsyncClient) -> None:
    """The output is the result; an equal second finish changes nothing, another one is refused."""
    agent = await start(http)
    first = await agent.finish({"output": {"answer": [1, 2]}})
    run = (await agent.get()).json()

    assert first.status_code == 200, first.text
    assert first.json()["status"] == "completed"
    assert run["status"] == "completed"
    assert run["result"]["output"] == {"answer": [1, 2]}
    assert run["stop"] is None


@pytest.mark.req("cw/15.finish")
async def test_an_equal_second_finish_is_accepted_and_another_one_refused(
    http: httpx.AsyncClient,
) -> None:
    """A client may repeat its finish after a lost response."""
    done, failed = await start(http), await start(http)
    error = {"class": "ValueError", "message": "bad"}
    for agent, body in ((done, {"output": {"a": 1}}), (failed, {"error": error})):
        first = await agent.finish(body)
        same = await agent.finish(body)
        other = await agent.finish({"output": {"a": 2}})

        assert (first.status_code, same.status_code) == (200, 200), same.text
        assert same.json()["status"] == first.json()["status"]
        assert other.status_code == 409
        assert other.json()["type"].endswith("external-run-ended")


@pytest.mark.req("cw/15.finish")
async def test_finishing_with_an_error_fails_the_run(http: httpx.AsyncClient) -> None:
    """Class and message of the error are shown."""
    agent = await start(http)
    answer = await agent.finish({"error": {"class": "KeyError", "message": "No such city."}})
    run = (await agent.get()).json()

    assert answer.json()["status"] == "failed"
    assert run["status"] == "failed"
    assert run["stop"]["kind"] == "error"
    assert run["stop"]["error_class"] == "KeyError"
    assert run["stop"]["reason"] == "No such city."


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"output": None},
        {"output": 1.0},
        {"output": {"big": 2**60, "small": 1e-9, "text": "\u00e9\u2028", "list": []}},
        {"output": "the key is sk-proj-" + "a1" * 20},
        {"output": "x" * 10_000},
        {"error": {"class": "E", "message": "x" * 10_000}},
        {"error": {"class": "E", "message": "the key is sk-proj-" + "a1" * 20}},
        {"error": {"class": "my.Error\u00e9 <b>" + "c" * 180, "message": "a\nb  c "}},
        {"error": {"message": ""}},
    ],
    ids=lambda body: str(body)[:50],
)
async def test_any_output_and_error_can_be_sent_twice(
    body: dict[str, Any], http: httpx.AsyncClient
) -> None:
    """Texts that are shortened or redacted where they are stored count as equal too."""
    agent = await start(http)
    first, second = await agent.finish(body), await agent.finish(body)

    assert (first.status_code, second.status_code) == (200, 200), first.text + second.text
    assert first.json()["status"] == ("failed" if "error" in body else "completed")


@pytest.mark.req("cw/15.finish")
async def test_a_heartbeat_returns_the_status_and_what_is_left(http: httpx.AsyncClient) -> None:
    """A call, its tokens and the time are subtracted."""
    agent = await start(http, budget={"max_llm_calls": 5, "max_cost_usd": 1, "max_seconds": 600})
    before = await http.post(f"/runs/{agent.run_id}/heartbeat")
    await agent.ask()
    after = await http.post(f"/runs/{agent.run_id}/heartbeat")
    unknown = await http.post("/runs/no-such-run/heartbeat")

    assert before.status_code == 200, before.text
    assert before.json()["status"] == "running"
    assert before.json()["left"]["llm_calls"] == 5
    assert after.json()["left"]["llm_calls"] == 4
    assert 0 < float(after.json()["left"]["cost_usd"]) < 1
    assert 0 < after.json()["left"]["seconds"] < before.json()["left"]["seconds"] < 600
    assert unknown.status_code == 404


@pytest.mark.proof
@pytest.mark.req("cw/15.finish")
async def test_a_run_without_calls_and_heartbeats_fails_as_abandoned(
    http: httpx.AsyncClient,
) -> None:
    """The smallest idle time is ten seconds."""
    agent = await start(http, idle_seconds=10)
    run = await agent.ended()

    assert run["status"] == "failed"
    assert run["stop"]["kind"] == "abandoned"
    agent.require_final(await agent.ask("late"), "abandoned")


@pytest.mark.req("cw/15.create")
async def test_the_key_identifies_the_run_and_reaches_no_other(
    http: httpx.AsyncClient,
    service: ServiceProcess,
    tenant_keys: Mapping[str, str],
    provider: FakeProvider,
) -> None:
    """Two tenants use the same run ID; each call is charged to the run of its key."""
    async with service.http(tenant_keys["two"]) as second:
        mine = await start(http, run_id="shared-name")
        theirs = await start(second, run_id="shared-name")
        other = await start(http)
        await theirs.ask("CHARGED")
        await theirs.ask("CHARGED twice")
        used = [
            (await each.get()).json()["usage"].get("llm_calls", 0) for each in (mine, theirs, other)
        ]
        foreign = await second.get(f"/runs/{other.run_id}")
        foreign_finish = await second.post(f"/runs/{other.run_id}/finish", json={"output": 1})
        foreign_beat = await second.post(f"/runs/{other.run_id}/heartbeat")
        await theirs.finish({"output": "theirs"})
        left = (await mine.get()).json()["status"]
    async with service.http(mine.key) as agent:
        reached = {
            path: (await agent.request(method, path, json=body)).status_code
            for method, path, body in (
                ("GET", f"/runs/{other.run_id}", None),
                ("GET", f"/runs/{other.run_id}/trace", None),
                ("POST", f"/runs/{other.run_id}/finish", {"output": 1}),
                ("POST", f"/runs/{other.run_id}/heartbeat", None),
                ("DELETE", f"/runs/{other.run_id}", None),
                ("GET", "/runs", None),
                ("GET", "/keys", None),
                ("GET", "/usage", None),
                ("GET", "/agents", None),
            )
        }

    assert used == [0, 2, 0]
    assert [each.status_code for each in (foreign, foreign_finish, foreign_beat)] == [404] * 3
    assert left == "running"
    assert set(reached.values()) <= {401, 403, 404}, reached
    assert (await other.get()).json()["status"] == "running"


async def test_the_key_is_accepted_as_x_api_key_by_every_route_that_it_may_use(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    agent = await start(http)
    headers = {"x-api-key": agent.key}
    async with httpx.AsyncClient(
        base_url=service.url, headers=headers, trust_env=False
    ) as with_key:
        run = await with_key.get(f"/runs/{agent.run_id}")
        trace = await with_key.get(f"/runs/{agent.run_id}/trace")
        beat = await with_key.post(f"/runs/{agent.run_id}/heartbeat")
        child = await with_key.post("/runs", json={"kind": "external"})
        listed = await with_key.get("/runs")
        finished = await with_key.post(f"/runs/{agent.run_id}/finish", json={"output": 1})
        unknown = await with_key.get(f"/runs/{agent.run_id}", headers={"x-api-key": "cwr_0"})

    assert [each.status_code for each in (run, trace, beat, finished)] == [200] * 4
    assert (child.status_code, listed.status_code, unknown.status_code) == (NEW, 403, 401)


async def test_erasing_a_run_removes_its_attempts(
    http: httpx.AsyncClient, module_database_url: str
) -> None:
    """The key is unknown afterwards."""
    agent = await start(http)
    await agent.ask()
    await agent.finish({"output": 1})
    with psycopg.connect(module_database_url, autocommit=True) as connection:

        def rows() -> int:
            counted = connection.execute(
                "SELECT count(*) FROM external_attempts WHERE run_id = %s", (agent.run_id,)
            ).fetchone()
            return int((counted or (0,))[0])

        before = rows()
        erased = await http.delete(f"/runs/{agent.run_id}/record")
        after = rows()

    assert (before, after) == (1, 0)
    assert erased.status_code == 204
    assert (await agent.ask()).status_code == 401
