"""Latency of streamed text: from the provider's chunk to the event of the run."""

import time
from collections.abc import Sequence
from typing import Any, Final

from caseworker_client import AsyncCaseworkerClient

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.servers import asking, database, models, service

PARTS: Final = 50
PAUSE_MS: Final = 10
WITHIN: Final = Target(must=50, unit="ms")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure one agent after another; its provider sends a chunk every ten milliseconds."""
    late: list[float] = []
    with database() as url:
        async with (
            models() as provider,
            service(url, settings=asking(provider)) as served,
            AsyncCaseworkerClient(served) as client,
        ):
            await _follow(client)
            for _ in range(effort.rounds):
                late += await _follow(client)
    samples = Samples(tuple(late))
    checks = [
        Check(what=f"p{percent}", value=samples.percentile(percent), target=WITHIN)
        for percent in (50, 99)
    ]
    title = f"Provider's part to client's event, {len(late):,} parts"
    return [Figure(title=title, unit="ms", sides={OURS: samples}, checks=checks)]


async def _follow(client: AsyncCaseworkerClient) -> list[float]:
    """Return the delay of each chunk in milliseconds; every chunk contains its sending time."""
    agent: dict[str, Any] = {
        "name": "clock",
        "prompt": {"system": "Tell the time."},
        "model": {"name": f"clock-{PARTS}-{PAUSE_MS}"},
    }
    run = await client.run_agent(agent, "Go on.")
    late: list[float] = []
    async for event in client.stream_events(run.run_id):
        if event.type == "content_chunk":
            now = time.monotonic()
            late += (1e3 * (now - float(sent)) for sent in event.data["content"].split())
    assert len(late) == PARTS
    return late


ROW: Final = Row(title="Stream of an agent", peers=(), measure=measure)
