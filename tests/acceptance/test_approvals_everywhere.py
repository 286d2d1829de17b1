"""Approvals wherever runs call tools: in threads, in cases, of MCP servers, under limits."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.approvals import (
    People,
    Settings,
    decide,
    finished,
    graph_run,
    note,
    open_approvals,
    people,
)
from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import tool_step
from tests.support.graph_invariants import violations
from tests.support.mcp_servers import hostile_settings, mcp_settings
from tests.support.noting_tool import NOTES, noted
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import open_oracle
from tests.support.threads import ThreadClient, link

NOTE_IT = {"id": "c1", "name": "note", "arguments": '{"text": "hello"}'}

DEADLINE_PASSES = """
UPDATE runs SET deadline = now(), queued_at = now(),
    request = jsonb_set(request, '{deadline}', to_jsonb(now()))
WHERE run_id = 'late'
"""


@pytest.fixture(autouse=True)
def _sound_events(database_url: str) -> Iterator[None]:
    yield
    require_sound_events(database_url)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def settings(notes: Path, provider: FakeProvider) -> Settings:
    plugins = {"TOOLS_PLUGINS": '["tests.support.noting_tool:NotingTool"]', NOTES: str(notes)}
    return plugins | model_settings(provider.openai_url)


@asynccontextmanager
async def serving(
    database_url: str, settings: Settings, **more: str
) -> AsyncIterator[tuple[ServiceProcess, People]]:
    async with (
        ServiceProcess(database_url, settings=settings | more) as service,
        people(service) as client,
    ):
        yield service, client


def plan(expression: str) -> Step:
    return Step(plan={"actions": [{"tool": "calculator", "args": {"expression": expression}}]})


@pytest.mark.req("004/cancel-early", "004/chat")
async def test_a_thread_is_stopped_while_its_answer_waits_for_a_person(
    database_url: str, settings: Settings, notes: Path, provider: FakeProvider
) -> None:
    """The answer ends at once, no tool runs, a late decision is refused, the thread continues."""
    steps = [Step(tool_calls=[NOTE_IT]), Step(text="Never mind, then.")]
    await provider.script("(stopped)", steps)
    agent = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["note"]}
    async with (
        serving(database_url, settings) as (service, client),
        service.http() as http,
    ):
        thread = await ThreadClient.begin(http, "stopped", agent=agent)
        turn = await thread.post(content="Note hello (stopped)")
        run_id, answer = turn["run"]["run_id"], turn["assistant"]["message_id"]
        (approval,) = await open_approvals(client, run_id)
        shown = (await thread.messages())[-1]
        busy = await thread.send(content="And?")
        stopped = (await http.post(f"{thread.path}/cancel", json={"reason": "enough"})).json()
        run = await client.get_run(run_id)
        ended = (await thread.messages())[-1]
        late = await decide(client, approval)
        left = (await client.get("/approvals")).json()["approvals"]
        again = await thread.answer(f"{answer}/retry")

    assert (shown["status"], busy.status_code) == ("waiting", 409)
    assert (ended["status"], ended["incomplete"]) == ("cancelled", "cancelled")
    assert [(one["run_id"], one["status"]) for one in stopped["runs"]] == [(run_id, "cancelled")]
    assert (run["status"], run["cancel"]["reason"]) == ("cancelled", "enough")
    assert (late.status_code, left, noted(notes)) == (409, [], [])
    assert again["run"]["result"]["outputs"]["agent"]["default"] == "Never mind, then."


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_deadline_halts_a_run_that_waits_and_its_seconds_stand_still(
    database_url: str, settings: Settings, notes: Path
) -> None:
    """One run completes without counting its waiting time; the other waits until its deadline."""
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    async with (
        serving(database_url, settings) as (_, client),
        open_oracle(database_url) as oracle,
    ):
        await client.post_run(graph_run("patient", note("write", "hello")))
        (approval,) = await open_approvals(client, "patient")
        await client.post_run(graph_run("late", note("write", "never"), deadline=later))
        (missed,) = await open_approvals(client, "late")
        await oracle.rows(DEADLINE_PASSES)
        late = await finished(client, "late")
        answers = [await decide(client, missed), await decide(client, approval)]
        run = await finished(client, "patient")

    assert (late["status"], late["stop"]["kind"]) == ("halted", "deadline")
    assert [each.status_code for each in answers] == [409, 202]
    waited = _moment(late["finished_at"]) - _moment(approval["requested_at"])
    whole = _moment(run["finished_at"]) - _moment(run["started_at"])
    assert run["status"] == "completed", run
    assert timedelta(seconds=run["usage"]["seconds"]) < whole - waited / 2
    assert noted(notes) == ["patient: hello"]


async def test_a_case_waits_for_its_tool_and_answers_with_what_was_approved(
    database_url: str, settings: Settings, provider: FakeProvider
) -> None:
    """The result survives the kill of the process, and the planner is asked once."""
    await provider.script("6 times 7", [plan("6 * 7")])
    needs = {"TOOLS_REQUIRES_APPROVAL": '["calculator"]'}
    case = {"kind": "case", "input": "What is 6 times 7?"}
    async with serving(database_url, settings, **needs) as (first, client):
        await client.post_run({**case, "run_id": "case"})
        (approval,) = await open_approvals(client, "case")
        first.child.kill()
    async with serving(database_url, settings, **needs) as (_, client):
        answer = await decide(client, approval)
        run = await finished(client, "case")
        nodes = await client.nodes("case")

    assert (approval["subject"], approval["arguments"]) == ("calculator", {"expression": "6 * 7"})
    assert answer.status_code == 202
    assert (run["status"], run["result"]["answer"], run["result"]["verified"]) == (
        "completed",
        "42",
        True,
    ), run
    assert (run["usage"]["tool_calls"], len(await provider.arrivals("6 times 7"))) == (1, 1)
    calls = [node for node in nodes if node["kind"] == "tool" and node["status"] == "success"]
    assert [node["name"] for node in calls] == ["calculator"]


async def test_a_case_whose_tool_is_refused_fails_without_the_call(
    database_url: str, settings: Settings, provider: FakeProvider
) -> None:
    """Each plan needs a new approval; the reason is in the evidence for the next plan."""
    await provider.script("6 times 7", [plan("6 * 7")], repeat_last=True)
    needs = {"TOOLS_REQUIRES_APPROVAL": '["calculator"]'}
    case = {"kind": "case", "input": "What is 6 times 7?", "mode": "fallback_only"}
    async with serving(database_url, settings, **needs) as (_, client):
        await client.post_run({**case, "run_id": "case"})
        async with asyncio.timeout(150):
            while (run := await client.get_run("case"))["finished_at"] is None:
                asked = (await client.get("/runs/case/approvals")).json()["approvals"]
                for each in asked:
                    if each["open"]:
                        await decide(client, each, "refuse", reason="not on a Sunday")
                await asyncio.sleep(0.02)
        nodes = await client.nodes("case")

    assert {each["arguments"]["expression"] for each in asked} == {"6 * 7"}
    assert run["finish_reason"] in ("big_fail", "budget"), run
    assert run["usage"].get("tool_calls", 0) == 0
    assert [node for node in nodes if node["kind"] == "tool" and node["status"] == "success"] == []
    plans = await provider.arrivals("6 times 7", bodies=True)
    assert len(plans) >= len(asked) >= 2
    assert "not on a Sunday" in json.dumps(plans[1].body)


async def test_a_tool_of_a_server_is_called_once_after_its_approval(
    database_url: str, settings: Settings, tmp_path: Path
) -> None:
    """Any process can accept the decision, and the server gets no call before it."""
    log = tmp_path / "log"
    needs = mcp_settings({"h": hostile_settings(log)}, TOOLS_REQUIRES_APPROVAL='["h.*"]')
    async with serving(database_url, settings, **needs) as (first, client):
        for run_id in ("yes", "no", "changed"):
            steps = graph_run(run_id, tool_step("e", "h.echo", text=run_id))
            await client.post_run(steps)
        asked = {each: (await open_approvals(client, each))[0] for each in ("yes", "no", "changed")}
        assert "call echo" not in log.read_text()
        first.child.kill()
    async with serving(database_url, settings, **needs) as (_, client):
        unfit = await decide(client, asked["changed"], arguments={"text": 5})
        await decide(client, asked["changed"], arguments={"text": "other"})
        await decide(client, asked["yes"])
        await decide(client, asked["no"], "refuse", reason="not on a Sunday")
        ended = {each: await finished(client, each) for each in asked}

    assert (asked["yes"]["subject"], asked["yes"]["arguments"]) == ("h.echo", {"text": "yes"})
    assert [each["field"] for each in unfit.json()["errors"]] == ["arguments.text"]
    outputs = {name: run["result"]["outputs"] for name, run in ended.items()}
    assert outputs["yes"]["e"]["default"] == {"text": "yes"}
    assert outputs["changed"]["e"]["default"] == {"text": "other"}
    assert (ended["no"]["status"], log.read_text().count("call echo")) == ("failed", 2)
    assert "not on a Sunday" in ended["no"]["stop"]["reason"]


@pytest.mark.req("001/wiring")
async def test_an_agent_goes_on_when_a_tool_of_a_toolset_is_refused(
    database_url: str, settings: Settings, provider: FakeProvider, tmp_path: Path
) -> None:
    """The tool result reports the refusal, and the next call needs its own approval."""
    calls = [
        {"id": f"c{n}", "name": "h_echo", "arguments": json.dumps({"text": text})}
        for n, text in enumerate(("one", "two"))
    ]
    steps = [*(Step(tool_calls=[call]) for call in calls), Step(text="Done.")]
    await provider.script("(toolset)", steps)
    log = tmp_path / "log"
    needs: dict[str, Any] = mcp_settings({"h": hostile_settings(log)})
    tools = {"mcp": [{"server": "h", "allow": ["echo"], "requires_approval": True}]}
    agent = {"name": "helper", "prompt": {"system": "Help."}}
    body = graph_run(
        "a",
        {"id": "tools", "type": "toolset", "data": tools},
        {"id": "agent", "type": "agent", "data": {"agent": agent}},
        edges=[link("tools", "agent")],
        inputs={"default": "Go (toolset)"},
    )
    async with serving(database_url, settings, **needs) as (_, client):
        await client.post_run(body)
        (first,) = await open_approvals(client, "a")
        await decide(client, first, "refuse", reason="not on a Sunday")
        (second,) = await open_approvals(client, "a")
        await decide(client, second)
        run = await finished(client, "a")
        snapshot = (await client.get("/runs/a/trace")).json()["snapshot"]

    assert violations(snapshot) == []  # among them: each approval is a child of its LLM call
    asked = [each for each in snapshot["nodes"].values() if each["name"] == "approval of h.echo"]
    assert {snapshot["nodes"][each["parent_id"]]["kind"] for each in asked} == {"llm"}
    assert [each["arguments"] for each in (first, second)] == [{"text": "one"}, {"text": "two"}]
    messages = run["result"]["outputs"]["agent"]["result"]["messages"]
    results = [json.loads(one["content"]) for one in messages if one["role"] == "tool"]
    assert results[0]["code"] == "approval_refused"
    assert "not on a Sunday" in json.dumps(results[0])
    assert results[1] == {"text": "two"}
    assert log.read_text().count("call echo") == 1
    assert len(await provider.arrivals("(toolset)")) == 3
