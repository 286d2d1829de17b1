"""Calls of external runs that have ended: each one is refused with the whole reason."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.external import Agent, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.overflow_patterns import mistaken
from tests.support.service import claude_settings, model_settings
from tests.support.usage_oracle import settings_of_prices

pytestmark = pytest.mark.req("cw/15.refusals")

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/gateway/openai/v1/chat/completions"
RESPONSES = "/gateway/openai/v1/responses"
MESSAGES = "/gateway/anthropic/v1/messages"
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"model": "small", "messages": HELLO},
    RESPONSES: {"model": "small", "input": "Hello"},
    MESSAGES: {"model": "claude", "messages": HELLO, "max_tokens": 9},
    f"{MESSAGES}/count_tokens": {"model": "claude", "messages": HELLO},
    "/gateway/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
}
LIMITS: Mapping[str, Mapping[str, float]] = {
    "tokens": {"max_tokens": 1},
    "cost_usd": {"max_cost_usd": 0.0000001},
    "llm_calls": {"max_llm_calls": 0},
    "llm_calls_small": {"max_llm_calls_small": 0},
    "api_calls": {"max_api_calls": 0},
}
"""Limits that the first call exceeds, by their dimension."""


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    prices = {"price_per_million_in_usd": 1, "price_per_million_out_usd": 2}
    return {
        **model_settings(running_provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        **claude_settings(running_provider.url, **prices),
    }


async def refusals(agent: Agent) -> set[tuple[str, str]]:
    """Return code and message of the refusals of all functions, each called twice."""
    found = set[tuple[str, str]]()
    for path, body in [*BODIES.items(), (CHAT, {**BODIES[CHAT], "stream": True})] * 2:
        headers = {"Authorization": f"Bearer {agent.key}", "Accept": "application/json"}
        reply = await agent.http.post(path, json=body, headers=headers)
        assert reply.status_code == 400, (path, reply.text)
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers
        error = reply.json()["error"]
        assert error.get("type") in ("run_stopped", "billing_error", None)  # none in JSON-RPC
        found.add((error.get("data", error)["code"], error["message"]))
    return found


@pytest.mark.parametrize("dimension", LIMITS)
async def test_each_call_after_a_limit_is_refused_with_the_same_whole_reason(
    dimension: str, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The first refusal, those after the end, and the run itself give one reason."""
    agent = await start(http, budget=LIMITS[dimension])
    first = (await agent.ask()).json()["error"]["message"]
    run = await agent.ended()

    assert run["stop"]["dimension"] == dimension
    assert first == f"The run was halted: {run['stop']['reason']}"
    assert await refusals(agent) == {("budget", first)}
    assert mistaken(first) == []
    assert await provider.count("Hello") == 0


async def ended_by(agent: Agent, end: str) -> None:
    """End a run, or its attempt."""
    match end:
        case "cancelled":
            await agent.http.delete(f"/runs/{agent.run_id}", params={"reason": "enough"})
        case "finished":
            await agent.finish({"output": 1})
        case "error":
            await agent.finish({"error": {"class": "ValueError", "message": "No such city."}})
        case "superseded":
            await (await agent.next_attempt()).ask("Go on")
    if end != "superseded":
        await agent.ended()


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("cancelled", "The run was cancelled: enough"),
        ("finished", "The run has ended: completed."),
        ("error", "The run failed: No such city."),
        ("superseded", "A later attempt of the run was opened."),
    ],
)
async def test_each_call_after_the_end_of_a_run_is_refused_with_its_reason(
    end: str, message: str, http: httpx.AsyncClient
) -> None:
    """The reason of a cancel request and the error of a client are repeated."""
    agent = await start(http)
    await ended_by(agent, end)

    assert await refusals(agent) == {(end, message)}


@pytest.mark.parametrize("limit", ["deadline", "seconds"])
async def test_each_call_after_the_time_of_a_run_is_refused_with_its_reason(
    limit: str, http: httpx.AsyncClient
) -> None:
    """The time passes while the client makes no call."""
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    short = {"max_seconds": 0.5}
    agent = await (start(http, deadline=soon) if limit == "deadline" else start(http, budget=short))
    run = await agent.ended()
    code = "deadline" if limit == "deadline" else "budget"

    assert await refusals(agent) == {(code, f"The run was halted: {run['stop']['reason']}")}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("end", ["cancelled", "error", "superseded", "deadline"])
async def test_a_stream_ends_with_the_whole_reason(
    path: str, end: str, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The error event of the dialect has the message of the refusals that follow."""
    step = Step(text="a long answer " * 5, after_events=4, then="hold")
    await provider.script("Hello", [step], repeat_last=True)
    soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    agent = await (start(http, deadline=soon) if end == "deadline" else start(http))
    headers = {"Authorization": f"Bearer {agent.key}"}
    body = {**BODIES[path], "stream": True}
    async with http.stream("POST", path, json=body, headers=headers) as reply:
        parts = reply.aiter_bytes()
        received = await anext(parts)
        await ended_by(agent, end)
        received += b"".join([part async for part in parts])
    error = json.loads(received.rstrip().rsplit(b"data: ", 1)[1])["error"]

    assert {(error["code"], error["message"])} == await refusals(agent)
    assert error["type"] == ("run_stopped" if path == CHAT else "billing_error")
