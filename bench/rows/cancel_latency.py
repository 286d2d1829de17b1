"""Cancelling: from the 202 of the DELETE until the call in flight has disconnected."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Final

from caseworker_client import AsyncCaseworkerClient

from bench.figures import Check, Figure, Target
from bench.harness import Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.servers import asking, database, service
from tests.support.fake_provider import FakeProvider, Step

OWN: Final = "asked where it runs"
OTHER: Final = "asked at another replica"
TARGETS: Final = {
    OWN: Target(must=50, stretch=20, unit="ms"),
    OTHER: Target(must=100, stretch=50, unit="ms"),
}


async def measure(effort: Effort) -> Sequence[Figure]:
    """Cancel runs one by one, alternating between the executing replica and another one."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        provider = await stack.enter_async_context(FakeProvider())
        await provider.answer_by_default(Step(hang=True))
        settings = asking(provider.openai_url)
        own = await stack.enter_async_context(service(url, settings=settings))
        client = await stack.enter_async_context(AsyncCaseworkerClient(own))
        other = await stack.enter_async_context(service(url, "--no-worker", settings=settings))
        numbers = count(10_000)
        sides = {
            OWN: _cancelled(client, provider, own, numbers),
            OTHER: _cancelled(client, provider, other, numbers),
        }
        measured = await interleaved(sides, effort.choose(200, 40))
    checks = [
        Check(what=f"p99, {name}", value=measured[name].percentile(99), target=target)
        for name, target in TARGETS.items()
    ]
    title = "From the 202 until the provider's socket is closed; 0: it was before"
    return [Figure(title=title, unit="ms", sides=measured, checks=checks)]


def _cancelled(
    client: AsyncCaseworkerClient, provider: FakeProvider, address: str, numbers: "count[int]"
) -> Side:
    """Return a side that posts a run, waits for its call, and cancels it at ``address``.

    The provider is a separate process that sees the client disconnect; all processes read one
    clock.
    """

    async def measure() -> float:
        marker = f"number {next(numbers)}"
        run = await client.run_case(f"What is {marker}?")
        await provider.wait_for_arrivals(1, marker)
        cancel = Request(method="DELETE", path=f"/runs/{run.run_id}", expect=(202,))
        await put_load(address, cancel, connections=1, requests=1)
        answered = time.monotonic()
        (arrival,) = await provider.wait_for_arrivals(1, marker, ended=True)
        assert arrival.outcome == "client_gone", arrival
        assert arrival.ended_monotonic is not None
        return 1e3 * max(0, arrival.ended_monotonic - answered)

    return measure


ROW: Final = Row(title="Stopping a run", peers=(), measure=measure)
