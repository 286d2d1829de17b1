"""The cost of a run, a list and retention as the number of stored runs grows.

Databases of different sizes share one Postgres, each with its own service, and take turns. They are
filled with older copies of a real run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import psutil
import psycopg
from psycopg import sql

from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import Effort, Row, Side, interleaved
from bench.load import Request, put_load
from bench.rows.trivial_run import OUR_RUN
from bench.servers import another_database, database, process_at, service
from caseworker.features.retention.postgres import RUNS_AT_ONCE, PostgresRetention
from caseworker.main.features import DROPS
from caseworker.platform.postgres.connections import Patience
from caseworker.platform.postgres.engines import PoolSizes, open_engines
from caseworker.platform.postgres.migrating import upgrade

TABLES: Final = ("runs", "calls", "events", "run_costs")
AT_ONCE: Final = 20_000
IN_FLIGHT: Final = 16
DAYS: Final = 7
"""Days between the run and the newest of its copies."""

AGAINST_FEWEST: Final = Target(must=1.5, stretch=1.15)
LISTED: Final = 20
LIST_MS: Final = Target(must=5, stretch=2, unit="ms")
"""The target with 100,000 completed runs and no failed ones."""

IDS: Final = """
CREATE TEMP TABLE copies ON COMMIT DROP AS
SELECT overlay(overlay(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
    || substr(md5(n::text), 1, 20) PLACING '-' FROM 9 FOR 0) PLACING '-7' FROM 14 FOR 1) AS new_id,
    at
FROM generate_series(%(first)s::int, %(last)s::int) AS n,
    LATERAL (SELECT now() - make_interval(days => %(days)s, secs => %(of)s - n) AS at) AS moment
"""
"""SQL for time-ordered IDs, like those of the service, a second apart, oldest first."""

COPY: Final = "INSERT INTO {table} ({columns}) SELECT {values} FROM copies, {table} WHERE {the_run}"
COLUMNS: Final = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = %s
"""
MOVED: Final = ("created_at", "queued_at", "claimed_at", "started_at", "finished_at")
"""Timestamps of a run that are moved to the time in its ID."""

BACKENDS: Final = """
SELECT pid FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND (
    backend_type = 'client backend' AND datname = current_database() OR backend_type = 'walwriter'
)
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A service on its own database."""

    url: str
    """The URL of the database."""
    address: str
    """The address of the service."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure runs, sequential and in parallel, and the batches of a sweep."""
    sizes = (1_000, 10_000) if effort.quick else (1_000, 100_000, 1_000_000)
    requests = effort.choose(200, 60)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(database())
        every = {
            f"{size:,} runs stored": await stack.enter_async_context(_stored(server, size))
            for size in sizes
        }
        alone = await _take_turns(every, effort, lambda each: _p50(each, requests))
        costs = await _take_turns(every, effort, lambda each: _cost(each, requests))
        lists = {
            status: await _take_turns(every, effort, partial(_list, status=status))
            for status in ("completed", "failed")
        }
        swept = dict(list(every.items())[1:])
        batches = await _take_turns(swept, effort, _batch)
    return [
        _figure("Alone, p50", "ms", alone),
        _figure(f"CPU of a run, {IN_FLIGHT} in flight, service and Postgres", "ms", costs),
        *(_list_figure(status, sides) for status, sides in lists.items()),
        Figure(title=f"Clearing away {RUNS_AT_ONCE} runs", unit="ms", sides=batches),
    ]


async def _take_turns(
    every: dict[str, Stored], effort: Effort, side: Callable[[Stored], Side]
) -> dict[str, Samples]:
    return await interleaved({name: side(each) for name, each in every.items()}, effort.rounds)


def _figure(title: str, unit: str, sides: dict[str, Samples]) -> Figure:
    (_, fewest), *others = sides.items()
    checks = [
        Check(what=f"with {name}", value=ratio(samples, fewest), target=AGAINST_FEWEST)
        for name, samples in others
    ]
    return Figure(title=title, unit=unit, sides=sides, checks=checks)


