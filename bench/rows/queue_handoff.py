"""A run accepted by one process and executed by another: from its row to its claim."""

from collections.abc import Sequence
from typing import Final

import psycopg

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.load import put_load
from bench.rows.one_step_graph import GRAPH_RUN
from bench.servers import database, service

WARM_UP: Final = 50
P50: Final = Target(must=8, stretch=5, unit="ms")
P99: Final = Target(must=20, stretch=10, unit="ms")
WORST: Final = Target(must=1_000, unit="ms")

WAITS: Final = """
SELECT 1000 * extract(epoch FROM claimed_at - created_at)::float8 FROM runs ORDER BY created_at
"""
"""Both times come from the clock of Postgres."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Hand over runs of one step, one after another."""
    runs = effort.choose(1_000, 200)
    with database() as url:
        async with service(url), service(url, "--no-worker") as accepting:
            await put_load(accepting, GRAPH_RUN, connections=1, requests=WARM_UP + runs)
        with psycopg.connect(url) as connection:
            waits = [wait for (wait,) in connection.execute(WAITS)]
    samples = Samples(tuple(waits[WARM_UP:]))
    checks = [
        Check(what="p50", value=samples.percentile(50), target=P50),
        Check(what="p99", value=samples.percentile(99), target=P99),
        Check(what="the longest", value=max(samples.values), target=WORST),
    ]
    title = f"From its row to its claim, {runs:,} runs"
    return [Figure(title=title, unit="ms", sides={OURS: samples}, checks=checks)]


ROW: Final = Row(title="Hand-off through the queue", peers=(), measure=measure)
