"""Runs use an MCP server with sessions, which is killed and started again under load."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.environments import peer_environment
from tests.support.json_client import JsonClient
from tests.support.mcp_servers import ROOT
from tests.support.processes import ChildProcess
from tests.support.service import ServiceProcess

SDK = "mcp==1.30.0"
"""The newest release whose servers keep sessions by default."""
PROGRAM = ROOT / "tests" / "support" / "restarted_mcp.py"
PARALLEL = 8


class Restarted:
    """The server, always on the same port."""

    def __init__(self, python: Path, log: Path) -> None:
        self.log = log
        self.starts = 0
        self._python = python
        self.port = 0
        self._child: ChildProcess | None = None

    async def start(self) -> None:
        """Start the server and wait until it listens."""
        command = [str(self._python), str(PROGRAM), str(self.port), str(self.log)]
        self._child = ChildProcess(command, name=f"server-{self.starts}")
        self._child.__enter__()
        self.port = (await self._child.json_line("port"))["port"]
        self.starts += 1

    def kill(self) -> None:
        """Kill the server with SIGKILL, if it runs."""
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()
            child.__exit__(None, None, None)

    def calls(self) -> list[str]:
        """Return a line for each executed call, in order."""
        return self.log.read_text().splitlines()


@asynccontextmanager
async def restarted(folder: Path) -> AsyncIterator[Restarted]:
    """Run the server for the block."""
    log = folder / "log"
    log.touch()
    environment = await peer_environment(SDK)
    server = Restarted(environment.python, log)
    await server.start()
    try:
        yield server
    finally:
        server.kill()


def tool_of(number: int) -> str:
    """Return the tool that a run calls: every second one reads."""
    return "read" if number % 2 else "write"


def document(number: int) -> dict[str, Any]:
    """Return a graph of one call."""
    data = {"tool": f"web.{tool_of(number)}", "args": {"key": str(number)}}
    return {"steps": [{"id": "s", "type": "tool", "data": data}], "edges": []}


@pytest.mark.parametrize("restarts", [1, pytest.param(50, marks=pytest.mark.proof)])
async def test_calls_of_a_server_that_restarts_are_executed_once_or_have_an_unknown_outcome(
    database_url: str, tmp_path: Path, restarts: int
) -> None:
    """A read is never unknown, no write is executed twice, and a lost one is never executed."""
    async with restarted(tmp_path) as server:
        servers = {"web": {"url": f"http://127.0.0.1:{server.port}/mcp"}}
        settings = {
            "TOOLS_MCP_SERVERS": json.dumps(servers),
            "RETRY_MAX_RETRIES": "8",
            "RETRY_BASE_SECONDS": "0.2",
        }
        async with (
            ServiceProcess(database_url, settings=settings) as service,
            service.client() as client,
        ):
            load = Load(client)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(load.run()) for _ in range(PARALLEL)]
                for _ in range(restarts):
                    await load.until(len(load.ended) + 4)
                    server.kill()
                    await server.start()
                await load.until(len(load.ended) + PARALLEL)
                load.stopped = True
                await asyncio.wait(tasks)

    outcomes = load.outcomes()
    executed = Counter(server.calls())
    writes = [key for key in executed if key.startswith("write")]
    unknown = [key for key, outcome in outcomes.items() if outcome == "unknown"]
    print(f"{len(load.ended)} runs, {len(outcomes)} calls, {len(unknown)} unknown")  # noqa: T201

    assert server.starts == restarts + 1
    assert [executed[key] for key in writes] == [1] * len(writes)
    assert all(key.startswith("write") for key in unknown)
    assert set(outcomes.values()) <= {"completed", "unknown", "lost"}, outcomes
    lost = {key for key, outcome in outcomes.items() if outcome == "lost"}
    assert not lost.intersection(writes)
    completed = {key for key, outcome in outcomes.items() if outcome == "completed"}
    assert completed <= executed.keys()


class Load:
    """Runs in parallel, each of several calls, until it is stopped."""

    def __init__(self, client: JsonClient) -> None:
        self.client = client
        self.stopped = False
        self.ended: dict[int, dict[str, Any]] = {}
        self._count = 0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Make runs, one after the other."""
        while not self.stopped:
            self._count += 1
            number = self._count
            run = await self.client.run_graph(document(number), wait_seconds=150)
            self.ended[number] = run
            self._changed.set()

    async def until(self, count: int) -> None:
        """Wait until this number of runs has ended."""
        while len(self.ended) < count:
            self._changed.clear()
            await self._changed.wait()

    def outcomes(self) -> dict[str, str]:
        """Return ``completed``, ``unknown``, ``lost`` or another result for each call."""
        return {f"{tool_of(number)} {number}": _outcome(run) for number, run in self.ended.items()}


def _outcome(run: dict[str, Any]) -> str:
    if run["status"] == "completed":
        return "completed"
    told = json.dumps(run["result"])
    if "(server_lost)" in told:  # every retry came while the server was down
        return "lost"
    return "unknown" if "Outcome unknown" in told else told
