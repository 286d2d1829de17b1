"""Commands whose run waits for an approval, or for a service that restarts."""

import re
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.noting_tool import noting_settings
from tests.support.processes import ChildProcess, caseworker
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import eventually

NOTE_IT = {"id": "c1", "name": "note", "arguments": '{"text": "hello"}'}
AGENT = {"name": "clerk", "prompt": {"system": "Help."}, "tools": ["note"]}
DECISION = re.compile(r"^  caseworker (approve \S+ \S+( --refuse)?)$", re.MULTILINE)


@pytest.fixture
def settings(provider: FakeProvider, notes: Path) -> dict[str, str]:
    return {**model_settings(provider.openai_url), **noting_settings(notes)}


@pytest.fixture
async def service(database_url: str, settings: dict[str, str]) -> AsyncIterator[ServiceProcess]:
    """Run a service with an agent whose tool needs an approval."""
    async with ServiceProcess(database_url, settings=settings) as running:
        async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
            (await http.post("/agents", json={"agent": AGENT})).raise_for_status()
            thread = {"thread_id": "talk", "agent": {"name": "clerk"}}
            (await http.post("/threads", json=thread)).raise_for_status()
        yield running


async def test_a_message_shows_how_to_decide_the_approval_that_its_answer_waits_for(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """The command keeps waiting; the decision ends the wait."""
    await provider.script("(asks)", [Step(tool_calls=[NOTE_IT]), Step(text="Noted.")])
    at = {"CASEWORKER_URL": service.url}
    sending = ChildProcess.service("threads", "send", "talk", "1 (asks)", env=at, name="send")
    with sending:

        async def shown() -> bool:
            return len(DECISION.findall(sending.stderr)) == 2

        await eventually(shown)
        assert sending.exit_code is None
        (approve, _), (refuse, _) = DECISION.findall(sending.stderr)
        decided = caseworker(*shlex.split(approve), **at)
        code = await sending.wait()

        assert "waits for an approval of note" in sending.stderr
        assert refuse == f"{approve} --refuse"
        assert decided.returncode == 0, decided.stderr
        assert (code, sending.stdout) == (0, "Noted.\n")


async def test_a_run_that_waits_for_its_client_shows_how_to_answer(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """Standard error has the tool, its arguments and the route for the result."""
    call = {"id": "c1", "name": "look_up", "arguments": '{"order": 7}'}
    await provider.script("(client)", [Step(tool_calls=[call])])
    lookup = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
    agent = {"name": "shop", "prompt": "You are a shop.", "tools": [{"client": lookup}]}
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        (await http.post("/agents", json={"agent": agent})).raise_for_status()
        at = {"CASEWORKER_URL": service.url}
        sent = ("agents", "run", "shop", "Where? (client)", "--wait", "1", "--run-id", "asks")
        done = caseworker(*sent, **at)
        (open_call,) = (await http.get("/runs/asks/calls")).json()["calls"]

    assert done.returncode == 1
    assert 'its client to execute look_up with {"order": 7}' in done.stderr
    assert f"POST /runs/asks/calls/{open_call['call_id']}/result" in done.stderr


async def test_a_run_that_does_not_end_in_time_shows_how_to_go_on(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """The exit code is 1, and standard error has the commands that continue."""
    await provider.script("(late)", [Step(tool_calls=[NOTE_IT])])
    at = {"CASEWORKER_URL": service.url}

    done = caseworker(
        *("agents", "run", "clerk", "1 (late)", "--wait", "1", "--run-id", "late"), **at
    )

    assert done.returncode == 1
    assert "status  waiting" in done.stdout
    assert len(DECISION.findall(done.stderr)) == 2
    assert "`caseworker watch late`" in done.stderr


async def test_a_command_waits_across_a_restart_of_the_service(
    service: ServiceProcess,
    provider: FakeProvider,
    database_url: str,
    settings: dict[str, str],
) -> None:
    """A service that ends answers its waiting requests; the command then waits for the next one."""
    await provider.script("(restart)", [Step(hang=True), Step(text="Done.")])
    port = service.url.rpartition(":")[2]
    at = {"CASEWORKER_URL": service.url}
    arguments = ("agents", "run", "clerk", "1 (restart)", "--run-id", "kept", "--wait", "150")
    with ChildProcess.service(*arguments, env=at, name="run") as running:
        await provider.wait_for_arrivals(1, "(restart)")
        service.child.signal(signal.SIGTERM)
        await service.child.wait()
        async with ServiceProcess(database_url, settings={**settings, "SERVER_PORT": port}):
            code = await running.wait()
        assert (code, running.stderr) == (0, "")
        assert running.stdout == "run     kept\nstatus  completed\nanswer  Done.\n"
