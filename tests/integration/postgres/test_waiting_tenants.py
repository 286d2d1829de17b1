"""A claim finds the next of thousands of waiting tenants, and forgets none of them."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.runs.postgres.run_statements import CLAIM
from caseworker.runs.quotas import Quota
from caseworker.runs.run import RunKey
from tests.support.limits import store_limits
from tests.support.stores import (
    CANCEL_REQUEST,
    Oracle,
    Stores,
    blocks_read,
    end_of,
    new_run,
    open_oracle,
    open_stores,
    recovery_of,
)

NEXT = "SELECT run_id, tenant_id FROM caseworker_claim('w1', NULL, NULL, NULL, '{}', true, false)"
CLAIM_BY_SEARCH = "SELECT run_id FROM caseworker_claim('w1', NULL, NULL, NULL, '{}', true)"
"""The function of an earlier release, which searches all tenants."""
FILL = """
INSERT INTO runs (
    tenant_id, run_id, kind, request, request_hash, metadata, status, priority, queued_at
)
SELECT 't' || t, 'r' || n, 'graph', '{"kind": "graph"}', 'h', '{}', 'queued',
    (CASE WHEN n = 2 THEN 5 ELSE 0 END), clock_timestamp() + make_interval(secs => %s)
FROM generate_series(1, %s::integer) n, generate_series(1, %s::integer) t
ORDER BY md5(t || '/' || n)
"""
RUNNING = """
INSERT INTO runs (
    tenant_id, run_id, kind, request, request_hash, metadata, status, worker_id, fence, started_at,
    claimed_at
)
SELECT 't' || t, 'running', 'graph', '{"kind": "graph"}', 'h', '{}', 'running', 'w0', 1, now(),
    now()
