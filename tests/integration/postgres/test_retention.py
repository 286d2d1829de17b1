"""Retention deletes expired records and nothing else, and tables do not grow forever."""

import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.retention import postgres as statements
from caseworker.features.retention.postgres import FOR_EVER, Days, PostgresRetention, set_days
from caseworker.features.retention.sweep import Retention
from caseworker.main.features import DROPS
from caseworker.runs.quotas import Quota
from caseworker.runs.run import RunKey, Webhook
from tests.support.stores import (
    CANCEL_REQUEST,
    Oracle,
    Stores,
    end_of,
    eventually,
    graph_with_calls,
    new_run,
    open_oracle,
    open_stores,
    records_of,
)

NOTHING = dict.fromkeys(DROPS)
AGE = """
UPDATE runs SET finished_at = finished_at - make_interval(days => %s) WHERE run_id LIKE %s
"""
FILE = """
INSERT INTO artifacts (tenant_id, run_id, name, slot, media_type, size_bytes, sha256, data)
VALUES (%s, %s, 'a.txt', 'slot', 'text/plain', 1, repeat('0', 64), 'x')
"""
SNAPSHOT = "INSERT INTO snapshots VALUES (%s, %s, '{}')"
"""A snapshot as an earlier release stored it."""
EVENT = "INSERT INTO events (tenant_id, run_id, seq, type) VALUES (%s, %s, 1, 'run.started')"
END_DELIVERY = """
UPDATE webhook_deliveries SET status = %s, due_at = NULL WHERE run_id = %s
"""
COUNT = {
    "runs": "SELECT count(*) FROM runs",
    "requests": "SELECT count(*) FROM calls WHERE request IS NOT NULL",
    "events": "SELECT count(*) FROM events",
    "snapshots": "SELECT count(*) FROM snapshots",
    "artifacts": "SELECT count(*) FROM artifacts",
}
SIZE = """
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relname IN ('runs', 'calls', 'events', 'snapshots', 'procrastinate_jobs')
"""


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[Stores]:
    async with open_stores(database_url) as opened:
        yield opened


@pytest.fixture
async def oracle(database_url: str) -> AsyncIterator[Oracle]:
    async with open_oracle(database_url) as opened:
        yield opened


async def ended(stores: Stores, oracle: Oracle, run_id: str, tenant: str = "default") -> None:
    """Store a finished run with a part of every kind."""
    accepted = await stores.runs.accept(new_run(run_id, tenant=tenant), worker_id="w1")
    calls = records_of(graph_with_calls(run_id), call_key="k", value="v", request={"prompt": "p"})
    await stores.journal.finish(end_of(accepted.run, calls=calls))
    for statement in (FILE, EVENT, SNAPSHOT):
        await oracle.rows(statement, tenant, run_id)


async def sweep(stores: Stores, **days: int) -> None:
    usual = {**NOTHING, **days}
    await retention_of(stores, usual).sweep()


def retention_of(stores: Stores, days: Days) -> Retention:
    return Retention(
        store=PostgresRetention(stores.engines.work, DROPS),
        nearly_full=PostgresQuotas(stores.engines.work, Quota()).nearly_full,
        days=days,
        unlimited=[],
        sweep_seconds=600,
    )


async def counts(oracle: Oracle) -> dict[str, int]:
    return {record: await oracle.value(query) for record, query in COUNT.items()}


async def test_everything_is_kept_for_ever_unless_days_are_named(
    stores: Stores, oracle: Oracle
) -> None:
    """Age makes no difference."""
    await ended(stores, oracle, "old-1")
    await oracle.rows(AGE, 10_000, "old-%")
    before = await counts(oracle)
    await sweep(stores)
    assert await counts(oracle) == before


