"""``caseworker serve --workers 2``: two processes on one port, kept alive and ended together."""

import os
import re
import signal
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.processes import run_caseworker
from tests.support.service import QUICK, ServiceProcess, finished, model_settings
from tests.support.stores import eventually

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}


def _served_by(service: ServiceProcess) -> set[int]:
    return {each.pid for each in psutil.Process(service.child.pid).children()}


async def _both_up(service: ServiceProcess) -> set[int]:
    async def both_are_up() -> bool:
        return service.child.stderr.count("process.open") == 2

    await eventually(both_are_up)
    return _served_by(service)


def _pid_of_owner(database_url: str, run_id: str) -> int:
    with psycopg.connect(database_url) as connection:
        query = "SELECT pid FROM workers JOIN runs USING (worker_id) WHERE run_id = %s"
        (pid,) = connection.execute(query, [run_id]).fetchone() or (0,)
    return int(pid)


def _gone(service: ServiceProcess, pids: set[int]) -> bool:
    """Return whether no process of the service has these PIDs; the system may reuse them."""

    def session_of(pid: int) -> int | None:
        with suppress(ProcessLookupError):
            return os.getsid(pid)
        return None

    return all(session_of(pid) != service.child.pid for pid in pids)


async def test_two_processes_share_a_port_and_their_work(
    database_url: str, provider: FakeProvider
) -> None:
    """Either process can cancel a run; a killed process is replaced and its runs resume."""
    await provider.script("6 times 7", [Step(hang=True)], repeat_last=True)
    settings = model_settings(provider.openai_url)
    async with AsyncExitStack() as stack:
        serve = ServiceProcess(database_url, "--workers", "2", settings=settings)
        service = await stack.enter_async_context(serve)
        owners = dict[int, tuple[str, JsonClient]]()

        async def both_have_runs() -> bool:  # a client's connection stays with one process
            client = await stack.enter_async_context(service.client())
            run = await client.post_run({"input": "What is 6 times 7?", "gold_answer": "42"})
            pid = _pid_of_owner(database_url, run["run_id"])
            owners.setdefault(pid, (run["run_id"], client))
            return len(owners) == 2

        await eventually(both_have_runs)
        assert owners.keys() == _served_by(service)
        (here, (survivor, _)), (_, (stopped, there)) = owners.items()
        first_client = owners[here][1]
        await first_client.cancel_run(stopped)
        assert (await finished(there, stopped))["status"] == "cancelled"

        await provider.script("6 times 7", [Step(plan=PLAN)], repeat_last=True)
        psutil.Process(here).kill()
        assert (await finished(there, survivor))["status"] == "completed"

        async def replaced() -> bool:
            pids = _served_by(service)
            return len(pids) == 2 and here not in pids

        await eventually(replaced)
        await service.child.ready(f"{service.url}/readyz")
        pids = _served_by(service)
        assert f'"pid": {here}, "status": -9' in service.child.stderr
        assert service.child.stdout.count("listens on") == 1
        assert await service.child.terminate() == 0
        assert _gone(service, pids)


@pytest.mark.req("cw/15.owner")
async def test_both_processes_of_a_port_answer_for_an_external_run(
    database_url: str, provider: FakeProvider
) -> None:
    """Each connection reaches any process; the one that owns the run makes its calls."""
    await provider.script("", [Step(text="Done.")], repeat_last=True)
    settings = model_settings(provider.openai_url)
    async with ServiceProcess(database_url, "--workers", "2", settings=settings) as service:
        await _both_up(service)

        async def send(method: str, path: str, body: object = None, key: str = "") -> Any:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
                answer = await http.request(method, path, json=body, headers=headers, timeout=60)
            assert answer.is_success, answer.text
            return answer.json()

        run = await send("POST", "/runs", {"kind": "external", "run_id": "shared"})
        key = run["access"]["key"]
        owner = _pid_of_owner(database_url, "shared")
        body = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}
        path = "/gateway/openai/v1/chat/completions"
        for number in range(12):  # a new connection each
            reply = await send("POST", path, {**body, "seed": number}, key)
            assert reply["choices"][0]["message"]["content"] == "Done."
        assert _pid_of_owner(database_url, "shared") == owner
        await send("POST", "/runs/shared/finish", {"output": 1}, key)
        ended = await send("GET", "/runs/shared")

    assert (ended["status"], ended["attempts"]) == ("completed", 1)
    assert ended["usage"]["llm_calls"] == await provider.count("Hello") == 12


async def test_processes_end_with_their_supervisor(database_url: str) -> None:
    """The processes end in every case, and each serves its own metrics only on its own port."""
    settings = {"WORKER_HEALTH_PORT": "0", "SERVER_WORKERS": "2"}
    async with ServiceProcess(database_url, settings=settings) as service:
        pids = await _both_up(service)
        ports = re.findall(r"http://127\.0\.0\.1:(\d+)/readyz", service.child.stderr)
        async with httpx.AsyncClient(trust_env=False) as client:
            shared = await client.get(f"{service.url}/metrics")
            own = [await client.get(f"http://127.0.0.1:{port}/metrics") for port in ports]
        assert shared.status_code == httpx.codes.NOT_FOUND
        assert [each.status_code for each in own] == [httpx.codes.OK] * 2
        service.child.signal(signal.SIGKILL)

        async def all_gone() -> bool:
            return _gone(service, pids)

        await eventually(all_gone)


async def test_a_terminal_ends_all_of_them_at_once(
    database_url: str, provider: FakeProvider
) -> None:
    """Ctrl+C reaches every process, and no run counts as lost."""
    await provider.script("6 times 7", [Step(hang=True)], repeat_last=True)
    settings = model_settings(provider.openai_url)
    async with ServiceProcess(database_url, "--workers", "2", settings=settings) as service:
        pids = await _both_up(service)
        for _ in range(4):
            async with service.client() as client:
                await client.post_run({"input": "What is 6 times 7?", "gold_answer": "42"})
        await provider.wait_for_arrivals(4, "6 times 7")
        os.killpg(service.child.pid, signal.SIGINT)
        assert await service.child.wait() == 0
        assert _gone(service, pids)
        logged = service.child.stderr
        assert [logged.count(f"process.{end}") for end in ("closed", "killed")] == [2, 0]
        assert "Traceback" not in logged
    with psycopg.connect(database_url) as connection:
        runs = connection.execute("SELECT status, attempts FROM runs").fetchall()
    assert runs == [("queued", 0)] * 4


def test_a_start_that_cannot_succeed_says_why_in_one_line(
    database_url: str, tmp_path: Path
) -> None:
    """A port in use or an invalid agent ends the start without retries."""
    (tmp_path / "agent.yaml").write_text("name: [")
    wrong = {**QUICK, "DATABASE_URL": database_url, "AGENTS_FOLDER": str(tmp_path)}
    ended = run_caseworker("serve", "--workers", "2", env=wrong)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1].startswith("agents.folder: agent.yaml")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        there = {**QUICK, "DATABASE_URL": database_url, "SERVER_PORT": port}
        ended = run_caseworker("serve", "--workers", "2", env=there)
    assert ended.returncode == 2
    assert (
        ended.stderr.strip().splitlines()[-1].startswith("server.port: cannot bind to 127.0.0.1:")
    )
