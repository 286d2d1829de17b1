"""``caseworker exec``: real commands with a real client library, terminals, signals and stops."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.processes import ChildProcess
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY
from tests.support.usage_oracle import settings_of_prices

AGENT = """
import json, os, signal, subprocess, sys, time
from caseworker_client import CaseworkerClient
from openai import OpenAI

client = OpenAI()

def tell(**fields):
    print(json.dumps(fields), flush=True)

def asked(text, **options):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="small", messages=messages, **options)

def wait():
    while True:
        time.sleep(0.05)  # pause() misses a signal that comes just before it

for text in sys.argv[1:]:
    match text.split(":"):
        case ["wait"]:
            tell(waits=os.getpid())
            wait()
        case ["exit", code]:
            sys.exit(int(code))
        case ["handle", code]:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(code)))
        case ["child"]:
            ignores = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 100; done"]
            child = subprocess.Popen(ignores, stdout=subprocess.PIPE)
            child.stdout.readline()
            tell(child=child.pid)
        case ["finish", text]:
            CaseworkerClient().finish_run(os.environ["CASEWORKER_RUN_ID"], {"text": text})
        case ["stream", text]:
            try:
                for part in asked(text, stream=True):
                    tell(part=part.choices[0].delta.content)
            except Exception as error:
                tell(error=str(error))
                wait()
        case _:
            tell(reply=asked(text).choices[0].message.content)
"""
TYPED = """
import signal, sys, time
counted = []
signal.signal(signal.SIGINT, lambda *_: (counted.append(1), print("interrupted", flush=True)))
signal.signal(signal.SIGTERM, lambda *_: (print("counted", len(counted), flush=True), sys.exit(5)))
print("ready", sys.stdin.isatty(), flush=True)
print("line", sys.stdin.readline().strip(), flush=True)
while True:
    time.sleep(0.05)  # pause() misses a signal that comes just before it
