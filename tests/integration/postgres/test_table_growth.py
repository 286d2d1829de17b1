"""Tables do not grow forever: the server vacuums them in time, and their space is reused."""

import sys
from collections.abc import AsyncIterator

import pytest

from tests.integration.postgres.expiring import ExpiringRuns
from tests.support.stores import (
    Oracle,
    end_of,
    eventually,
    graph_with_calls,
    new_run,
    open_stores,
    records_of,
)

SIZE = """
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relname IN ('runs', 'calls', 'events', 'snapshots', 'procrastinate_jobs')
"""
STOCK = """
INSERT INTO {0} SELECT (jsonb_populate_record(one, jsonb_build_object('run_id', 'kept-' || n))).*
FROM {0} one, generate_series(1, 1500) n WHERE run_id = 'kept'
"""
"""Enough rows that default autovacuum settings would not trigger."""
JOBS = """
INSERT INTO procrastinate_jobs (queue_name, task_name, args, status)
SELECT 'another', 'none', '{}', 'todo' FROM generate_series(1, %s)
"""
DONE = """
SELECT procrastinate_finish_job_v1(id, 'succeeded', true) FROM (
    SELECT id FROM procrastinate_jobs ORDER BY queue_name DESC, id LIMIT %s
) job
"""
QUEUED, OTHERS = 75, 1200
VACUUMED = """
SELECT relname, n_dead_tup AS dead, autovacuum_count AS times, vacuum_count AS by_hand
FROM pg_stat_user_tables WHERE relname IN ('runs', 'calls', 'events', 'procrastinate_jobs')
"""
MOST_DEAD = {"runs": 50 + 0.02 * 1600, "calls": 50 + 0.02 * 9600, "events": 50 + 0.02 * 1600}
MOST_DEAD["procrastinate_jobs"] = 1000 + 0.01 * 7000
"""Dead rows before each table is vacuumed; the default settings would allow many more."""


@pytest.fixture
async def vacuuming(oracle: Oracle) -> AsyncIterator[None]:
    """Make the server check every second for tables to vacuum."""
    await oracle.rows("ALTER SYSTEM SET autovacuum_naptime = '1s'")
    await oracle.rows("SELECT pg_reload_conf()")
    yield
    await oracle.rows("ALTER SYSTEM RESET autovacuum_naptime")
    await oracle.rows("SELECT pg_reload_conf()")


async def add_with_calls(expiring: ExpiringRuns, run_id: str, *, queued: bool) -> None:
    """End a run with five calls, queued before or not."""
    stores, new = expiring.stores, new_run(run_id)
    accepted = await stores.runs.accept(new, worker_id=None if queued else "w1")
    run = await stores.runs.claim(new.key, "w1") if queued else accepted.run
    assert run is not None
    graph = graph_with_calls(run_id, llm_calls=5)
    calls = records_of(graph, call_key="k", value="v" * 500, request={"prompt": "p" * 500})
    await stores.journal.finish(end_of(run, calls=calls))
    await expiring.add_part("events", run_id)


async def add_and_delete(database_url: str, oracle: Oracle, name: str) -> None:
    """End runs and delete them, half of them through the queue."""
    async with open_stores(database_url) as stores:  # statistics are flushed on close
        expiring = ExpiringRuns(stores, oracle)
        for number in range(2 * QUEUED):
            await add_with_calls(expiring, f"{name}-{number}", queued=number < QUEUED)
        await oracle.rows(DONE, QUEUED + OTHERS)
        await oracle.rows(JOBS, OTHERS)
        await expiring.age(31, f"{name}-%")
        await expiring.sweep(runs=30)
    await oracle.rows("SELECT pg_stat_force_next_flush()")


@pytest.mark.proof
async def test_tables_do_not_grow_while_runs_come_and_go(
    database_url: str, expiring: ExpiringRuns, oracle: Oracle, vacuuming: None
) -> None:
    """The table settings make the server vacuum them in time, so their space is reused."""
    await add_with_calls(expiring, "kept", queued=False)
    for table in ("runs", "calls", "events"):
        await oracle.rows(STOCK.format(table))
    await oracle.rows(JOBS, 7000)
    await oracle.rows("ANALYZE")

    async def vacuumed() -> bool:
        tables = await oracle.rows(VACUUMED)
        return all(row["times"] and row["dead"] <= MOST_DEAD[row["relname"]] for row in tables)

    sizes = []
    for round_ in range(4):
        await add_and_delete(database_url, oracle, str(round_))
        await eventually(vacuumed)
        sizes.append(await oracle.value(SIZE))
    sys.stdout.write(f"bytes after each round: {sizes}\n")
    assert await oracle.value("SELECT count(*) FROM runs") == 1501
    assert not any(row["by_hand"] for row in await oracle.rows(VACUUMED))
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 7000
    assert sizes[-1] <= 1.03 * sizes[1]  # each of the two rounds writes some 3 %
