"""Open WebUI, unmodified and in a browser, in front of two agents."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import opened_browser
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.open_webui import Chatter, open_webui
from tests.support.service import ServiceProcess, finished, model_settings

pytestmark = [pytest.mark.proof, pytest.mark.req("cw/16.openai")]

AGENTS: list[dict[str, Any]] = [
    {"name": "support", "prompt": "You are support.", "tools": ["calculator"]},
    {"name": "poet", "prompt": "You write poems."},
    {"name": "spent", "prompt": "Help.", "limits": {"budget": {"max_llm_calls": 0}}},
    {"name": "titles", "prompt": "You name chats.", "model": {"tier": "small", "stream": False}},
]
CALL = {"id": "c1", "name": "calculator", "arguments": json.dumps({"expression": "6 * 7"})}


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Return settings that send the requests for titles to an agent of their own."""
    return {**model_settings(running_provider.openai_url), "FACES_TASK_MODEL": "titles"}


@pytest.fixture
async def chatter(service: ServiceProcess, tmp_path: Path) -> AsyncIterator[Chatter]:
    """Open the front end of a service with two agents and one for titles."""
    async with service.http() as http:
        for agent in AGENTS:
            (await http.post("/agents", json={"agent": agent})).raise_for_status()
    async with (
        open_webui(f"{service.url}/v1", tmp_path) as url,
        opened_browser() as browser,
        Chatter.opened(browser, url) as opened,
    ):
        yield opened


async def runs_of(service: ServiceProcess, agent: str) -> list[dict[str, Any]]:
    """Return the runs of an agent, newest first."""
    async with service.http() as http:
        listed = await http.get("/runs", params={"agent": agent})
    return list(listed.json()["runs"])


async def test_a_person_chats_with_an_agent_and_stops_another(
    chatter: Chatter, service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The tool of the first agent is called, and its answer is streamed.

    The Stop button closes the connection to the provider. The agent `titles` writes the titles.
    """
    waits = Step(text="It is 42, as everybody knows.", after_events=2)
    await provider.script("6 times 7", [Step(tool_calls=[CALL]), waits])
    await provider.script(
        "Write an ode", [Step(text="O fjord, o rain, o fjord again.", after_events=2)]
    )
    await provider.script("### Task:", [Step(text=json.dumps({"title": "Sums"}))], repeat_last=True)

    models = await chatter.models()
    await chatter.choose("support")
    await chatter.say("What is 6 times 7?")
    await chatter.sees("It is 42, a")  # a part, while the provider waits
    await provider.release()
    await chatter.sees("It is 42, as everybody knows.")
    await chatter.sees("Sums")
    sums = await runs_of(service, "support")
    titles = await runs_of(service, "titles")

    await chatter.new_chat()
    await chatter.models()
    await chatter.choose("poet")
    await chatter.say("Write an ode.")
    await chatter.sees("O fjord, o rain")
    await chatter.stop()
    [stopped] = await provider.wait_for_arrivals(1, containing="You write poems.", ended=True)
    [ode] = await runs_of(service, "poet")
    ended = await finished(client, ode["run_id"])

    await chatter.new_chat()
    await chatter.models()
    await chatter.choose("spent")
    await chatter.say("Hello")
    await chatter.sees("LLM call limit exceeded")

    assert {"support", "poet"} <= set(models)
    assert [(run["status"], run["usage"]["tool_calls"]) for run in sums] == [("completed", 1)]
    assert titles
    assert stopped.outcome == "client_gone"
    assert (ended["status"], ended["stop"]["reason"]) == ("cancelled", "The client disconnected.")
