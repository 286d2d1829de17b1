"""CPU of a process without work and of its Postgres, next to a plain service."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from bench.endpoints import start_peers
from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.rows.agent_run import PEERS, PLAIN
from bench.servers import asking, cpu_seconds, database, models, postgres_of, process_at, service

POSTGRES: Final = "Postgres"
SETTLING_SECONDS: Final = 10
TARGETS: Final = {
    OURS: Target(must=5, stretch=2, unit="ms/s"),
    POSTGRES: Target(must=2, stretch=1, unit="ms/s"),
}


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure all processes at the same time. Only the service uses Postgres."""
    seconds = effort.choose(30, 10)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        asked = await stack.enter_async_context(models())
        ours = await stack.enter_async_context(service(url, settings=asking(asked)))
        peers = await start_peers(stack, {PLAIN: PEERS[PLAIN]}, url, {"MODELS_URL": asked})
        processes = {name: process_at(each) for name, each in {OURS: ours, **peers}.items()}
        processes[POSTGRES] = postgres_of(url)

        def spent() -> dict[str, float]:
            return {
                name: cpu_seconds(process, below=name == POSTGRES)
                for name, process in processes.items()
            }

        await asyncio.sleep(SETTLING_SECONDS)
        rounds: list[dict[str, float]] = []
        for _ in range(effort.choose(6, 3)):
            before = spent()
            await asyncio.sleep(seconds)
            rounds.append({name: each - before[name] for name, each in spent().items()})
    sides = {
        name: Samples(tuple(1e3 * each[name] / seconds for each in rounds)) for name in processes
    }
    checks = [
        Check(what=name, value=sides[name].median, target=target)
        for name, target in TARGETS.items()
    ]
    return [Figure(title="CPU of an idle process", unit="ms/s", sides=sides, checks=checks)]


ROW: Final = Row(title="An idle process", peers=PEERS[PLAIN].requirements[:1], measure=measure)
