"""Approvals of calls in the answers of threads."""

from pathlib import Path

import pytest

from tests.support.approvals import Settings, decide, open_approvals, serving
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.noting_tool import noted
from tests.support.service import model_settings
from tests.support.threads import ThreadClient

pytestmark = pytest.mark.usefixtures("sound_events")

NOTE_IT = {"id": "c1", "name": "note", "arguments": '{"text": "hello"}'}


@pytest.fixture
def settings(settings: Settings, provider: FakeProvider) -> Settings:
    """Add the model to the settings of a service with the tool ``note``."""
    return {**settings, **model_settings(provider.openai_url)}


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