def _list_figure(status: str, sides: dict[str, Samples]) -> Figure:
    (_, middle, *_) = sides.items()
    check = Check(what=f"with {middle[0]}", value=middle[1].median, target=LIST_MS)
    title = f"GET /runs?status={status}&limit={LISTED}, p50"
    return Figure(title=title, unit="ms", sides=sides, checks=[check])


@asynccontextmanager
async def _stored(server: str, size: int) -> AsyncIterator[Stored]:
    url = another_database(server, f"stored_{size}")
    upgrade(url)
    async with service(url) as address:
        await put_load(address, OUR_RUN, connections=1, requests=1)
        await asyncio.to_thread(_fill, url, size)
        yield Stored(url, address)


def _fill(url: str, size: int) -> None:
    """Copy the only run of a database ``size`` times."""
    with psycopg.connect(url) as connection:
        (run_id,) = connection.execute("SELECT run_id FROM runs").fetchone() or ("",)
        copies = [_copy(connection, table, run_id) for table in TABLES]
        connection.commit()
        for first in range(0, size, AT_ONCE):
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute("SET LOCAL synchronous_commit = off")
            last = min(first + AT_ONCE, size) - 1
            connection.execute(IDS, {"first": first, "last": last, "of": size, "days": DAYS})
            for copy in copies:
                connection.execute(copy)
            connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _copy(connection: psycopg.Connection, table: str, run_id: str) -> sql.Composed:
    columns = [name for (name,) in connection.execute(COLUMNS, [table])]
    moved = dict.fromkeys(MOVED if table in ("runs", "run_costs") else (), sql.SQL("at"))
    values = [
        {**moved, "run_id": sql.SQL("new_id")}.get(name, sql.Identifier(name)) for name in columns
    ]
    return sql.SQL(COPY).format(
        table=sql.Identifier(table),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join(values),
        the_run=sql.SQL("run_id = {}").format(run_id),
    )


def _p50(stored: Stored, requests: int) -> Side:
    async def measure() -> float:
        load = await put_load(stored.address, OUR_RUN, connections=1, requests=requests // 4)
        return load.milliseconds.median

    return measure


def _list(stored: Stored, *, status: str) -> Side:
    request = Request(method="GET", path=f"/runs?status={status}&limit={LISTED}")

    async def measure() -> float:
        load = await put_load(stored.address, request, connections=1, requests=20)
        return load.milliseconds.median

    return measure


def _cost(stored: Stored, requests: int) -> Side:
    async def measure() -> float:
        before = _cpu_seconds(stored)
        await put_load(stored.address, OUR_RUN, connections=IN_FLIGHT, requests=requests)
        after = _cpu_seconds(stored)
        spent = sum(seconds - before.get(pid, 0) for pid, seconds in after.items())
        return 1e3 * spent / (requests // IN_FLIGHT * IN_FLIGHT)

    return measure


def _batch(stored: Stored) -> Side:
    async def measure() -> float:
        engines = open_engines(
            stored.url,
            PoolSizes(work=1, control=1, patience=Patience(connect_seconds=10, lock_ms=5_000)),
        )
        try:
            retention = PostgresRetention(engines.work, DROPS)
            began = asyncio.get_running_loop().time()
            if not await retention.drop("default", "runs", days=DAYS - 1):
                raise RuntimeError("there were too few runs to clear away")
            return 1e3 * (asyncio.get_running_loop().time() - began)
        finally:
            await engines.dispose()

    return measure


def _cpu_seconds(stored: Stored) -> dict[int, float]:
    """Return the CPU seconds used so far by the service of a database and its backends."""
    processes = [process_at(stored.address)]
    with psycopg.connect(stored.url) as connection:
        processes += [psutil.Process(pid) for (pid,) in connection.execute(BACKENDS)]
    times = {process.pid: process.cpu_times() for process in processes}
    return {pid: each.user + each.system for pid, each in times.items()}


ROW: Final = Row(title="Runs on a database that keeps many", peers=(), measure=measure)