FROM generate_series(1, %s::integer) t
"""
LIMIT_ALL = """
INSERT INTO quotas (tenant_id, max_running)
SELECT 't' || t, 1 FROM generate_series(1, %s::integer) t
"""
END = "UPDATE runs SET status = 'cancelled', finished_at = now(), worker_id = NULL WHERE {}"
ROWS = "SELECT count(*) FROM waiting_tenants"


async def fill(oracle: Oracle, tenants: int, runs: int = 2, delay_seconds: int = 0) -> None:
    await oracle.rows(FILL, delay_seconds, runs, tenants)


async def claimed(oracle: Oracle) -> tuple[str, str] | None:
    rows = await oracle.rows(NEXT)
    return (rows[0]["tenant_id"], rows[0]["run_id"]) if rows else None


@pytest.mark.parametrize("ends", [False, True])
async def test_thousands_of_tenants_take_turns_whatever_the_order_of_arrival(
    oracle: Oracle, ends: bool
) -> None:
    """Each gets its first run before any gets a second, whether or not these runs end.

    The run with the highest priority is a tenant's first. Tenants that queue more runs during the
    claims have no advantage.
    """
    tenants = 2000
    await fill(oracle, tenants, runs=3)
    turns: list[Counter[str]] = []
    for turn in range(3):
        turns.append(Counter())
        for number in range(tenants):
            tenant, run_id = await claimed(oracle) or ("", "")
            assert (run_id == "r2") == (turn == 0), (tenant, run_id)
            turns[-1][tenant] += 1
            if number % 50 == 0:
                late = FILL.replace("'r' || n", f"'late-{turn}-{number}'")
                await oracle.rows(late, 0, 1, 3)
            if ends:
                await oracle.rows(END.format("tenant_id = %s AND run_id = %s"), tenant, run_id)

    assert [len(turn) for turn in turns] == [tenants] * 3


async def test_a_claim_reads_few_of_the_waiting_tenants(oracle: Oracle) -> None:
    """It reads as little among tenants at their limit, once a first claim has removed them.

    A claim for which a plan is made reads more.
    """
    await fill(oracle, 5000)
    await oracle.rows("VACUUM ANALYZE runs")
    await oracle.rows("VACUUM ANALYZE waiting_tenants")
    asked: tuple[Any, ...] = ("w2", None, None, None, [], False, None)
    assert min([await blocks_read(oracle, CLAIM, asked) for _ in range(3)]) < 700

    await oracle.rows(RUNNING, 5000)
    await oracle.rows(LIMIT_ALL, 5000)
    assert await claimed(oracle) is None
    assert min([await blocks_read(oracle, CLAIM, asked) for _ in range(3)]) < 100
    read = []
    for tenant in ("t4321", "t7", "t99"):
        await oracle.rows(END.format("tenant_id = %s AND run_id = 'running'"), tenant)
        read.append(await blocks_read(oracle, CLAIM, asked))
        owned = "SELECT EXISTS (SELECT FROM runs WHERE worker_id = 'w2' AND tenant_id = %s)"
        assert await oracle.value(owned, tenant)
    assert min(read) < 300, read


async def test_tenants_that_cannot_start_a_run_leave_and_come_back(
    stores: Stores, oracle: Oracle
) -> None:
    """A tenant comes back with a queued run, an ended run, another quota, or a start time."""
    quotas = PostgresQuotas(stores.engines.work, Quota())
    await quotas.put("default", Quota(max_running=1))
    running = (await stores.runs.accept(new_run("r1"), worker_id="w1")).run
    for run_id in ("r2", "r3", "r4"):
        await stores.runs.accept(new_run(run_id), worker_id=None)
    assert await claimed(oracle) is None
    assert await oracle.value(ROWS) == 0

    await stores.journal.finish(end_of(running))
    assert await claimed(oracle) == ("default", "r2")
    assert await claimed(oracle) is None
    await quotas.put("default", Quota(max_running=2))
    assert await claimed(oracle) == ("default", "r3")
    assert await claimed(oracle) is None
    await stores.runs.cancel(RunKey("default", "r4"), CANCEL_REQUEST)
    await quotas.put("default", Quota(max_running=9))
    assert await claimed(oracle) is None
    assert await oracle.value(ROWS) == 0

    later = new_run("later")
    at = datetime.now(UTC) + timedelta(hours=1)
    later = replace(later, request=replace(later.request, start_at=at))
    await stores.runs.accept(later, worker_id=None)
    assert await claimed(oracle) is None
    assert await oracle.value("SELECT due_at FROM waiting_tenants") == at
    await oracle.rows("UPDATE runs SET queued_at = now() WHERE run_id = 'later'")
    assert await claimed(oracle) == ("default", "later")


async def test_delayed_runs_of_other_tenants_are_not_read(oracle: Oracle) -> None:
    """A row for each start time waits until then."""
    await fill(oracle, 3000, runs=1, delay_seconds=3600)
    await oracle.rows(FILL.replace("'t' || t", "'now'"), 0, 2, 1)
    await oracle.rows("VACUUM ANALYZE runs")
    asked: tuple[Any, ...] = ("w2", None, None, None, [], False, None)
    read = [await blocks_read(oracle, CLAIM, asked) for _ in range(4)]

    assert min(read) < 100, read
    assert await oracle.value("SELECT count(*) FROM runs WHERE worker_id = 'w2'") == 2
    assert await oracle.value(ROWS) == 3000


@pytest.mark.parametrize("change", ["end", "queue", "quota"])
@pytest.mark.parametrize("first", ["change", "claim"])
async def test_a_tenant_whose_run_may_start_after_an_open_transaction_is_not_forgotten(
    database_url: str, oracle: Oracle, change: str, first: str
) -> None:
    """A claim examines the tenant while one of the two transactions is open."""
    await fill(oracle, 1, runs=0 if change == "queue" else 1)
    await oracle.rows(RUNNING, 1)
    await oracle.rows("INSERT INTO quotas (tenant_id, max_running) VALUES ('t1', 1)")
    statement = {
        "end": END.format("run_id = 'running'"),
        "queue": FILL % (0, 1, 1),
        "quota": "UPDATE quotas SET max_running = 2",
    }[change]
    if change == "queue":
        await oracle.rows("UPDATE quotas SET max_running = 2")
        await oracle.rows("INSERT INTO waiting_tenants (tenant_id, due_at) VALUES ('t1', now())")
    async with open_oracle(database_url) as one, open_oracle(database_url) as other:
        changing, claiming = (one, other)
        if first == "change":
            async with changing.connection.transaction():
                await changing.rows(statement)
                assert await claimed(claiming) is None
        else:
            async with claiming.connection.transaction():
                assert await claimed(claiming) is None
                await changing.rows(statement)

    assert await claimed(oracle) == ("t1", "r1")


async def test_a_changed_default_quota_is_noticed_at_the_start_of_a_process(
    database_url: str, oracle: Oracle
) -> None:
    """The runs of tenants without a quota may start, although no row has changed."""
    none = store_limits(quota=Quota(max_running=0))
    async with open_stores(database_url, none) as stores:
        await stores.runs.accept(new_run("r1"), worker_id=None)
        assert await stores.runs.claim(None, "w1") is None
    async with open_stores(database_url) as stores:
        assert await stores.runs.claim(None, "w1") is None
        await recovery_of(stores).recover()
        assert await stores.runs.claim(None, "w1") is not None


@asynccontextmanager
async def sessions(url: str, count: int) -> AsyncIterator[list[psycopg.AsyncConnection[Any]]]:
    opened = [await psycopg.AsyncConnection.connect(url) for _ in range(count)]
    for session in opened:
        await session.execute("SET lock_timeout = '20ms'")
        await session.commit()
    try:
        yield opened
    finally:
        for session in opened:
            await session.close()


def drawn(rng: random.Random, number: int) -> str:
    """Return a statement of a process or a client."""
    tenant = f"t{rng.randint(1, 6)}"
    some = "SELECT run_id FROM runs WHERE tenant_id = '{}' AND status = '{}' LIMIT 1"
    some = f"run_id = ({some} FOR UPDATE SKIP LOCKED) AND tenant_id = '{tenant}'"
    key = rng.choice(["NULL, NULL", "'k', 1", "'l', 2"])
    queued = (
        "INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status, "  # noqa: S608
        "queued_at, priority, concurrency_key, concurrency_limit) VALUES "
        f"('{tenant}', 'r{number}', 'graph', '{{}}', 'h', '{{}}', 'queued', clock_timestamp() + "
        f"interval '{rng.choice([0, 0, 0, 5])} milliseconds', {rng.randint(0, 2)}, {key})"
    )
    released = "status = 'queued', worker_id = NULL, queued_at = clock_timestamp()"
    limit = rng.choice(["NULL", "0", "1", "3"])
    return rng.choices(
        [
            queued,
            NEXT,
            CLAIM_BY_SEARCH,
            END.format(some.format(tenant, "running")),
            END.format(some.format(tenant, "queued")),
            f"UPDATE runs SET {released} WHERE {some.format(tenant, 'running')}",  # noqa: S608
            f"INSERT INTO quotas (tenant_id, max_running) VALUES ('{tenant}', {limit}) "  # noqa: S608
            "ON CONFLICT (tenant_id) DO UPDATE SET max_running = excluded.max_running",
            f"DELETE FROM quotas WHERE tenant_id = '{tenant}'",  # noqa: S608
        ],
        weights=[6, 9, 1, 5, 1, 2, 1, 1],
    )[0]


@pytest.mark.parametrize("seed", range(6))
async def test_no_run_that_may_start_is_forgotten_in_any_order_of_commits(
    database_url: str, oracle: Oracle, seed: int
) -> None:
    """Transactions overlap and some are rolled back; then a search of all tenants finds no more."""
    rng, open_ones = random.Random(seed), Counter[int]()
    async with sessions(database_url, 5) as some:
        for number in range(400):
            index = rng.randrange(len(some))
            session = some[index]
            if open_ones[index] and rng.random() < 0.6:
                await (session.rollback() if rng.random() < 0.2 else session.commit())
                open_ones[index] = 0
                continue
            try:
                await session.execute(drawn(rng, number).encode())
                open_ones[index] += 1
            except LockNotAvailable:
                await session.rollback()
                open_ones[index] = 0
        for session in some:
            await session.commit()
    await oracle.rows("SELECT pg_sleep(0.01)")
    count = 0
    while await claimed(oracle) is not None:
        count += 1

    assert await oracle.rows(CLAIM_BY_SEARCH) == []
    assert await oracle.value("SELECT count(*) FROM runs WHERE status = 'running'") > 0
    assert await oracle.value(f"{ROWS} WHERE due_at <= now()") == 0
