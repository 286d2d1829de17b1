"""Approvals of calls to the tools of MCP servers."""

import json
from pathlib import Path

import pytest

from tests.support.approvals import (
    Settings,
    decide,
    finished,
    graph_run,
    open_approvals,
    serving,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import tool_step
from tests.support.graph_invariants import violations
from tests.support.mcp_servers import hostile_settings, mcp_settings
from tests.support.service import model_settings
from tests.support.threads import link

pytestmark = pytest.mark.usefixtures("sound_events")


@pytest.fixture
def settings(provider: FakeProvider, log: Path) -> Settings:
    """Return the settings of a service with an MCP server ``h``."""
    return {**model_settings(provider.openai_url), **mcp_settings({"h": hostile_settings(log)})}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the file to which the MCP server writes its calls."""
    return tmp_path / "log"


def echo_calls(log: Path) -> int:
    """Return how often the tool ``echo`` was called."""
    return log.read_text().count("call echo")


async def test_a_tool_of_a_server_is_called_once_after_its_approval(
    database_url: str, settings: Settings, log: Path
) -> None:
    """Any process can accept the decision, and the server gets no call before it."""
    needs = {"TOOLS_REQUIRES_APPROVAL": '["h.*"]'}
    async with serving(database_url, settings, **needs) as (first, client):
        for run_id in ("yes", "no", "changed"):
            steps = graph_run(run_id, tool_step("e", "h.echo", text=run_id))
            await client.post_run(steps)
        approvals = {
            each: (await open_approvals(client, each))[0] for each in ("yes", "no", "changed")
        }
        assert echo_calls(log) == 0
        first.child.kill()
    async with serving(database_url, settings, **needs) as (_, client):
        unfit = await decide(client, approvals["changed"], arguments={"text": 5})
        await decide(client, approvals["changed"], arguments={"text": "other"})
        await decide(client, approvals["yes"])
        await decide(client, approvals["no"], "refuse", reason="not on a Sunday")
        ended = {each: await finished(client, each) for each in approvals}

    assert (approvals["yes"]["subject"], approvals["yes"]["arguments"]) == (
        "h.echo",
        {"text": "yes"},
    )
    assert [each["field"] for each in unfit.json()["errors"]] == ["arguments.text"]
    outputs = {name: run["result"]["outputs"] for name, run in ended.items()}
    assert outputs["yes"]["e"]["default"] == {"text": "yes"}
    assert outputs["changed"]["e"]["default"] == {"text": "other"}
    assert (ended["no"]["status"], echo_calls(log)) == ("failed", 2)
    assert "not on a Sunday" in ended["no"]["stop"]["reason"]


@pytest.mark.req("001/wiring")
async def test_an_agent_goes_on_when_a_tool_of_a_toolset_is_refused(
    database_url: str, settings: Settings, provider: FakeProvider, log: Path
) -> None:
    """The tool result reports the refusal, and the next call needs its own approval."""
    calls = [
        {"id": f"c{n}", "name": "h_echo", "arguments": json.dumps({"text": text})}
        for n, text in enumerate(("one", "two"))
    ]
    steps = [*(Step(tool_calls=[call]) for call in calls), Step(text="Done.")]
    await provider.script("(toolset)", steps)
    tools = {"mcp": [{"server": "h", "allow": ["echo"], "requires_approval": True}]}
    agent = {"name": "helper", "prompt": {"system": "Help."}}
    body = graph_run(
        "a",
        {"id": "tools", "type": "toolset", "data": tools},
        {"id": "agent", "type": "agent", "data": {"agent": agent}},
        edges=[link("tools", "agent")],
        inputs={"default": "Go (toolset)"},
    )
    async with serving(database_url, settings) as (_, client):
        await client.post_run(body)
        (first,) = await open_approvals(client, "a")
        await decide(client, first, "refuse", reason="not on a Sunday")
        (second,) = await open_approvals(client, "a")
        await decide(client, second)
        run = await finished(client, "a")
        snapshot = (await client.get("/runs/a/trace")).json()["snapshot"]

    assert violations(snapshot) == []  # among them: each approval is a child of its LLM call
    approvals = [
        each for each in snapshot["nodes"].values() if each["name"] == "approval of h.echo"
    ]
    assert {snapshot["nodes"][each["parent_id"]]["kind"] for each in approvals} == {"llm"}
    assert [each["arguments"] for each in (first, second)] == [{"text": "one"}, {"text": "two"}]
    messages = run["result"]["outputs"]["agent"]["result"]["messages"]
    results = [json.loads(one["content"]) for one in messages if one["role"] == "tool"]
    assert results[0]["code"] == "approval_refused"
    assert "not on a Sunday" in json.dumps(results[0])
    assert results[1] == {"text": "two"}
    assert echo_calls(log) == 1
    assert len(await provider.arrivals("(toolset)")) == 3
