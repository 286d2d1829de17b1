"""Schedules that are due at the same time, among those that are due later."""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import psycopg

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.rows.one_step_graph import GRAPH_RUN
from bench.servers import database, service

DUE: Final = 1_000
STORED: Final = 10_000
SECONDS: Final = Target(must=2, stretch=1, unit="s")
COPY: Final = """
INSERT INTO schedules (tenant_id, name, cron, timezone, catch_up, max_catch_up, overlap, paused,
    sent, request, request_hash, metadata, next_at)
SELECT tenant_id, 's' || n, '* * * * *', timezone, 'one', 1, 'allow', false, sent, request,
    request_hash, metadata, now() + interval '1 day'
FROM schedules, generate_series(1, %s::integer) n WHERE name = 'template'
"""
START: Final = """
UPDATE schedules SET next_at = date_trunc('minute', clock_timestamp())
WHERE name IN (SELECT 's' || n FROM generate_series(%(first)s, %(first)s + %(due)s - 1) n)
RETURNING clock_timestamp() AS at
"""
FIRED: Final = "SELECT count(*), max(created_at) FROM runs"
UNFINISHED: Final = "SELECT count(*) FROM runs WHERE finished_at IS NULL"
LATER: Final = "UPDATE schedules SET next_at = now() + interval '1 day'"


async def measure(effort: Effort) -> Sequence[Figure]:
    """Make schedules due, and wait until the last of their runs is stored."""
    with database() as url:
        async with service(url) as address, httpx.AsyncClient(base_url=address) as http:
            body: Any = {"cron": "0 0 1 1 *", "run": json.loads(GRAPH_RUN.body % 1)}
            (await http.put("/schedules/template", json=body)).raise_for_status()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(COPY, (STORED,))
                took = [_fire(connection, number) for number in range(effort.rounds)]
    samples = Samples(tuple(took))
    check = Check(what="all have started", value=samples.median, target=SECONDS)
    title = f"{DUE:,} schedules of one minute, {STORED:,} stored"
    return [Figure(title=title, unit="s", sides={OURS: samples}, checks=[check])]


def _fire(connection: psycopg.Connection[Any], number: int) -> float:
    """Return the seconds from the time at which schedules become due to the last of their runs.

    Each round uses other schedules, because a schedule starts one run for each minute.
    """
    (before, _) = connection.execute(FIRED).fetchone() or (0, None)
    began = datetime.now(UTC)
    for (at,) in connection.execute(START, {"first": 1 + number * DUE, "due": DUE}):
        began = min(began, at)
    while True:
        (runs, last) = connection.execute(FIRED).fetchone() or (0, None)
        if runs >= before + DUE:
            break
        time.sleep(0.05)
    connection.execute(LATER)
    while connection.execute(UNFINISHED).fetchone() != (0,):
        time.sleep(0.05)
    assert last is not None
    return float((last - began).total_seconds())


ROW: Final = Row(title="Schedules that are due together", peers=(), measure=measure)
