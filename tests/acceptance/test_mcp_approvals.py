"""Approvals that the user of an MCP client decides in a form, with real processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from caseworker_client import AsyncCaseworkerClient
from mcp import Client
from mcp.types import ElicitRequestParams, ElicitResult

from tests.support.approvals import Settings
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.noting_tool import noted, noting_settings
from tests.support.service import ServiceProcess, model_settings

pytestmark = [pytest.mark.req("cw/16.mcp"), pytest.mark.usefixtures("sound_events")]

AGENT = {"name": "noter", "prompt": {"system": "Note."}, "tools": [{"tool": "note"}]}


@pytest.fixture
def settings(provider: FakeProvider, notes: Path) -> Settings:
    """Return the settings of a service with a model and the tool ``note``."""
    return model_settings(provider.openai_url) | noting_settings(notes)


def noting(*texts: str) -> Step:
    """Return the reply of a model that writes these texts."""
    calls = [
        {"id": text, "name": "note", "arguments": json.dumps({"text": text})} for text in texts
    ]
    return Step(tool_calls=calls)


async def test_a_call_goes_on_with_the_decisions_of_the_clients_user(
    database_url: str, settings: Settings, provider: FakeProvider, notes: Path
) -> None:
    """The call returns the ended run; tools are called as approved, and once."""
    steps = [noting("first"), noting("second", "third"), Step(text="Done.")]
    await provider.script("(user)", steps)
    forms: list[Any] = []
    answers = {
        "first": ElicitResult(action="accept", content={"decision": "approve"}),
        "second": ElicitResult(
            action="accept", content={"decision": "approve", "arguments.text": "changed"}
        ),
        "third": ElicitResult(action="decline"),
    }

    async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult:
        forms.append(params)
        [text] = [text for text in answers if f'"{text}"' in params.message]
        return answers[text]

    async with ServiceProcess(database_url, settings=settings) as service:
        async with AsyncCaseworkerClient(service.url) as api:
            await api.register_agent(AGENT)
        async with Client(f"{service.url}/mcp", elicitation_callback=answer) as client:
            result = await client.call_tool("noter", {"input": "Go (user)"})
        async with service.http() as http:
            runs = (await http.get("/runs")).json()["runs"]

    run: Any = result.structured_content
    assert (run["status"], run["result"]["output"]) == ("completed", "Done.")
    assert [each["run_id"] for each in runs] == [run["run_id"]]
    assert len(forms) == len(answers)
    assert sorted(noted(notes)) == [f"{run['run_id']}: changed", f"{run['run_id']}: first"]


async def test_a_client_without_forms_gets_the_run_that_waits(
    database_url: str, settings: Settings, provider: FakeProvider, notes: Path
) -> None:
    """The result names the approval, and get_run returns the end after the decision."""
    await provider.script("(api)", [noting("first"), Step(text="Done.")])
    async with ServiceProcess(database_url, settings=settings) as service:
        async with AsyncCaseworkerClient(service.url) as api:
            await api.register_agent(AGENT)
        async with Client(f"{service.url}/mcp") as client, service.http() as http:
            args = {"input": "Go (api)", "wait_seconds": 0}
            run: Any = (await client.call_tool("noter", args)).structured_content
            while run["required_action"] is None:
                args = {"run_id": run["run_id"], "wait_seconds": 0.2}
                run = (await client.call_tool("get_run", args)).structured_content
            [call] = run["required_action"]["calls"]
            path = f"/runs/{run['run_id']}/approvals/{call['call_id']}"
            assert (await http.post(path, json={"decision": "approve"})).status_code == 202
            ended: Any = await client.call_tool("get_run", {"run_id": run["run_id"]})

    assert (call["author"], call["arguments"]) == ("approver", {"text": "first"})
    assert ended.structured_content["status"] == "completed"
    assert noted(notes) == [f"{run['run_id']}: first"]
