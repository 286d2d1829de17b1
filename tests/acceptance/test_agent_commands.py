"""Commands that run agents and chat with them, over HTTP against a service."""

import json
from pathlib import Path
from typing import Any

import pytest
from caseworker_client import AsyncCaseworkerClient

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import caseworker
from tests.support.service import ServiceProcess

AGENT = {
    "name": "helper",
    "prompt": {"system": "Help with ${topic}."},
    "inputs": {"topic": {"type": "string"}},
}


@pytest.fixture
def at(service: ServiceProcess) -> dict[str, str]:
    """Return the environment of a caller of the service."""
    return {"CASEWORKER_URL": service.url}


async def register(service: ServiceProcess, **agent: Any) -> None:
    async with AsyncCaseworkerClient(service.url) as client:
        await client.register_agent({**AGENT, **agent})


async def test_an_agent_is_run_by_its_name_or_from_a_file(
    service: ServiceProcess, provider: FakeProvider, at: dict[str, str], tmp_path: Path
) -> None:
    """Variables and limits reach the run, and the list finds its runs."""
    await provider.script("(cli)", [Step(text="Forty-two.")], repeat_last=True)
    await register(service, name="by-name")
    await register(service, name="by-name", description="The second one.")
    file = tmp_path / "helper.yaml"
    file.write_text("name: helper\nprompt:\n  system: Help with everything.\n")
    inputs = ("--inputs", '{"topic": "sums"}')

    named = caseworker("agent", "run", "by-name", "6*7? (cli)", *inputs, "--run-id", "n", **at)
    pinned = caseworker("agent", "run", "by-name@1", "6*7? (cli)", *inputs, "--json", **at)
    inline = caseworker("agent", "run", str(file), "6*7? (cli)", "--max-turns", "3", **at)
    mine = caseworker("runs", "--agent", "by-name", "--kind", "agent", **at)
    others = caseworker("runs", "--kind", "graph", "--agent", "by-name", **at)

    assert named.stdout == "run     n\nstatus  completed\nanswer  Forty-two.\n", named.stderr
    assert json.loads(pinned.stdout)["agent"] == {"name": "by-name", "version": 1}
    assert inline.stdout.endswith("answer  Forty-two.\n"), inline.stderr
    assert len(mine.stdout.splitlines()) == 2
    assert others.stdout == ""


async def test_a_wrong_agent_is_refused_with_what_to_do(
    service: ServiceProcess, at: dict[str, str], tmp_path: Path
) -> None:
    """The command rejects a missing file, a file without an agent and an unregistered name."""
    broken, text = tmp_path / "broken.yaml", tmp_path / "text.yaml"
    broken.write_text("name: [")
    text.write_text("just a text")
    await register(service, name="needs-a-topic")

    def refused(*arguments: str) -> str:
        ended = caseworker("agent", "run", *arguments, **at)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "Traceback" not in ended.stderr
        return ended.stderr

    assert "broken.yaml cannot be read" in refused(str(broken), "?")
    assert "text.yaml does not define an agent" in refused(str(text), "?")
    assert "`caseworker agents list`" in refused("nobody", "?")
    assert "inputs.topic" in refused("needs-a-topic", "?")
    wrong = caseworker("runs", "--metadata", "ticket", **at)
    assert (wrong.returncode, wrong.stderr) == (2, "--metadata ticket: must be KEY=VALUE.\n")


async def test_runs_are_listed_by_what_their_callers_sent_along(
    service: ServiceProcess, at: dict[str, str]
) -> None:
    """If several values are given, all must match."""
    async with service.client() as client:
        for number in (1, 2):
            body = {"input": "2 + 2?", "metadata": {"team": "red", "ticket": number}}
            await client.post_run({"run_id": f"red-{number}", **body})

    both = caseworker("runs", "--metadata", "team=red", **at)
    one = caseworker("runs", "--metadata", "team=red", "--metadata", "ticket=2", **at)

    assert [line.split()[-1] for line in both.stdout.splitlines()] == ["red-2", "red-1"]
    assert [line.split()[-1] for line in one.stdout.splitlines()] == ["red-2"]


async def test_a_thread_is_begun_and_read_from_the_command_line(
    service: ServiceProcess, provider: FakeProvider, at: dict[str, str]
) -> None:
    """An agent's answer is printed as it arrives, a graph's answer at its end."""
    steps = [Step(text="It is\n42, surely.", chunk_chars=3), Step(text="Yes."), Step(status=401)]
    await provider.script("(said)", steps)
    await register(service, name="talker", inputs={}, prompt={"system": "Help."})
    graph = {
        "steps": [
            {"id": "chat", "type": "chat_start", "data": {}},
            {"id": "tool", "type": "tool", "data": TOOL},
        ],
        "edges": [{"source": "chat", "target": "tool", "data": {"channel": "flow"}}],
    }
    async with AsyncCaseworkerClient(service.url) as client:
        await client.create_thread(thread_id="sums", graph=graph)

    first = caseworker("thread", "say", "talk", "6*7? (said)", "--agent", "talker", **at)
    second = caseworker("thread", "say", "talk", "Sure?", **at)
    shown = caseworker("thread", "show", "talk", **at)
    failed = caseworker("thread", "say", "talk", "Really?", **at)
    summed = caseworker("thread", "say", "sums", "2 + 3", **at)
    nowhere = caseworker("thread", "say", "nowhere", "Hello?", **at)

    assert (first.stdout, second.stdout) == ("It is\n42, surely.\n", "Yes.\n"), first.stderr
    assert shown.stdout.startswith("user       6*7? (said)\nassistant  It is\n42, surely.\n")
    assert failed.returncode == 1
    assert "status  failed" in failed.stdout
    assert '"value":"5"' in summed.stdout
    assert (nowhere.returncode, nowhere.stdout) == (2, "")


TOOL = {"tool": "calculator", "args": {"expression": "${default}"}}
