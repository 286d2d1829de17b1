"""``caseworker exec`` while the only process of the service is away or restarts."""

import asyncio
import re
import shlex
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import ChildProcess
from tests.support.service import ServiceProcess, model_settings

pytestmark = pytest.mark.req("cw/15.exec-restart")

SECONDS: Final = (0.1, 1, 4, 0.5)
"""Duration of the agent's calls, in turn."""
AGENT: Final = """
import itertools, json, os, sys
from openai import OpenAI

client = OpenAI()
print(json.dumps({"pid": os.getpid()}), flush=True)
for number in itertools.count():
    if os.path.exists(sys.argv[1]):
        break
    text = f"CALL {number % 4}-{number}."
    messages = [{"role": "user", "content": text}]
    client.chat.completions.create(model="small", messages=messages)
    print(json.dumps({"answered": text}), flush=True)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """Return the command of an agent that works until the file at its argument exists."""
    (tmp_path / "agent.py").write_text(AGENT)
    return [sys.executable, str(tmp_path / "agent.py"), str(tmp_path / "enough")]


@pytest.fixture
async def service(database_url: str, provider: FakeProvider) -> AsyncIterator[ServiceProcess]:
    """The only process of a service, whose port stays the same."""
    settings = {
        **model_settings(provider.openai_url),
        "SERVER_PORT": str(free_port()),
        "SHUTDOWN_GRACE_SECONDS": "5",
    }
    for kind, seconds in enumerate(SECONDS):
        step = Step(delay_seconds=seconds)
        await provider.script(f"CALL {kind}-", [step], repeat_last=True)
    async with ServiceProcess(database_url, settings=settings) as running:
        yield running


def waiting(folder: Path, code: int) -> list[str]:
    """Return a command that exits with a code as soon as the file ``go`` exists in a folder."""
    steps = (
        """echo '{"ready": 1}'""",
        f"until [ -e {folder}/go ]; do sleep 0.1; done",
        """echo '{"exits": 1}'""",
        f"exit {code}",
    )
    return ["sh", "-c", "; ".join(steps)]


class Executed:
    """A command under ``caseworker exec``."""

    def __init__(self, url: str) -> None:
        self._env = {"CASEWORKER_URL": url, "NO_PROXY": "*"}
        self._opened: list[ChildProcess] = []

    def __call__(self, *arguments: str) -> ChildProcess:
        child = ChildProcess.service("exec", *arguments, env=self._env, name="exec").start()
        self._opened.append(child)
        return child

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture
def executed(service: ServiceProcess) -> Iterator[Executed]:
    """Start ``caseworker exec`` with arguments."""
    opened = Executed(service.url)
    yield opened
    opened.close()


async def run_of(service: ServiceProcess, run_id: str) -> dict[str, Any]:
    """Return a run."""
    async with service.http() as http:
        return dict((await http.get(f"/runs/{run_id}")).raise_for_status().json())


def lines_of(child: ChildProcess) -> list[list[str]]:
    """Return the lines for a shell that ``caseworker exec`` has printed, without its own name."""
    return [shlex.split(line) for line in re.findall(r"^  .* exec (--.*)", child.stderr, re.M)]


def started_again(child: ChildProcess) -> int:
    """Return how often ``caseworker exec`` has started its command again."""
    return child.stderr.count("starts the command again")


async def restarted_while_it_works(
    restarts: int, service: ServiceProcess, provider: FakeProvider, child: ChildProcess
) -> None:
    """Restart the service a number of times, each time during a new call of the agent.

    Every other time, it stays away until the agent has failed.
    """
    for number in range(restarts):
        before = await provider.count("CALL")
        await provider.count("CALL", at_least=before + 2)
        starts = started_again(child)
        await service.child.terminate()
        if number % 2 == 0:
            async with asyncio.timeout(150):
                while started_again(child) == starts:
                    assert child.exit_code is None, child.stderr
                    await asyncio.sleep(0.1)
        await service.start()
        assert child.exit_code is None, child.stderr


@pytest.mark.parametrize(
    "times", [2, pytest.param(20, marks=pytest.mark.proof)], ids=["twice", "20 times"]
)
async def test_a_command_works_through_restarts_and_makes_no_recorded_call_again(
    times: int,
    service: ServiceProcess,
    provider: FakeProvider,
    executed: Executed,
    agent: list[str],
    tmp_path: Path,
) -> None:
    """If the client library raises, the command is started again and gets the recorded replies."""
    child = executed("--run-id", "rolling", "--restarts", "3", "--", *agent)
    await restarted_while_it_works(times, service, provider, child)
    await provider.count("CALL", at_least=await provider.count("CALL") + 2)
    (tmp_path / "enough").touch()
    code = await child.wait()
    run = await run_of(service, "rolling")
    arrivals = await provider.arrivals("CALL")
    whole = Counter(each.prompt for each in arrivals if each.outcome == "answered")

    assert code == 0, child.stderr
    assert (run["status"], run["result"]["output"]) == ("completed", {"exit_code": 0})
    assert run["result"]["unused_calls"] == 0
    assert started_again(child) >= times // 2
    assert len(whole) >= 2 * times
    assert set(whole.values()) == {1}


async def test_a_command_that_fails_while_the_service_is_away_leaves_its_run_open(
    service: ServiceProcess,
    provider: FakeProvider,
    executed: Executed,
    agent: list[str],
    tmp_path: Path,
) -> None:
    """The exit code is 75, and the printed line resumes the run with its recorded replies."""
    options = ("--run-id", "open", "--max-llm-calls", "99", "--model", "*=small", "--model", "big")
    child = executed(*options, "--finish-seconds", "1", "--", *agent)
    await provider.count("CALL", at_least=2)
    await service.child.terminate()
    code = await child.wait()
    (line,) = lines_of(child)
    await service.start()
    status = (await run_of(service, "open"))["status"]
    (tmp_path / "enough").touch()
    resumed = executed(*line)
    finished = await resumed.wait()
    run = await run_of(service, "open")

    assert code == 75, child.stderr
    assert "--from open" in child.stderr
    assert status in ("running", "queued")
    assert finished == 0, resumed.stderr
    assert (run["status"], run["result"]["output"]) == ("completed", {"exit_code": 0})


async def test_a_command_that_fails_after_the_service_is_back_leaves_its_run_open(
    service: ServiceProcess, provider: FakeProvider, executed: Executed, tmp_path: Path
) -> None:
    """The heartbeats of another process show that the service was away."""
    child = executed("--run-id", "back", "--", *waiting(tmp_path, 9))
    await child.json_line("ready")
    await service.child.terminate()
    await service.start()
    (tmp_path / "go").touch()
    code = await child.wait()

    assert code == 75, child.stderr
    assert (await run_of(service, "back"))["status"] in ("running", "queued")
    assert "--run-id back" in child.stderr


async def test_a_command_that_succeeds_while_the_service_is_away_keeps_its_exit_code(
    service: ServiceProcess, executed: Executed, agent: list[str], tmp_path: Path
) -> None:
    """A warning has the line that finishes the run."""
    command = waiting(tmp_path, 0)
    child = executed("--run-id", "done", "--finish-seconds", "0", "--", *command)
    await child.json_line("ready")
    await service.child.terminate()
    (tmp_path / "go").touch()
    code = await child.wait()
    (line,) = lines_of(child)
    await service.start()
    finished = executed(*line)

    assert code == 0, child.stderr
    assert "was not finished" in child.stderr
    assert await finished.wait() == 0, finished.stderr
    run = await run_of(service, "done")
    assert (run["status"], run["result"]["output"]) == ("completed", {"exit_code": 0})


async def test_the_finish_is_repeated_until_the_service_is_back(
    service: ServiceProcess, executed: Executed, tmp_path: Path
) -> None:
    """A command that succeeds while the service is away completes its run."""
    child = executed("--run-id", "patient", "--", *waiting(tmp_path, 0))
    await child.json_line("ready")
    await service.child.terminate()
    (tmp_path / "go").touch()
    await child.json_line("exits")
    await service.start()
    code = await child.wait()

    assert code == 0, child.stderr
    assert (await run_of(service, "patient"))["status"] == "completed"


@pytest.mark.parametrize(("restarts", "started"), [(0, 1), (2, 3)])
async def test_a_command_that_fails_by_itself_is_started_again_as_often_as_allowed(
    restarts: int, started: int, service: ServiceProcess, executed: Executed, tmp_path: Path
) -> None:
    """Then its run fails, with the exit code of the last attempt."""
    fails = ["sh", "-c", f"echo x >> {tmp_path}/starts; exit 7"]
    child = executed("--run-id", "fails", "--restarts", str(restarts), "--", *fails)
    code = await child.wait()
    run = await run_of(service, "fails")

    assert code == 7
    assert (tmp_path / "starts").read_text() == "x\n" * started
    assert (run["status"], run["stop"]["reason"]) == ("failed", "The command exited with code 7.")


async def test_a_command_is_not_started_again_after_a_signal_or_a_limit(
    service: ServiceProcess, provider: FakeProvider, executed: Executed, agent: list[str]
) -> None:
    """The user ended it, or no attempt could make another call."""
    limited = executed("--run-id", "limited", "--restarts", "9", "--max-llm-calls", "1", *agent)
    halted = await limited.wait()
    ended = executed("--run-id", "ended", "--restarts", "9", *agent)
    await ended.json_line("pid")
    ended.signal(signal.SIGTERM)
    terminated = await ended.wait()

    assert (halted, terminated) == (3, 128 + signal.SIGTERM)
    assert "LLM call limit exceeded: 1 used, limit 1" in limited.stderr
    assert "--run-id ended" in ended.stderr
    assert (await run_of(service, "ended"))["status"] == "running"
