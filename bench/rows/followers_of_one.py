"""A hundred followers of one streamed run: CPU of an event and follower, and its delay."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit

from caseworker_client import AsyncCaseworkerClient

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.servers import asking, cpu_seconds, database, models, process_at, service

FOLLOWERS: Final = 100
PAUSE_MS: Final = 30
"""A pause that prevents merged chunks."""
CPU: Final = Target(must=50, stretch=20, unit="us")
LATE: Final = Target(must=60, stretch=40, unit="ms")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Stream runs of several hundred chunks; without followers their own cost is measured."""
    parts = effort.choose(300, 100)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        provider = await stack.enter_async_context(models())
        ours = await stack.enter_async_context(service(url, settings=asking(provider)))
        client = await stack.enter_async_context(AsyncCaseworkerClient(ours, timeout_seconds=60))
        costs: list[float] = []
        late: list[float] = []
        for _ in range(effort.choose(4, 2)):
            alone, _ = await _streamed(client, ours, parts, followers=1)
            cost, delays = await _streamed(client, ours, parts, followers=1 + FOLLOWERS)
            costs.append(1e6 * (cost - alone) / (FOLLOWERS * parts))
            late += delays
    cost_samples, delay_samples = Samples(tuple(costs)), Samples(tuple(late))
    return [
        Figure(
            title=f"{FOLLOWERS} followers of one run, CPU of an event and follower",
            unit="us",
            sides={OURS: cost_samples},
            checks=[Check(what="CPU", value=cost_samples.median, target=CPU)],
        ),
        Figure(
            title="From a part of the provider's to the event at the followers",
            unit="ms",
            sides={OURS: delay_samples},
            checks=[Check(what="p99", value=delay_samples.percentile(99), target=LATE)],
        ),
    ]


async def _streamed(
    client: AsyncCaseworkerClient, url: str, parts: int, *, followers: int
) -> tuple[float, list[float]]:
    """Return the CPU seconds of the service, and the delays of chunks in milliseconds."""
    process = process_at(url)
    agent = {
        "name": "clock",
        "prompt": {"system": "Tell."},
        "model": {"name": f"clock-{parts}-{PAUSE_MS}"},
    }
    before = cpu_seconds(process)
    run = await client.run_agent(agent, "Go on.")
    late: list[float] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(followers):
            group.create_task(_follow(url, run.run_id, late))
    return cpu_seconds(process) - before, late


async def _follow(url: str, run_id: str, late: list[float]) -> None:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**22)
    request = (
        f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
    )
    writer.write(request.encode())
    await reader.readuntil(b"\r\n\r\n")
    began = time.monotonic()
    async for line in reader:
        if line.startswith(b"data:") and b'"content_chunk"' in line:
            now = time.monotonic()
            sent = map(float, json.loads(line[5:])["data"].get("content", "").split())
            late += (1e3 * (now - each) for each in sent if each > began)
    writer.close()


ROW: Final = Row(title="Followers of one run", peers=(), measure=measure)
