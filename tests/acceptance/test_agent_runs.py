"""Runs of kind agent over real sockets: registered, from files, over MCP, and resumed."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations
from tests.support.json_client import JsonClient
from tests.support.processes import ChildFailedError
from tests.support.service import ServiceProcess, finished, model_settings

CALL = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
HELPER: dict[str, Any] = {
    "name": "helper",
    "description": "Helps with sums",
    "prompt": {"system": "Help with ${topic}."},
    "inputs": {"topic": {"type": "string", "description": "With what"}},
    "tools": ["calculator"],
}


async def register(service: ServiceProcess, agent: dict[str, Any]) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        answer = await http.post("/agents", json={"agent": agent})
    assert answer.is_success, answer.text
    registered: dict[str, Any] = answer.json()
    return registered


def asked(run_id: str, **more: Any) -> dict[str, Any]:
    """Return a run of the registered helper."""
    return {
        "run_id": run_id,
        "kind": "agent",
        "agent": {"name": "helper"},
        "input": f"6 times 7? ({run_id})",
        "inputs": {"topic": "sums"},
        **more,
    }


@pytest.mark.req("003/FR1.1", "003/FR1.3", "003/FR4.1", "003/FR3.4")
async def test_a_registered_agent_is_run_and_its_answer_streams(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The result is that of the agent, and the prompt contains the inputs."""
    registered = await register(service, HELPER)
    answer = "It is 42, as everybody knows."
    await provider.script("(whole)", [Step(tool_calls=[CALL]), Step(text=answer, chunk_chars=6)])

    await client.post_run(asked("whole"))
    run = await finished(client, "whole")
    seen = [event async for event in client.events("whole")]
    snapshot = (await client.trace("whole"))["snapshot"]

    assert (run["status"], run["kind"], run["finish_reason"]) == ("completed", "agent", None)
    assert run["agent"] == {"name": "helper", "version": registered["version"]}
    result = run["result"]
    assert (result["success"], result["output"], result["terminate_reason"]) == (
        True,
        answer,
        "goal",
    )
    assert (result["turn_count"], run["usage"]["turns"]) == (2, 2)
    system, user, *_ = result["messages"]
    assert system["content"] == "Help with sums."
    assert user["content"] == "6 times 7? (whole)"
    written = [event["data"] for event in seen if event["type"] == "content_chunk"]
    assert "".join(chunk["content"] for chunk in written) == answer
    assert violations(snapshot) == []


async def test_a_caller_that_waits_gets_the_same_run_as_a_later_reader(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The process answers from memory; messages that refer to calls are complete in both."""
    await register(service, HELPER)
    await provider.script("(waited)", [Step(tool_calls=[CALL]), Step(text="It is 42. " * 20)])
    agent = {"agent": {"name": "helper"}, "inputs": {"topic": "sums"}}
    step = {"id": "help", "type": "agent", "data": {**agent, "input": "6 times 7? (waited)"}}
    bodies = {
        "waited": asked("waited", budget={"max_turns": 1}),
        "resumed": {"run_id": "resumed", "from": {"run_id": "waited"}, "budget": {"max_turns": 5}},
        "inside": {"run_id": "inside", "kind": "graph", "graph": {"steps": [step], "edges": []}},
    }

    for run_id, body in bodies.items():
        waited = await client.post_run(body, wait_seconds=60)
        read = await client.get_run(run_id)

        assert waited["finished_at"] is not None
        assert waited == read


@pytest.mark.req("003/sub", "003/FR1.1")
async def test_a_registered_agent_calls_another_one(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """An agent calls another one by name, and the run stores both."""
    await register(service, HELPER)
    chief = {"name": "chief", "prompt": {}, "tools": [{"agent": {"name": "helper"}}]}
    await register(service, chief)
    delegated = {
        "id": "d1",
        "name": "helper",
        "arguments": '{"input": "What is 6 times 7? (inner)", "topic": "sums"}',
    }
    await provider.script("(outer)", [Step(tool_calls=[delegated]), Step(text="42, says helper.")])
    await provider.script("(inner)", [Step(text="42")])

    await client.post_run(
        {"run_id": "two", "kind": "agent", "agent": {"name": "chief"}, "input": "Well? (outer)"}
    )
    run = await finished(client, "two")

    assert run["status"] == "completed", run
    assert run["result"]["output"] == "42, says helper."
    assert run["usage"]["turns"] == 3


@pytest.mark.req("003/resume")
async def test_an_agent_that_a_limit_halted_goes_on_when_it_is_raised(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """Completed calls are not repeated and cost nothing in the new run."""
    await register(service, HELPER)
    await provider.script("(limit)", [Step(tool_calls=[CALL]), Step(text="It is 42.")])
    await client.post_run(asked("limit", budget={"max_turns": 1}))
    halted = await finished(client, "limit")
    before = len(await provider.arrivals())
    assert before == halted["usage"]["turns"] == 1

    await client.post_run(
        {"run_id": "raised", "from": {"run_id": "limit"}, "budget": {"max_turns": 5}}
    )
    run = await finished(client, "raised")

    assert (halted["status"], halted["finish_reason"]) == ("halted", None)
    assert halted["result"]["terminate_reason"] == "max_turns"
    assert run["status"] == "completed", run
    assert run["agent"] == halted["agent"]
    assert (run["result"]["output"], run["result"]["terminate_reason"]) == ("It is 42.", "goal")
    assert len(await provider.arrivals()) == before + 1
    assert (run["usage"].get("tool_calls", 0), run["usage"]["llm_calls_small"]) == (0, 1)
    nodes = (await client.trace("raised"))["snapshot"]["nodes"].values()
    taken = [node["kind"] for node in nodes if "taken_over" in node["metadata"]]
    assert "tool" in taken


@pytest.mark.req("003/FR1.2", "003/FR4.2")
async def test_agents_from_files_are_there_when_the_service_answers(
    database_url: str, provider: FakeProvider, tmp_path: Path
) -> None:
    """An invalid file prevents the start with a one-line error."""
    (tmp_path / "helper.yaml").write_text("name: filed\nprompt: {system: Help.}\n")
    settings = model_settings(provider.openai_url) | {"AGENTS_FOLDER": str(tmp_path)}
    await provider.script("(filed)", [Step(text="42")])

    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.client() as client,
    ):
        await client.post_run(asked("filed", agent={"name": "filed"}, inputs=None))
        run = await finished(client, "filed")
    (tmp_path / "wrong.yaml").write_text("name: wrong\nprompt: {}\ntools: [sawdust]\n")
    with pytest.raises(ChildFailedError) as refused:
        await ServiceProcess(database_url, settings=settings).__aenter__()

    assert (run["status"], run["agent"]) == ("completed", {"name": "filed", "version": 1})
    [line] = [one for one in str(refused.value).splitlines() if "agents.folder" in one]
    assert line.startswith("agents.folder: wrong.yaml: tools.0: No permitted tool is named 'saw")
    require_sound_events(database_url)