"""
VARIABLES = """
import json, os, sys
json.dump({name: os.environ.get(name) for name in sys.argv[1:]}, sys.stdout)
"""
OWN = ("OPENAI_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CASEWORKER_API_KEY", "ANTHROPIC_API_URL")

AT = {"CASEWORKER_API_KEY": OPERATOR_KEY, "NO_PROXY": "*"}
"""Environment of every command."""
Exec = Callable[..., ChildProcess]


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    return {
        **model_settings(running_provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }


@pytest.fixture
async def http(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with service.http(OPERATOR_KEY) as opened:
        yield opened


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """Return the command of an agent; its arguments are the steps of its work."""
    (tmp_path / "agent.py").write_text(AGENT)
    return [sys.executable, str(tmp_path / "agent.py")]


@pytest.fixture
def started(service: ServiceProcess) -> Iterator[Exec]:
    """Start ``caseworker exec`` with arguments."""
    opened: list[ChildProcess] = []

    def start(*arguments: str, url: str = service.url, **variables: str) -> ChildProcess:
        env = {**AT, "CASEWORKER_URL": url, **variables}
        opened.append(ChildProcess.service("exec", *arguments, env=env, name="exec").start())
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def replies(child: ChildProcess) -> list[str]:
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    return [line["reply"] for line in lines if "reply" in line]


async def run_of(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = (await http.get(f"/runs/{run_id}")).raise_for_status().json()
    return run


async def test_a_command_calls_models_through_the_service_until_it_exits(
    http: httpx.AsyncClient, started: Exec, agent: list[str]
) -> None:
    """The run completes with exit code 0; name, limits and models are those of the options."""
    child = started(
        *("--run-id", "whole", "--name", "reporter", "--budget-usd", "1", "--max-llm-calls", "9"),
        *("--model", "small", "--", *agent, "WHOLE"),
    )
    code = await child.wait()
    run = await run_of(http, "whole")

    assert (code, replies(child)) == (0, ["ok"]), child.stderr
    page = http.base_url.join("/ui/runs/whole")
    assert child.stderr == f"caseworker: run whole attempt 1 ({page})\n"
    assert run["agent"] == {"name": "reporter", "version": None}
    assert run["status"] == "completed"
    assert run["result"]["output"] == {"exit_code": 0}
    assert run["usage"]["llm_calls"] == 1
    assert (run["limits"]["max_cost_usd"], run["limits"]["max_llm_calls"]) == (1, 9)


async def test_the_command_gets_the_urls_and_the_key_of_its_run_and_no_other_key(
    http: httpx.AsyncClient, started: Exec, service: ServiceProcess
) -> None:
    """Names that LangChain and LiteLLM prefer are replaced too."""
    openai = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
    anthropic = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "ANTHROPIC_API_URL")
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CASEWORKER_API_KEY")
    more = ("CASEWORKER_RUN_KEY", "CASEWORKER_RUN_ID", "CASEWORKER_URL", "LANG_OF_AGENT")
    child = started(
        *("--run-id", "variables", sys.executable, "-c", VARIABLES),
        *(*openai, *anthropic, *keys, *more),
        **dict.fromkeys(OWN, OPERATOR_KEY),
        LANG_OF_AGENT="nb",
    )
    code = await child.wait()
    assert code == 0, child.stderr
    got = json.loads(child.stdout)
    key = got["CASEWORKER_RUN_KEY"]

    assert key.startswith("cwr_")
    assert got == {
        **dict.fromkeys(openai, f"{service.url}/gateway/openai/v1"),
        **dict.fromkeys(anthropic, f"{service.url}/gateway/anthropic"),
        **dict.fromkeys(keys, key),
        "CASEWORKER_RUN_KEY": key,
        "CASEWORKER_RUN_ID": "variables",
        "CASEWORKER_URL": service.url,
        "LANG_OF_AGENT": "nb",
    }


async def test_the_env_file_of_a_project_does_not_reach_the_command(
    http: httpx.AsyncClient, service: ServiceProcess, tmp_path: Path
) -> None:
    """The key in it may call the service, but its secrets stay those of the operator."""
    secrets = {
        "CASEWORKER_URL": service.url,
        "CASEWORKER_API_KEY": OPERATOR_KEY,
        "AUTH_BOOTSTRAP_KEY": "secret-of-the-operator",
        "MODELS_SMALL_API_KEY": "secret-of-the-provider",
        "DATABASE_URL": "postgresql://caseworker:secret@db.test/x",
        "LD_LIBRARY_PATH": "secret",
    }
    (tmp_path / "caseworker.yaml").touch()
    (tmp_path / ".env").write_text("\n".join(f"{k}={v}" for k, v in secrets.items()))
    variables = {k: v for k, v in os.environ.items() if k not in secrets} | {"NO_PROXY": "*"}

    done = await asyncio.to_thread(
        subprocess.run,
        [*(sys.executable, "-m", "caseworker", "exec"), sys.executable, "-c", VARIABLES, *secrets],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("CASEWORKER_URL") == service.url
    assert seen.pop("CASEWORKER_API_KEY").startswith("cwr_")
    assert set(seen.values()) == {None}


async def test_the_exit_code_and_the_streams_are_those_of_the_command(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """Standard input reaches the command, and another exit code than 0 fails the run."""
    command = (*("sh", "-c", "cat; echo oops >&2; exit 7"),)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "caseworker", "exec", "--run-id", "seven", "--", *command],
        input=b"piped",
        capture_output=True,
        env={**os.environ, **AT, "CASEWORKER_URL": service.url},
        check=False,
    )
    run = await run_of(http, "seven")

    assert (done.returncode, done.stdout) == (7, b"piped")
    assert done.stderr.endswith(b"oops\n")
    assert run["status"] == "failed"
    assert run["stop"]["error_class"] == "ExitCode"
    assert run["stop"]["reason"] == "The command exited with code 7."


async def test_a_command_that_finishes_its_run_itself_keeps_its_output(
    http: httpx.AsyncClient, started: Exec, agent: list[str]
) -> None:
    """The client library in the command gets the key of the run."""
    child = started("--run-id", "itself", *agent, "finish:It rains.")
    code = await child.wait()
    run = await run_of(http, "itself")

    assert code == 0, child.stderr
    assert (run["status"], run["result"]["output"]) == ("completed", {"text": "It rains."})


async def test_a_limit_ends_the_command_with_3_and_a_larger_one_continues_it(
    http: httpx.AsyncClient, provider: FakeProvider, started: Exec, agent: list[str]
) -> None:
    """The message names --from; the new run makes only the calls that are missing."""
    first = started("--run-id", "poor", "--max-llm-calls", "1", *agent, "POOR 1", "POOR 2")
    halted = await first.wait()
    again = started("--run-id", "poor", "--max-llm-calls", "1", *agent, "POOR 1", "POOR 2")
    refused = await again.wait()
    richer = started(
        *("--from", "poor", "--run-id", "rich", "--max-llm-calls", "9"), *agent, "POOR 1", "POOR 2"
    )
    completed = await richer.wait()

    assert (halted, replies(first)) == (3, ["ok"])
    assert "run poor halted. " in first.stderr
    assert (refused, replies(again)) == (3, [])
    assert "--from poor" in again.stderr
    assert (completed, replies(richer)) == (0, ["ok", "ok"]), richer.stderr
    assert await provider.count("POOR") == 2
    assert (await run_of(http, "rich"))["result"]["replayed_calls"] == 1


async def test_a_cancel_in_the_middle_of_a_stream_ends_the_command_and_its_descendants(
    http: httpx.AsyncClient, provider: FakeProvider, started: Exec, agent: list[str]
) -> None:
    """A command that catches the error gets SIGTERM; a child that ignores it gets SIGKILL."""
    step = Step(text="It rains in Bergen.", after_events=2, then="hold")
    await provider.script("STREAMED", [step])
    child = started("--run-id", "stopped", *agent, "child", "stream:STREAMED")
    await child.json_line("part")
    descendant = psutil.Process((await child.json_line("child"))["child"])
    await http.delete("/runs/stopped", params={"reason": "enough"})
    code = await child.wait()

    async def gone() -> bool:
        return not descendant.is_running() or descendant.status() == psutil.STATUS_ZOMBIE

    await eventually(gone)
    assert code == 4
    assert "error" in child.stdout
    assert "run stopped cancelled. enough" in child.stderr


async def test_a_killed_command_is_resumed_and_gets_the_recorded_replies(
    http: httpx.AsyncClient, provider: FakeProvider, started: Exec, agent: list[str]
) -> None:
    """The provider gets no second request; a completed run does not start the command again."""
    await provider.script("KILLED 1", [Step(text="first"), Step(text="second")])
    first = started("--run-id", "killed", *agent, "KILLED 1", "wait")
    os.kill((await first.json_line("waits"))["waits"], signal.SIGKILL)
    killed = await first.wait()
    open_ = await run_of(http, "killed")
    second = started("--run-id", "killed", *agent, "KILLED 1", "KILLED 2")
    completed = await second.wait()
    third = started("--run-id", "killed", *agent, "KILLED 1")
    repeated = await third.wait()

    assert killed == 128 + signal.SIGKILL
    assert "--run-id killed" in first.stderr
    assert open_["status"] == "running"
    assert (completed, replies(second)) == (0, ["first", "ok"]), second.stderr
    assert "attempt 2" in second.stderr
    assert await provider.count("KILLED") == 2
    assert (repeated, replies(third)) == (0, [])
    assert "has ended (completed)" in third.stderr


@pytest.mark.parametrize(
    ("before", "steps"),
    [
        ([], ["wait"]),
        pytest.param(["sh", "-c", '"$@"; true', "sh"], ["wait"], marks=pytest.mark.proof),
        pytest.param(["setsid", "--wait"], ["wait"], marks=pytest.mark.proof),
        pytest.param([], ["handle:0", "wait"], marks=pytest.mark.proof),
        pytest.param([], ["child", "wait"], marks=pytest.mark.proof),
    ],
)
async def test_a_command_ends_with_an_exec_that_is_killed(
    http: httpx.AsyncClient,
    started: Exec,
    agent: list[str],
    before: list[str],
    steps: list[str],
) -> None:
    """No process would send its heartbeats or finish its run; its descendants end too."""
    run_id = f"orphan-{len(before)}-{len(steps)}-{steps[0][:5]}"
    child = started("--run-id", run_id, "--", *before, *agent, *steps)
    waits = psutil.Process((await child.json_line("waits"))["waits"])
    tree = [*psutil.Process(child.pid).children(recursive=True)]
    assert waits in tree

    child.kill()

    async def gone() -> bool:
        return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in tree)

    await eventually(gone)
    assert (await run_of(http, run_id))["status"] == "running"


async def test_other_limits_for_the_same_run_are_refused_with_the_way_to_continue(
    http: httpx.AsyncClient, started: Exec, agent: list[str]
) -> None:
    """A run that a limit has halted is continued by another run."""
    first = started("--run-id", "limited", "--max-llm-calls", "1", *agent, "L1", "L2")
    await first.wait()
    second = started("--run-id", "limited", "--max-llm-calls", "5", *agent, "L1", "L2")
    refused = await second.wait()
    third = started("--from", "limited", "--max-llm-calls", "5", *agent, "L1", "L2")

    assert (await run_of(http, "limited"))["status"] == "halted"
    assert refused == 2
    assert "use --from limited instead of --run-id limited" in second.stderr
    assert (await third.wait(), replies(third)) == (0, ["ok", "ok"]), third.stderr


@pytest.mark.parametrize(
    ("number", "steps", "expected"),
    [
        (signal.SIGINT, ["wait"], 128 + signal.SIGINT),
        (signal.SIGTERM, ["wait"], 128 + signal.SIGTERM),
        (signal.SIGTERM, ["handle:1", "wait"], 1),
        (signal.SIGTERM, ["handle:0", "wait"], 0),
    ],
)
async def test_a_signal_reaches_the_command_and_leaves_its_run_open(
    http: httpx.AsyncClient,
    started: Exec,
    agent: list[str],
    number: signal.Signals,
    steps: list[str],
    expected: int,
) -> None:
    """A command that exits with 0 after a signal has finished its work."""
    run_id = f"signal-{number}-{expected}"
    child = started("--run-id", run_id, *agent, *steps)
    await child.json_line("waits")
    child.signal(number)
    code = await child.wait()

    assert code == expected
    status = (await run_of(http, run_id))["status"]
    assert status == ("running" if expected else "completed")
    assert (f"--run-id {run_id}" in child.stderr) == bool(expected)


async def test_a_signal_reaches_a_command_that_has_just_begun(started: Exec) -> None:
    """The command sends it to ``exec`` as its first act."""
    script = "trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.05; done"
    child = started("--run-id", "begun", "sh", "-c", script)

    assert await child.wait() == 5, child.stderr
    assert "--run-id begun" in child.stderr


async def test_a_later_attempt_ends_the_command_of_the_earlier_one(
    http: httpx.AsyncClient, started: Exec, agent: list[str]
) -> None:
    """The message gives the reason; the run belongs to the later client."""
    child = started("--run-id", "twice", *agent, "wait")
    await child.json_line("waits")
    later = await http.post("/runs", json={"kind": "external", "run_id": "twice"})
    code = await child.wait()

    assert later.json()["attempt"] == 2
    assert code == 128 + signal.SIGTERM
    assert "A later attempt was opened" in child.stderr
    assert (await run_of(http, "twice"))["status"] == "running"


async def test_a_terminal_stays_with_the_command(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """Ctrl-C reaches the command once, and the command reads from the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "caseworker", "exec", "--", sys.executable, "-c", TYPED],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, **AT, "CASEWORKER_URL": service.url},
    )
    os.close(theirs)
    shown = ""

    async def until(text: str) -> None:
        nonlocal shown
        while text not in shown:
            shown += (await asyncio.to_thread(os.read, ours, 1000)).decode()

    async with asyncio.timeout(150):
        await until("ready True")
        os.write(ours, b"\x03")
        await until("interrupted")
        os.write(ours, b"typed\n")
        await until("line typed")
        process.send_signal(signal.SIGINT)  # the command gets those that are typed
        process.send_signal(signal.SIGTERM)
        await until("counted 1")
        code = await asyncio.to_thread(process.wait)
    os.close(ours)

    assert code == 5


