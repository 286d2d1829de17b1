"""Permissions of the key of a run, by the state of the run and of its attempt."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.external import Agent, start
from tests.support.external_routes import operations, tried
from tests.support.fake_provider.client import FakeProvider
from tests.support.openapi import RESERVATIONS
from tests.support.service import ServiceProcess, claude_settings, model_settings
from tests.support.tenants import OPERATOR_KEY

MESSAGES = [{"role": "user", "content": "Hello"}]
CALLS: Mapping[str, tuple[str, str, Any]] = {
    "chat": ("POST", "/openai/v1/chat/completions", {"model": "small", "messages": MESSAGES}),
    "response": ("POST", "/openai/v1/responses", {"model": "small", "input": "Hello"}),
    "message": (
        "POST",
        "/anthropic/v1/messages",
        {"model": "claude", "max_tokens": 9, "messages": MESSAGES},
    ),
    "count": (
        "POST",
        "/anthropic/v1/messages/count_tokens",
        {"model": "claude", "messages": MESSAGES},
    ),
    "reservation": (
        "POST",
        "/openai/v1/chat/completions/reserve",
        {"model": "small", "messages": MESSAGES},
    ),
    "models": ("GET", "/openai/v1/models", None),
    "tools": ("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}),
}
"""Requests to the gateway: method, path and body."""
OWN: Mapping[str, tuple[str, str, Any]] = {
    "run": ("GET", "", None),
    "trace": ("GET", "/trace", None),
    "heartbeat": ("POST", "/heartbeat", None),
    "finish": ("POST", "/finish", {"output": "other"}),
}
"""Requests about the run; the finish differs from the end of any run here."""
OWN_OPERATIONS = {
    *("POST /runs", "GET /runs/{run_id}", "GET /runs/{run_id}/trace"),
    *("POST /runs/{run_id}/heartbeat", "POST /runs/{run_id}/finish"),
    *RESERVATIONS,
    "GET /gateway/usage",  # 422: only standing keys have one
}
PUBLIC = {"GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json"}
JSON = {"Accept": "application/json"}
OF_ENDED = {
    "run": "200",
    "trace": "200",
    "heartbeat": "200",
    "child": "409 parent-ended",
    "finish": "409 external-run-ended",
}
SUPERSEDED = dict.fromkeys(
    ("run", "trace", "heartbeat", "finish", "child"), "409 attempt-superseded"
)
UNKNOWN = {
    **dict.fromkeys(CALLS, "401 invalid_api_key"),
    **dict.fromkeys(("run", "trace", "heartbeat", "finish", "child"), "401 credential-refused"),
}


@dataclass(frozen=True, kw_only=True)
class State:
    """A run in some state, and what its key may do."""

    agent: Agent
    allowed: Mapping[str, str]
    """Status and code of the response to each request."""
    others: frozenset[int] = frozenset({403})
    """Statuses of all other operations."""


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    return {
        **model_settings(running_provider.openai_url),
        **claude_settings(running_provider.url),
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }


@pytest.fixture
async def http(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    """Return an admin of a tenant."""
    async with service.http(OPERATOR_KEY) as operator:
        body = {"name": "robot", "scopes": ["admin"], "tenant": "one"}
        key = (await operator.post("/keys", json=body)).raise_for_status().json()["key"]
    async with service.http(key) as opened:
        yield opened


def code_of(reply: httpx.Response) -> str:
    """Return status and code of a response, in whatever form its errors have."""
    if reply.is_success:
        return str(reply.status_code)
    document = reply.json()
    error = document.get("error") or {}
    code = (error.get("data") or error).get("code") or document["type"].rpartition(":")[2]
    return f"{reply.status_code} {code}"


async def allowed_by(http: httpx.AsyncClient, agent: Agent) -> dict[str, str]:
    """Send each request with the key of a run; return the responses."""
    headers = {"Authorization": f"Bearer {agent.key}", "Accept": "application/json"}
    of_mcp = {"Accept": "application/json, text/event-stream"}
    sent = {name: (method, f"/gateway{path}", body) for name, (method, path, body) in CALLS.items()}
    sent["child"] = "POST", "/runs", {"kind": "external"}
    sent |= {
        name: (method, f"/runs/{agent.run_id}{path}", body)
        for name, (method, path, body) in OWN.items()
    }
    responses = {}
    for name, (method, path, body) in sent.items():
        shown = {**headers, **(of_mcp if name == "tools" else {})}
        responses[name] = code_of(await http.request(method, path, json=body, headers=shown))
    return responses


async def working(http: httpx.AsyncClient) -> State:
    agent = await start(http)
    own = {**dict.fromkeys((*CALLS, *OWN), "200"), "child": "202"}
    return State(agent=agent, allowed=own)


async def renewed(http: httpx.AsyncClient) -> State:
    """Return a run whose key was replaced before its first call."""
    headers = {"Idempotency-Key": "renewed"}
    agent = await start(http, headers=headers)
    await http.post("/runs", json={"kind": "external"}, headers=headers)
    return State(agent=agent, allowed=UNKNOWN, others=frozenset({401}))


async def superseded(http: httpx.AsyncClient) -> State:
    agent = await start(http)
    await agent.next_attempt()
    return State(agent=agent, allowed={**dict.fromkeys(CALLS, "400 superseded"), **SUPERSEDED})


async def completed(http: httpx.AsyncClient) -> State:
    agent = await start(http)
    await agent.finish({"output": "done"})
    return State(agent=agent, allowed={**dict.fromkeys(CALLS, "400 finished"), **OF_ENDED})


async def failed(http: httpx.AsyncClient) -> State:
    agent = await start(http)
    await agent.finish({"error": {"class": "ValueError", "message": "No."}})
    return State(agent=agent, allowed={**dict.fromkeys(CALLS, "400 error"), **OF_ENDED})


async def cancelled(http: httpx.AsyncClient) -> State:
    agent = await start(http)
    await http.delete(f"/runs/{agent.run_id}")
    await agent.ended()
    return State(agent=agent, allowed={**dict.fromkeys(CALLS, "400 cancelled"), **OF_ENDED})


async def halted(http: httpx.AsyncClient) -> State:
    agent = await start(http, budget={"max_llm_calls": 0})
    await agent.ask()
    await agent.ended()
    return State(agent=agent, allowed={**dict.fromkeys(CALLS, "400 budget"), **OF_ENDED})


async def superseded_and_ended(http: httpx.AsyncClient) -> State:
    agent = await start(http)
    await (await agent.next_attempt()).finish({"output": "done"})
    return State(agent=agent, allowed={**dict.fromkeys(CALLS, "400 finished"), **SUPERSEDED})


async def erased(http: httpx.AsyncClient) -> State:
    agent = await start(http)
    await agent.finish({"output": "done"})
    (await http.delete(f"/runs/{agent.run_id}/record")).raise_for_status()
    return State(agent=agent, allowed=UNKNOWN, others=frozenset({401}))


STATES = (
    *(working, renewed, superseded, completed, failed, cancelled, halted),
    *(superseded_and_ended, erased),
)


@pytest.mark.req("cw/15.create")
@pytest.mark.parametrize("state_of", STATES, ids=lambda each: str(each.__name__))
async def test_what_a_key_may_do_depends_on_its_run_and_attempt(
    http: httpx.AsyncClient, service: ServiceProcess, state_of: Any
) -> None:
    """All operations of the service are tried with the key."""
    state: State = await state_of(http)
    sibling = await start(http)
    async with service.http(state.agent.key) as keyed:
        others = {
            operation: await tried(keyed, operation, state.agent.run_id)
            for operation in await operations(http)
            if operation not in OWN_OPERATIONS and operation not in PUBLIC
        }
        of_sibling = {
            path: (await keyed.get(f"/runs/{sibling.run_id}{path}", headers=JSON)).status_code
            for path in ("", "/trace", "/events", "/artifacts")
        }
    allowed = await allowed_by(http, state.agent)

    assert allowed == state.allowed
    assert set(others.values()) == state.others, others
    assert set(of_sibling.values()) == state.others, of_sibling
    assert len(others) > 60