@pytest.mark.parametrize("record", list(COUNT))
async def test_what_is_older_than_its_days_goes_and_the_rest_stays(
    stores: Stores, oracle: Oracle, record: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches delete old runs, while younger and running ones stay complete."""
    monkeypatch.setattr(statements, "RUNS_AT_ONCE", 2)
    for number in range(5):
        await ended(stores, oracle, f"old-{number}")
    await ended(stores, oracle, "young")
    await stores.runs.accept(new_run("at-work"), worker_id="w1")
    await oracle.rows(AGE, 31, "old-%")
    before = await counts(oracle)

    await sweep(stores, **{record: 30})

    after = await counts(oracle)
    gone = {name for name in before if after[name] < before[name]}
    assert gone == (set(before) if record == "runs" else {record})
    young = await stores.runs.get(RunKey("default", "young"))
    assert young is not None
    assert after[record] == (2 if record == "runs" else before[record] // 6)


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT count(*) > 3 FROM gone) THEN
        RAISE EXCEPTION 'too slow' USING ERRCODE = 'query_canceled';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER slow AFTER DELETE ON events REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION slow()
"""


@pytest.mark.parametrize("record", ["runs", "events"])
async def test_a_batch_that_takes_too_long_is_taken_in_pieces(
    stores: Stores, oracle: Oracle, record: str
) -> None:
    """Otherwise it would fail in every sweep and block all later work."""
    for number in range(5):
        await ended(stores, oracle, f"old-{number}")
    await oracle.rows(AGE, 31, "old-%")
    await oracle.rows(SLOW)

    await sweep(stores, **{record: 30})

    assert await oracle.value("SELECT count(*) FROM events") == 0


async def test_what_stays_of_a_run_is_swept_once(stores: Stores, oracle: Oracle) -> None:
    """A sweep stores its progress, and later sweeps find runs that are due later."""
    await ended(stores, oracle, "old-1")
    await ended(stores, oracle, "new-1")
    await oracle.rows(AGE, 40, "old-%")
    await sweep(stores, events=30)
    await sweep(stores, events=30)
    assert await oracle.value(COUNT["events"]) == 1
    await oracle.rows(AGE, 35, "new-%")
    await sweep(stores, events=30)
    assert await oracle.value(COUNT["events"]) == 0


async def test_tenants_have_days_of_their_own(stores: Stores, oracle: Oracle) -> None:
    """A tenant can keep records forever or for its own number of days."""
    for tenant in ("usual", "keeps", "short"):
        await ended(stores, oracle, f"old-{tenant}", tenant)
    await oracle.rows(AGE, 31, "old-%")
    await set_days(stores.engines.work, "keeps", "runs", FOR_EVER)
    await set_days(stores.engines.work, "short", "runs", 7)
    await sweep(stores)
    left = [row["tenant_id"] for row in await oracle.rows("SELECT tenant_id FROM runs ORDER BY 1")]
    assert left == ["keeps", "usual"]
    await sweep(stores, runs=30)
    assert await oracle.value("SELECT tenant_id FROM runs") == "keeps"


async def test_a_run_that_somebody_has_locked_is_left_to_the_next_sweep(
    stores: Stores, oracle: Oracle, database_url: str
) -> None:
    """The sweep does not wait for it."""
    for number in range(2):
        await ended(stores, oracle, f"old-{number}")
    await oracle.rows(AGE, 31, "old-%")
    async with open_oracle(database_url) as other, other.connection.transaction():
        await other.rows("SELECT FROM runs WHERE run_id = 'old-0' FOR UPDATE")
        await sweep(stores, runs=30)
        assert await oracle.value("SELECT run_id FROM runs") == "old-0"
    await sweep(stores, runs=30)
    assert await oracle.value("SELECT count(*) FROM runs") == 0


async def test_a_run_whose_end_is_still_to_be_announced_is_kept_until_that_is_done(
    stores: Stores, oracle: Oracle
) -> None:
    """A pending delivery keeps its run for any time, a dead one does not."""
    webhook = Webhook("https://example.com/hook")
    for run_id in ("old-delivered", "old-dead", "old-pending"):
        accepted = await stores.runs.accept(
            replace(new_run(run_id), webhook=webhook), worker_id="w1"
        )
        await stores.journal.finish(end_of(accepted.run))
    await oracle.rows(END_DELIVERY, "delivered", "old-delivered")
    await oracle.rows(END_DELIVERY, "dead", "old-dead")
    await oracle.rows(AGE, 31, "old-%")

    await sweep(stores, runs=30)

    assert await oracle.value("SELECT array_agg(run_id) FROM runs") == ["old-pending"]
    assert await oracle.value("SELECT run_id FROM webhook_deliveries") == "old-pending"
    await oracle.rows(END_DELIVERY, "delivered", "old-pending")
    await sweep(stores, runs=30)
    assert await oracle.value("SELECT count(*) FROM runs") == 0


async def test_pending_cancels_that_have_expired_are_cleared_away(
    stores: Stores, oracle: Oracle
) -> None:
    """Other pending cancels stay, and the IDs of erased runs are deleted a day later."""
    for run_id in ("erased", "erased-lately"):
        await ended(stores, oracle, run_id)
        await stores.runs.erase(RunKey("default", run_id))
    await oracle.rows(
        "UPDATE runs SET created_at = created_at - interval '25 h' WHERE run_id = 'erased'"
    )
    await oracle.rows(
        "UPDATE runs SET created_at = created_at - interval '23 h' WHERE run_id <> 'erased'"
    )
    for run_id in ("gone", "waits"):
        await stores.runs.cancel(RunKey("default", run_id), CANCEL_REQUEST)
    await oracle.rows("UPDATE runs SET pending_cancel_expires_at = now() WHERE run_id = 'gone'")
    await sweep(stores)
    left = await oracle.rows("SELECT run_id FROM runs ORDER BY run_id")
    assert [row["run_id"] for row in left] == ["erased-lately", "waits"]

    await stores.runs.cancel(RunKey("default", "erased-lately"), CANCEL_REQUEST)
    await oracle.rows("UPDATE runs SET pending_cancel_expires_at = now()")
    await stores.runs.cancel(RunKey("default", "another"), CANCEL_REQUEST)
    await sweep(stores)
    left = await oracle.rows("SELECT run_id FROM runs ORDER BY run_id")
    assert [row["run_id"] for row in left] == ["another", "erased-lately"]


async def test_one_process_at_a_time_sweeps(stores: Stores, oracle: Oracle) -> None:
    """The first process that finds a due sweep runs it."""
    first, second = (PostgresRetention(stores.engines.work, DROPS) for _ in range(2))
    assert [
        await first.claim_sweep_and_merge_counters(600),
        await second.claim_sweep_and_merge_counters(600),
    ] == [True, False]
    await oracle.rows("UPDATE retention SET swept_until = swept_until - interval '601 s'")
    assert [
        await second.claim_sweep_and_merge_counters(600),
        await first.claim_sweep_and_merge_counters(600),
    ] == [True, False]


async def test_threads_go_with_their_messages_when_nothing_was_said_for_long(
    stores: Stores, oracle: Oracle
) -> None:
    """A thread with a running answer stays; the runs of its answers stay, or are marked."""
    for name in ("old", "young", "at-work"):
        await oracle.rows(
            """INSERT INTO threads (tenant_id, thread_id, kind, definition, inputs, tools,
                metadata, request_hash, created_at)
            VALUES ('default', %s, 'agent', '{}', '{}', '[]', '{}', '',
                now() - interval '2 mons')""",
            name,
        )
        await oracle.rows(
            """INSERT INTO messages (tenant_id, thread_id, message_id, role, run_id, ends,
                request_hash, created_at)
            VALUES ('default', %s, 'm', 'assistant', %s, '[]', 'h', now() - %s::interval)""",
            name,
            f"run-{name}",
            "1 day" if name == "young" else "40 days",
        )
    await stores.runs.accept(new_run("run-at-work"), worker_id="w1")
    await ended(stores, oracle, "run-young")
    await oracle.rows(AGE, 31, "run-young")

    await sweep(stores, threads=30, runs=30)

    left = await oracle.rows("SELECT thread_id, run_erased_at IS NOT NULL AS erased FROM messages")
    assert {row["thread_id"]: row["erased"] for row in left} == {"young": True, "at-work": False}
    assert await oracle.value("SELECT count(*) FROM threads") == 2


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


async def come(stores: Stores, oracle: Oracle, run_id: str, *, queued: bool) -> None:
    """End a run with five calls, queued before or not."""
    new = new_run(run_id)
    accepted = await stores.runs.accept(new, worker_id=None if queued else "w1")
    run = await stores.runs.claim(new.key, "w1") if queued else accepted.run
    assert run is not None
    graph = graph_with_calls(run_id, llm_calls=5)
    calls = records_of(graph, call_key="k", value="v" * 500, request={"prompt": "p" * 500})
    await stores.journal.finish(end_of(run, calls=calls))
    await oracle.rows(EVENT, "default", run_id)


async def come_and_go(database_url: str, oracle: Oracle, name: str) -> None:
    """End runs and delete them, half of them through the queue."""
    async with open_stores(database_url) as stores:  # statistics are flushed on close
        for number in range(2 * QUEUED):
            await come(stores, oracle, f"{name}-{number}", queued=number < QUEUED)
        await oracle.rows(DONE, QUEUED + OTHERS)
        await oracle.rows(JOBS, OTHERS)
        await oracle.rows(AGE, 31, f"{name}-%")
        await sweep(stores, runs=30)
    await oracle.rows("SELECT pg_stat_force_next_flush()")


@pytest.mark.proof
async def test_tables_do_not_grow_while_runs_come_and_go(
    database_url: str, stores: Stores, oracle: Oracle, vacuuming: None
) -> None:
    """The table settings make the server vacuum them in time, so their space is reused."""
    await come(stores, oracle, "kept", queued=False)
    for table in ("runs", "calls", "events"):
        await oracle.rows(STOCK.format(table))
    await oracle.rows(JOBS, 7000)
    await oracle.rows("ANALYZE")

    async def vacuumed() -> bool:
        found = await oracle.rows(VACUUMED)
        return all(row["times"] and row["dead"] <= MOST_DEAD[row["relname"]] for row in found)

    sizes = []
    for round_ in range(4):
        await come_and_go(database_url, oracle, str(round_))
        await eventually(vacuumed)
        sizes.append(await oracle.value(SIZE))
    sys.stdout.write(f"bytes after each round: {sizes}\n")
    assert await oracle.value("SELECT count(*) FROM runs") == 1501
    assert not any(row["by_hand"] for row in await oracle.rows(VACUUMED))
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 7000
    assert sizes[-1] <= 1.03 * sizes[1]  # each of the two rounds writes some 3 %
