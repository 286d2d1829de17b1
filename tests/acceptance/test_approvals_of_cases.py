"""Approvals of the tools that cases call."""

import asyncio
import json

import pytest

from tests.support.approvals import Settings, decide, finished, open_approvals, serving
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import model_settings

pytestmark = pytest.mark.usefixtures("sound_events")

CASE = {"kind": "case", "run_id": "case", "input": "What is 6 times 7?"}
PLAN = Step(plan={"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]})


@pytest.fixture
def settings(provider: FakeProvider) -> Settings:
    """Return the settings of a service whose calculator needs approvals."""
    models = model_settings(provider.openai_url)
    return {**models, "TOOLS_REQUIRES_APPROVAL": '["calculator"]'}


async def test_a_case_waits_for_its_tool_and_answers_with_what_was_approved(
    database_url: str, settings: Settings, provider: FakeProvider
) -> None:
    """The result survives the kill of the process, and the planner is asked once."""
    await provider.script("6 times 7", [PLAN])
    async with serving(database_url, settings) as (first, client):
        await client.post_run(CASE)
        (approval,) = await open_approvals(client, "case")
        first.child.kill()
    async with serving(database_url, settings) as (_, client):
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
    await provider.script("6 times 7", [PLAN], repeat_last=True)
    async with serving(database_url, settings) as (_, client):
        await client.post_run({**CASE, "mode": "fallback_only"})
        async with asyncio.timeout(150):
            while (run := await client.get_run("case"))["finished_at"] is None:
                approvals = (await client.get("/runs/case/approvals")).json()["approvals"]
                for each in approvals:
                    if each["open"]:
                        await decide(client, each, "refuse", reason="not on a Sunday")
                await asyncio.sleep(0.02)
        nodes = await client.nodes("case")

    assert {each["arguments"]["expression"] for each in approvals} == {"6 * 7"}
    assert run["finish_reason"] in ("big_fail", "budget"), run
    assert run["usage"].get("tool_calls", 0) == 0
    assert [node for node in nodes if node["kind"] == "tool" and node["status"] == "success"] == []
    plans = await provider.arrivals("6 times 7", bodies=True)
    assert len(plans) >= len(approvals) >= 2
    assert "not on a Sunday" in json.dumps(plans[1].body)
