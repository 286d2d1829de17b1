"""Requests that are open while their key is revoked get no more data."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from caseworker.features.access.authentication import Authentication
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY, Tenants, open_tenants

APPROVAL = {"steps": [{"id": "s", "type": "approval", "data": {"message": "?"}}], "edges": []}
AS_OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}
RUN = {"kind": "graph", "run_id": "waiting", "graph": APPROVAL}
STREAMED = {"Accept": "text/event-stream"}
OF_MCP = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
async def tenants(database_url: str) -> AsyncIterator[Tenants]:
    """Run a service that executes runs."""
    async with open_tenants(database_url, executes=True) as tenants:
        yield tenants


async def posted(http: httpx.AsyncClient) -> httpx.Response:
    """Create the run and wait for its end."""
    return await http.post("/runs", json=RUN, headers={"Prefer": "wait=120"})


async def streamed_with_post(http: httpx.AsyncClient) -> httpx.Response:
    """Create the run and read its events."""
    return await http.post("/runs", json=RUN, headers=STREAMED)


async def streamed(http: httpx.AsyncClient) -> httpx.Response:
    """Create the run, then read its events."""
    (await http.post("/runs", json=RUN)).raise_for_status()
    return await http.get("/runs/waiting/events", headers=STREAMED)


async def in_a_thread(http: httpx.AsyncClient) -> httpx.Response:
    """Post a message to a thread and wait for the answer."""
    thread = {"thread_id": "t", "graph": APPROVAL}
    (await http.post("/threads", json=thread)).raise_for_status()
    body = {"content": "Hello", "run_id": "waiting"}
    headers = {"Prefer": "wait=120"}
    return await http.post("/threads/t/messages", json=body, headers=headers)


async def by_mcp(http: httpx.AsyncClient) -> httpx.Response:
    """Create the run, and wait for its end as a client of MCP."""
    (await http.post("/runs", json=RUN)).raise_for_status()
    params = {"name": "get_run", "arguments": {"run_id": "waiting", "wait_seconds": 120}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await http.post("/mcp", json=body, headers=OF_MCP)


async def revoked(http: httpx.AsyncClient, key_id: str) -> None:
    (await http.delete(f"/keys/{key_id}", headers=AS_OPERATOR)).raise_for_status()


async def rotated(http: httpx.AsyncClient, key_id: str) -> None:
    """Replace the key at once."""
    body = {"overlap_seconds": 0}
    path = f"/keys/{key_id}/rotate"
    (await http.post(path, json=body, headers=AS_OPERATOR)).raise_for_status()


Waits = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
Ends = Callable[[httpx.AsyncClient, str], Awaitable[None]]


@pytest.mark.parametrize("end", [revoked, rotated])
@pytest.mark.parametrize("wait", [posted, streamed_with_post, streamed, in_a_thread, by_mcp])
async def test_a_request_that_waits_gets_no_result_after_its_key_was_revoked(
    tenants: Tenants, wait: Waits, end: Ends
) -> None:
    """The run continues, and another key of the tenant reads it."""
    other = tenants.client
    body = {"name": "robot", "scopes": ["admin"], "tenant": "a"}
    key = (await other.post("/keys", json=body, headers=AS_OPERATOR)).json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        transport=other._transport, base_url="http://localhost", headers=headers
    ) as http:
        waiting = asyncio.ensure_future(wait(http))
        approval = await approval_of(tenants)
        await end(other, key.split("_")[1])
        tenants.app.state.shared.services[Authentication].forget()
        path = f"/runs/waiting/approvals/{approval}"
        decided = await tenants.ask("a", "POST", path, {"decision": "approve", "reason": "secret"})
        reply = await waiting

    run = await tenants.ask("a", "GET", "/runs/waiting")
    assert decided.is_success, decided.text
    assert "secret" not in reply.text
    assert "run.completed" not in reply.text
    assert '"completed"' not in reply.text
    assert run.status_code == 200
    if wait in (posted, in_a_thread):
        assert reply.status_code == 401, reply.text
    if wait is by_mcp:
        assert "revoked" in reply.text, reply.text


async def approval_of(tenants: Tenants) -> str:
    """Wait until the run waits for an approval; return its ID."""
    asked: list[Any] = []

    async def waits() -> bool:
        reply = await tenants.ask("a", "GET", "/runs/waiting/approvals")
        asked[:] = reply.json().get("approvals", ())
        return bool(asked)

    await eventually(waits)
    return str(asked[0]["approval_id"])
