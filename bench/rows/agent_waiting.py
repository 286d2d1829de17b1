"""Runs that wait, agents for their provider and graphs for a tool: the memory that each holds."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from caseworker_client import AsyncCaseworkerClient

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.load import Request, put_load
from bench.servers import asking, database, models, service, service_process

WAIT_SECONDS: Final = 300
AT_ONCE: Final = 20
LOOK_SECONDS: Final = 0.5
WITH_HTTP: Final = Target(must=60, stretch=40, unit="KiB")
WITHOUT: Final = Target(must=32, stretch=20, unit="KiB")
TOOL: Final = {"TOOLS_PLUGINS": '["bench.sides.outside_tool:PatientTool"]'}


def _graph(seconds: int) -> Request:
    step = {"id": "wait", "type": "tool", "data": {"tool": "patient", "args": {"number": seconds}}}
    body = {"kind": "graph", "graph": {"steps": [step], "edges": []}}
    return Request(path="/runs", body=json.dumps(body).encode(), expect=(202,))


async def measure(effort: Effort) -> Sequence[Figure]:
    """Post runs until all of them wait, and compare the memory with before."""
    runs = effort.choose(1_000, 200)
    with database() as url:
        agent, graph = await _agent_bytes(url, runs), await _graph_bytes(url, runs)
    sides = {OURS: Samples((agent / 1024,)), "a tool in the process": Samples((graph / 1024,))}
    checks = [
        Check(what="an agent, its connection included", value=agent / 1024, target=WITH_HTTP),
        Check(what="a graph, without a connection", value=graph / 1024, target=WITHOUT),
    ]
    return [Figure(title=f"{runs:,} waiting runs", unit="KiB a run", sides=sides, checks=checks)]


async def _agent_bytes(url: str, runs: int) -> float:
    async with (
        models() as provider,
        service(url, settings=asking(provider)) as served,
        AsyncCaseworkerClient(served, timeout_seconds=60) as client,
    ):
        process, connected = service_process(), _connections(provider)
        await _post(client, "turns-1", AT_ONCE)
        async for run in client.iterate_runs():
            await client.wait_for_run(run.run_id)
        before = process.memory_info().rss
        await _post(client, f"wait-{WAIT_SECONDS}", runs)
        while connected() < runs:  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)
        each = (process.memory_info().rss - before) / runs
        await _cancel_all(client)
        return each


async def _graph_bytes(url: str, runs: int) -> float:
    """Return it for runs that have no connection, and whose calls are stored when it is read."""
    settings = {"WORKER_MAX_RUNS": str(2 * runs), **TOOL}
    async with (
        service(url, settings=settings) as served,
        AsyncCaseworkerClient(served, timeout_seconds=60) as client,
    ):
        process = service_process()
        await put_load(served, _graph(0), connections=AT_ONCE, requests=runs)
        before = process.memory_info().rss
        await put_load(served, _graph(WAIT_SECONDS), connections=AT_ONCE, requests=runs)
        await asyncio.sleep(4 * LOOK_SECONDS)
        each = (process.memory_info().rss - before) / runs
        await _cancel_all(client)
        return each


async def _cancel_all(client: AsyncCaseworkerClient) -> None:
    async for run in client.iterate_runs(status="running"):
        await client.cancel_run(run.run_id)


async def _post(client: AsyncCaseworkerClient, model: str, runs: int) -> None:
    agent: dict[str, Any] = {
        "name": "patient",
        "prompt": {"system": "Wait."},
        "tools": ["calculator"],
        "model": {"name": model},
    }
    budget = {"max_seconds": 2 * WAIT_SECONDS}
    room = asyncio.Semaphore(AT_ONCE)

    async def post() -> None:
        async with room:
            await client.run_agent(agent, "How much is it?", budget=budget)

    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(post())


def _connections(provider: str) -> Callable[[], int]:
    """Return what counts the connections that the service has to its provider."""
    process, port = service_process(), urlsplit(provider).port

    def count() -> int:
        found = process.net_connections("tcp")
        return sum(getattr(each.raddr, "port", None) == port for each in found)

    return count


ROW: Final = Row(title="Waiting runs", peers=(), measure=measure)
