"""Runs of agents whose provider lets them wait: the memory that each holds."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from caseworker_client import AsyncCaseworkerClient

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.servers import asking, database, models, service, service_process

WAIT_SECONDS: Final = 300
AT_ONCE: Final = 20
LOOK_SECONDS: Final = 0.5
WITH_HTTP: Final = Target(must=60, stretch=40, unit="KiB")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Post runs until all of them wait for the provider, and compare the memory with before."""
    runs = effort.choose(1_000, 200)
    with database() as url:
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
            each = (process.memory_info().rss - before) / runs / 1024
            async for run in client.iterate_runs(status="running"):
                await client.cancel_run(run.run_id)
    title = f"{runs:,} runs that wait for their provider"
    sides = {OURS: Samples((each,))}
    check = Check(what="a run, its connection included", value=each, target=WITH_HTTP)
    return [Figure(title=title, unit="KiB a run", sides=sides, checks=[check])]


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


ROW: Final = Row(title="Waiting agents", peers=(), measure=measure)
