"""A prompt that is a text, wherever the HTTP API takes an agent."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.settings.loader import load_settings
from tests.support.configured_cases import Configured
from tests.support.fake_provider.script import Step
from tests.support.service import model_settings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("003/FR1.1")]

CLERK: dict[str, Any] = {"name": "clerk", "prompt": "You are a clerk."}
CALL = {"id": "c1", "name": "clerk", "arguments": '{"input": "Do it."}'}


@pytest_asyncio.fixture(loop_scope="module")
async def http(configured: Configured) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the API with the fake provider as the model."""
    environ = model_settings(configured.provider.openai_url)
    settings = load_settings(environ, configured.folder).settings
    process = Process(settings, configured.database_url, executes=True)
    transport = httpx.ASGITransport(build_app(process))
    async with process.opened(), httpx.AsyncClient(transport=transport) as client:
        client.base_url = httpx.URL("http://localhost")
        yield client


def _step(agent: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [{"id": "a", "type": "agent", "data": {"agent": agent}}], "edges": []}


@pytest.mark.parametrize(
    ("prepared", "run"),
    [
        ([], {"kind": "agent", "agent": CLERK}),
        ([("/agents", {"agent": CLERK})], {"kind": "agent", "agent": {"name": "clerk"}}),
        ([], {"kind": "graph", "graph": _step(CLERK)}),
        (
            [("/graphs", {"name": "desk", "graph": _step(CLERK)})],
            {"kind": "graph", "graph": {"name": "desk"}},
        ),
        (
            [],
            {"kind": "agent", "agent": {**CLERK, "name": "chief", "tools": [{"agent": CLERK}]}},
        ),
        ([("/threads", {"thread_id": "talk", "agent": CLERK})], {"thread": "talk"}),
    ],
    ids=["run", "registered", "step", "registered graph", "agent as a tool", "thread"],
)
async def test_every_door_takes_the_prompt_as_a_text(
    configured: Configured,
    http: httpx.AsyncClient,
    prepared: list[tuple[str, dict[str, Any]]],
    run: dict[str, Any],
) -> None:
    """The model gets it as the system message."""
    called = [Step(tool_calls=[CALL])] if "tools" in run.get("agent", {}) else []
    replies = [*called, Step(text="Done."), Step(text="Done.")]
    await configured.provider.script("", replies, model="fake-small")
    for path, body in prepared:
        made = await http.post(path, json=body)
        assert made.is_success, made.text

    if "thread" in run:
        path, body = "/threads/talk/messages", {"content": "Do it."}
    else:
        path, body = "/runs", {"input": "Do it.", **run}
    answer = await http.post(path, json=body, headers={"Prefer": "wait=30"})

    assert answer.is_success, answer.text
    finished = answer.json().get("run", answer.json())
    assert finished["status"] == "completed", finished
    arrivals = await configured.provider.arrivals(bodies=True)
    systems = [(one.body or {})["messages"][0] for one in arrivals]
    assert systems == [{"role": "system", "content": "You are a clerk."}] * (len(called) * 2 + 1)


async def test_a_registered_agent_is_returned_as_it_was_sent(http: httpx.AsyncClient) -> None:
    """The same text is the same version."""
    first = await http.post("/agents", json={"agent": {**CLERK, "name": "teller"}})
    again = await http.post("/agents", json={"agent": {**CLERK, "name": "teller"}})

    assert (first.status_code, again.status_code) == (201, 200)
    assert (await http.get("/agents/teller")).json()["agent"]["prompt"] == CLERK["prompt"]


@pytest.mark.req("003/FR1.2")
@pytest.mark.parametrize("prompt", [["You are a clerk."], 7, None, "For ${nobody}.", "For ${"])
async def test_a_wrong_prompt_is_refused_at_its_field(
    http: httpx.AsyncClient, prompt: object
) -> None:
    """Registering it and running it give the same error."""
    agent = {"name": "wrong", "prompt": prompt}
    refused = await http.post("/agents", json={"agent": agent})
    asked = await http.post("/runs", json={"kind": "agent", "input": "?", "agent": agent})

    for answer in (refused, asked):
        assert answer.status_code == 422
        assert [one["field"] for one in answer.json()["errors"]] == ["agent.prompt"]
