"""Followers of events: the cost of idle followers, and the delay of an event for the others.

Both are measured at the replica that executes the runs and at one that executes none.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
import psycopg
from caseworker_client import AsyncCaseworkerClient

from bench.figures import Check, Figure, Samples, Target
from bench.harness import Effort, Row
from bench.servers import BACKENDS, asking, database, models, process_at, service

HERE: Final = "where the runs are executed"
THERE: Final = "at another replica"
PARTS: Final = 50
PAUSE_MS: Final = 110
"""A pause that prevents merged chunks and varies their position between two polls."""
COUNT: Final = 1_000
AT_ONCE: Final = 20
IDLE: Final = Target(must=0.1, stretch=0.02, unit="ms/s")
LATE: Final = {
    HERE: Target(must=50, stretch=20, unit="ms"),
    THERE: Target(must=100, stretch=60, unit="ms"),
}
WAIT_SECONDS: Final = 600
LIMITS: Final = {
    "EVENTS_MAX_STREAMS": "5000",
    "SERVER_MAX_CONNECTIONS": "5000",
    "MODELS_SMALL_TIMEOUT_SECONDS": str(WAIT_SECONDS),
}
"""Allow all followers, and avoid retries during the measurement."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Follow runs with occasional events, and then many that wait for their provider."""
    seconds = effort.choose(20, 10)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        provider = await stack.enter_async_context(models())
        settings = {**asking(provider), **LIMITS}
        replicas = {
            HERE: await stack.enter_async_context(service(url, settings=settings)),
            THERE: await stack.enter_async_context(service(url, "--no-worker", settings=settings)),
        }
        clients = {
            name: await stack.enter_async_context(AsyncCaseworkerClient(each, timeout_seconds=60))
            for name, each in replicas.items()
        }
        late = {}
        for name, client in clients.items():
            heard = [await _late(clients[HERE], client) for _ in range(effort.choose(20, 5))]
            late[name] = Samples(tuple(each for some in heard for each in some))
        run_ids = await _waiting(clients[HERE], COUNT)
        before = await _cost(url, list(replicas.values()), seconds)
        idle = {}
        for name, replica in replicas.items():
            streams = [await _followed(replica, run_id) for run_id in run_ids]
            cost = await _cost(url, list(replicas.values()), seconds)
            idle[name] = Samples((1e3 * (cost - before) / COUNT,))
            for stream in streams:
                stream.close()
        async for run in clients[HERE].iterate_runs(status="running"):
            await clients[HERE].cancel_run(run.run_id)
    return [
        _figure("From a part of the provider's to the event at a follower's", "ms", late, LATE),
        _figure(
            f"{COUNT:,} followers that hear nothing, CPU of each, Postgres included",
            "ms/s",
            idle,
            dict.fromkeys(idle, IDLE),
        ),
    ]


def _figure(title: str, unit: str, sides: dict[str, Samples], targets: dict[str, Target]) -> Figure:
    checks = [
        Check(what=f"p99, {name}", value=each.percentile(99), target=targets[name])
        for name, each in sides.items()
    ]
    return Figure(title=title, unit=unit, sides=sides, checks=checks)


async def _late(owner: AsyncCaseworkerClient, follower: AsyncCaseworkerClient) -> list[float]:
    """Return the delay of each chunk in milliseconds; every chunk contains its sending time."""
    run = await owner.run_agent(_agent(f"clock-{PARTS}-{PAUSE_MS}"), "Go on.")
    late: list[float] = []
    async for event in follower.stream_events(run.run_id):
        if event.type == "content_chunk":
            now = time.monotonic()
            late += (1e3 * (now - float(sent)) for sent in event.data["content"].split())
    return late


async def _waiting(client: AsyncCaseworkerClient, count: int) -> list[str]:
    """Post runs that wait a long time for their provider."""
    room = asyncio.Semaphore(AT_ONCE)

    async def post() -> str:
        async with room:
            agent, budget = _agent(f"wait-{WAIT_SECONDS}"), {"max_seconds": WAIT_SECONDS}
            return (await client.run_agent(agent, "Wait.", budget=budget)).run_id

    async with asyncio.TaskGroup() as group:
        posted = [group.create_task(post()) for _ in range(count)]
    return [each.result() for each in posted]


def _agent(model: str) -> dict[str, Any]:
    return {"name": "clock", "prompt": {"system": "Tell."}, "model": {"name": model}}


async def _followed(replica: str, run_id: str) -> asyncio.StreamWriter:
    """Follow a run; its events stay in the socket buffer, which can hold all of them."""
    place = urlsplit(replica)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    request = f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n"
    writer.write(request.encode())
    await reader.readuntil(b"\r\n\r\n")
    return writer


async def _cost(url: str, replicas: Sequence[str], seconds: float) -> float:
    """Return the CPU seconds that services and Postgres use per second."""
    await asyncio.sleep(2)
    before = _cpu_seconds(url, replicas)
    await asyncio.sleep(seconds)
    return (_cpu_seconds(url, replicas) - before) / seconds


def _cpu_seconds(url: str, replicas: Sequence[str]) -> float:
    processes = [process_at(each) for each in replicas]
    with psycopg.connect(url) as connection:
        processes += [psutil.Process(pid) for (pid,) in connection.execute(BACKENDS)]
    times = [each.cpu_times() for each in processes]
    return sum(each.user + each.system for each in times)


ROW: Final = Row(title="Followers of events", peers=(), measure=measure)
