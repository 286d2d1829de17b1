"""Cancelling external runs with open streams: until the provider's connection is closed."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Final

import httpx

from bench.figures import Check, Figure, Target
from bench.harness import Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.rows.cancel_latency import OTHER, OWN
from bench.servers import asking, database, service
from tests.support.fake_provider import FakeProvider, Step

TARGETS: Final = {OWN: Target(must=100, unit="ms"), OTHER: Target(must=100, unit="ms")}
OPENED_AT_ONCE: Final = 20
HELD: Final = Step(text="in parts " * 8, after_events=2)


async def measure(effort: Effort) -> Sequence[Figure]:
    """Open the streams of all runs, then cancel the runs one by one at alternating replicas."""
    runs = effort.choose(200, 40)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        provider = await stack.enter_async_context(FakeProvider())
        await provider.answer_by_default(HELD)
        settings = {**asking(provider.openai_url), "SERVER_MAX_CONNECTIONS": "2000"}
        own = await stack.enter_async_context(service(url, settings=settings))
        other = await stack.enter_async_context(service(url, "--no-worker", settings=settings))
        limits = httpx.Limits(max_connections=None)
        client = httpx.AsyncClient(base_url=own, trust_env=False, timeout=600, limits=limits)
        http = await stack.enter_async_context(client)
        names = [f"stream-{number:04}" for number in range(2 * (runs + 1))]
        turns = asyncio.Semaphore(OPENED_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(_open_stream(stack, http, name, turns))
        numbers = count()

        def cancelled(address: str) -> Side:
            async def measure() -> float:
                return await _cancelled(provider, address, names[next(numbers)])

            return measure

        measured = await interleaved({OWN: cancelled(own), OTHER: cancelled(other)}, runs)
    checks = [
        Check(what=f"p99, {name}", value=measured[name].percentile(99), target=target)
        for name, target in TARGETS.items()
    ]
    title = f"From the 202 until the provider's socket is closed, {len(names)} streams; 0: before"
    return [Figure(title=title, unit="ms", sides=measured, checks=checks)]


async def _open_stream(
    stack: AsyncExitStack, http: httpx.AsyncClient, name: str, turns: asyncio.Semaphore
) -> None:
    """Create a run and read the first part of a stream; the stream stays open."""
    async with turns:
        body = {"kind": "external", "run_id": name}
        run = (await http.post("/runs", json=body)).raise_for_status().json()
        messages = [{"role": "user", "content": name}]
        call = http.stream(
            "POST",
            "/gateway/openai/v1/chat/completions",
            json={"model": "small", "messages": messages, "stream": True},
            headers={"Authorization": f"Bearer {run['access']['key']}"},
        )
        reply = await stack.enter_async_context(call)
        await anext(reply.raise_for_status().aiter_bytes())


async def _cancelled(provider: FakeProvider, address: str, name: str) -> float:
    """Return the milliseconds from the 202; all processes read one clock."""
    cancel = Request(method="DELETE", path=f"/runs/{name}", expect=(202,))
    await put_load(address, cancel, connections=1, requests=1)
    answered = time.monotonic()
    (arrival,) = await provider.wait_for_arrivals(1, name, ended=True)
    assert arrival.outcome == "client_gone", arrival
    assert arrival.ended_monotonic is not None
    return 1e3 * max(0, arrival.ended_monotonic - answered)


ROW: Final = Row(title="Stopping external runs with open streams", peers=(), measure=measure)