class Relay:
    """A relay to a service whose connections fail while it is down."""

    def __init__(self, url: str) -> None:
        self._host, _, self._port = url.removeprefix("http://").partition(":")
        self.is_down = False
        self.refused = asyncio.Event()
        self.heard = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        there, back = await asyncio.open_connection(self._host, int(self._port))
        await asyncio.wait(
            [
                asyncio.create_task(self._pass(reader, back)),
                asyncio.create_task(self._pass(there, writer)),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        writer.close()
        back.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if b"/heartbeat" in data:
                (self.refused if self.is_down else self.heard).set()
            if self.is_down:
                return
            writer.write(data)


async def test_a_command_survives_a_service_that_cannot_be_reached_for_a_while(
    http: httpx.AsyncClient, started: Exec, agent: list[str], service: ServiceProcess
) -> None:
    """Heartbeats are repeated, and the run finishes. At the start it is an error."""
    relay = Relay(service.url)
    async with await asyncio.start_server(relay.serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        child = started("--run-id", "away", *agent, "handle:0", "wait", url=url)
        await child.json_line("waits")
        relay.is_down = True
        await relay.refused.wait()
        relay.is_down = False
        await relay.heard.wait()
        code = await child.terminate()
    lost = started(*agent, "wait", url="http://127.0.0.1:9")
    refused = await lost.wait()

    assert code == 0, child.stderr
    assert (await run_of(http, "away"))["status"] == "completed"
    assert (refused, lost.stdout) == (2, "")
    assert "CASEWORKER_URL" in lost.stderr


async def test_a_command_that_does_not_exist_opens_no_run(
    http: httpx.AsyncClient, started: Exec
) -> None:
    """It exits with 127, like a shell."""
    child = started("--run-id", "missing", "--", "no-such-program")
    code = await child.wait()

    assert code == 127
    assert child.stderr == "no-such-program: command not found\n"
    assert (await http.get("/runs/missing")).status_code == 404
