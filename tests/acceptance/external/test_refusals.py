"""Requests that the gateway refuses, each in the form of its API."""

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.external import OPENAI, Api, both, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess
from tests.support.tenants import OPERATOR_KEY

MADE_UP = {
    "of an unknown run": b"acme\nno-such-run",
    "of a run with NUL": b"acme\nx\x00",
    "of a tenant with NUL": b"a\x00\nb",
    "of no run": b"\n",
    "of too many parts": b"a\nb\nc",
    "of long names": b"x" * 5_000 + b"\n" + b"y" * 1_000,
    "of a run of somebody else": b"default\nmade-up",
}


@pytest.mark.parametrize("named", MADE_UP.values(), ids=MADE_UP)
@pytest.mark.parametrize(
    "path",
    [
        *("/gateway/openai/v1/chat/completions", "/gateway/openai/v1/responses"),
        *("/gateway/anthropic/v1/messages", "/gateway/mcp", "/runs/made-up/finish", "/runs"),
    ],
)
async def test_no_body_is_read_for_a_made_up_key(
    http: httpx.AsyncClient, service: ServiceProcess, path: str, named: bytes
) -> None:
    """The answer comes though the client announces 200 kB and sends none of them."""
    agent = await start(http)
    named = named.replace(b"made-up", agent.run_id.encode())
    path = path.replace("made-up", agent.run_id)
    key = f"cwr_{base64.urlsafe_b64encode(named).decode()}.{'0' * 96}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 200000\r\n\r\n"
    )
    address = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(head.encode())
        async with asyncio.timeout(150):
            status = await reader.readline()
    finally:
        writer.close()

    assert status.startswith(b"HTTP/1.1 401"), status


@both
async def test_an_unknown_key_is_refused_in_the_form_of_the_api(
    api: Api,
    http: httpx.AsyncClient,
    tenant_keys: Mapping[str, str],
    provider: FakeProvider,
) -> None:
    """An API key of the service is no key of a run, and neither is a changed key."""
    agent = await start(http, api=api)
    wrong = ["cwr_" + "0" * 64, agent.key[:-1] + ("0" if agent.key[-1] != "0" else "1"), "x"]
    body = api.body("UNKNOWN")
    for key in (*wrong, tenant_keys["one"], OPERATOR_KEY):
        shown = {"Authorization": f"Bearer {key}"}
        reply = await http.post(api.path, json=body, headers=shown)
        assert reply.status_code == 401, reply.text
        assert api.error_of(reply)["code"] == "invalid_api_key"
    async with httpx.AsyncClient(base_url=http.base_url, trust_env=False) as bare:
        none = await bare.post(api.path, json=body)
        shown = {"x-api-key": agent.key}
        by_header = await bare.post(api.path, json=api.body("by header"), headers=shown)

    assert none.status_code == 401
    assert by_header.status_code == 200
    assert await provider.count("UNKNOWN") == 0


@pytest.mark.parametrize(
    ("status", "headers"),
    [(400, {}), (422, {}), (429, {"retry-after": "7"}), (500, {}), (503, {"retry-after": "1"})],
)
@both
async def test_an_error_of_the_provider_is_passed_on(
    api: Api,
    status: int,
    headers: dict[str, str],
    http: httpx.AsyncClient,
    provider: FakeProvider,
) -> None:
    """Status, body and the time to wait are those of the provider's last reply."""
    body = json.dumps({"error": {"message": f"provider says {status}", "type": "x", "code": "y"}})
    step = Step(status=status, raw_body=body, headers={"x-request-id": "req-7", **headers})
    await provider.script(f"ERR{status}", [step], repeat_last=True)
    agent = await start(http, api=api)
    reply = await agent.ask(f"ERR{status}")
    run = (await agent.get()).json()

    assert (reply.status_code, reply.text) == (status, body)
    assert reply.headers["x-request-id"] == "req-7"
    assert reply.headers.get("retry-after") == headers.get("retry-after")
    assert run["status"] == "running"


@both
async def test_errors_about_the_providers_key_do_not_look_like_errors_of_the_clients_key(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The client cannot correct them, and does not repeat the call."""
    await provider.script("NOKEY", [Step(status=401, text="sk-secret")], repeat_last=True)
    agent = await start(http, api=api)
    reply = await agent.ask("NOKEY")

    assert reply.status_code == 502
    assert reply.headers["x-should-retry"] == "false"
    assert api.error_of(reply)["code"] == "provider_failed"
    assert "sk-secret" not in reply.text


async def test_fields_that_the_gateway_does_not_offer_are_refused_in_the_form_of_the_api(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Other unknown fields reach the provider."""
    agent = await start(http)
    for name in ("background", "previous_response_id", "conversation"):
        sent: dict[str, Any] = {name: "x"}
        reply = await agent.ask("FIELDS", **sent)
        assert reply.status_code == 400, reply.text
        assert name in OPENAI.error_of(reply)["message"]
    await agent.ask("FIELDS", some_new_field={"a": 1})
    (arrival,) = await provider.arrivals("FIELDS", bodies=True)

    assert arrival.body is not None
    assert arrival.body["some_new_field"] == {"a": 1}


@pytest.mark.parametrize("content", [b"[1]", b"{", b"", b"\xff\xfe", b'{"model": "small"}'])
@both
async def test_a_malformed_body_is_refused_in_the_form_of_the_api(
    api: Api, content: bytes, http: httpx.AsyncClient
) -> None:
    """The status is one that no client repeats."""
    agent = await start(http)
    headers = {"Authorization": f"Bearer {agent.key}", "Content-Type": "application/json"}
    reply = await http.post(api.path, content=content, headers=headers)

    assert reply.status_code == 400, reply.text
    assert reply.headers["x-should-retry"] == "false"
    api.error_of(reply)


@pytest.mark.parametrize(
    "field",
    [
        {"start_at": "2030-01-01T00:00:00Z"},
        {"priority": 1},
        {"concurrency_key": "k"},
        {"idle_seconds": 9},
        {"idle_seconds": 86_401},
        {"graph": {"steps": [], "edges": []}},
        {"models": []},
    ],
    ids=lambda field: next(iter(field)),
)
async def test_fields_of_other_kinds_are_refused(
    field: dict[str, Any], http: httpx.AsyncClient
) -> None:
    """An external run starts at once or is refused, so it cannot be queued."""
    posted = await http.post("/runs", json={"kind": "external", **field})

    assert posted.status_code == 422, posted.text
    assert posted.json()["errors"][0]["field"].startswith(next(iter(field)))


async def test_a_run_of_another_kind_is_not_finished_by_a_client(http: httpx.AsyncClient) -> None:
    """The service itself ends it, and it needs no heartbeat."""
    step = {
        "id": "sum",
        "type": "tool",
        "data": {"tool": "calculator", "args": {"expression": "1"}},
    }
    body = {"kind": "graph", "run_id": "graph-run", "graph": {"steps": [step], "edges": []}}
    (await http.post("/runs", json=body)).raise_for_status()
    finished = await http.post("/runs/graph-run/finish", json={"output": 1})
    kept = await http.post("/runs/graph-run/heartbeat")

    assert (finished.status_code, kept.status_code) == (422, 422)


async def test_schedules_and_threads_refuse_the_kind(http: httpx.AsyncClient) -> None:
    """They start runs later, when no agent is there to use them."""
    schedule = {"cron": "0 9 * * *", "run": {"kind": "external"}}
    scheduled = await http.put("/schedules/outside", json=schedule)
    thread = await http.post("/threads", json={"kind": "external"})

    assert scheduled.status_code == 422, scheduled.text
    assert thread.status_code == 422, thread.text
