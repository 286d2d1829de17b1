"""The work of a service without a request: claims, retention, recovery, schedules, chats."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, LiteralString

import psutil
import psycopg
from psycopg import sql

from bench.figures import Samples
from bench.growth.fill import BOOTSTRAP, LARGE, TABLES
from bench.growth.measuring import Line, alternating, timed
from bench.growth.routes import COMPLETED, Place
from bench.load import connected, put_load
from bench.servers import BACKENDS, process_at, service
from caseworker.features.retention.postgres import RUNS_AT_ONCE, PostgresRetention
from caseworker.main.features import DROPS
from caseworker.platform.postgres.engines import transaction
from tests.support.stores import Stores, new_run, open_stores, recovery_of

WAITING_TENANTS: Final = (1, 200, 5_000)
CLAIMS: Final = 20
NEVER_DAYS: Final = 3_650
BATCH_DAYS: Final = 60
BATCHES: Final = 4
FEW_THREADS: Final = 6
"""Size of a batch of threads: a tenant of a small database has few old ones."""
DUE_SCHEDULES: Final = 1_000
IDLE_SECONDS: Final = 10.0
IN_FLIGHT: Final = 16
RUN: Final = {
    "kind": "graph",
    "input": "1",
    "graph": {
        "steps": [
            {
                "id": "s",
                "type": "tool",
                "data": {"tool": "calculator", "args": {"expression": "1 + 1"}},
            }
        ],
        "edges": [],
    },
}


async def start(urls: Sequence[str], *, brief: bool = False) -> list[Line]:
    """Measure the time from the start of the service until it listens."""

    async def started(url: str) -> float:
        began = time.perf_counter()
        async with service(url, settings={"AUTH_BOOTSTRAP_KEY": BOOTSTRAP}):
            return 1e3 * (time.perf_counter() - began)

    works = [partial(started, url) for url in urls]
    return [await alternating("start of the service", works, 1 if brief else 3, warm_up=not brief)]


async def with_service(
    urls: Sequence[str], places: Sequence[Place], *, brief: bool = False
) -> list[Line]:
    """Measure loops of a running service; ``brief`` takes less time, and its values vary."""
    lines = [
        await alternating(
            f"CPU of a run, {IN_FLIGHT} in flight, service and Postgres",
            [partial(_cost, place) for place in places],
            1 if brief else 5,
        )
    ]
    lines += await _idle(places, seconds=1.0 if brief else IDLE_SECONDS)
    title = f"a schedule of {DUE_SCHEDULES:,} due in one minute, or of as many as are stored"
    return [*lines, await alternating(title, [partial(_fire, url) for url in urls], 1, warm_up=0)]


async def without_service(urls: Sequence[str], *, brief: bool = False) -> list[Line]:
    """Measure loops that a running service would disturb; ``brief`` takes less time."""
    async with AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(open_stores(url)) for url in urls]
        lines = await _retention(sides)
        recoveries = [recovery_of(stores) for stores in sides]
        lines.append(
            await alternating("recovery sweep", [timed(each.recover) for each in recoveries], 10)
        )
        for tenants in WAITING_TENANTS[: 2 if brief else None]:
            for stores in sides:
                await _enqueue(stores, tenants)
            title = f"claim with {tenants:,} waiting tenants"
            works = [timed(partial(_claim, stores)) for stores in sides]
            lines.append(await alternating(title, works, CLAIMS, warm_up=12))
        for url in urls:
            await asyncio.to_thread(_remove_waiting, url)
    return lines


async def chat(place: Place, turns: int) -> Line:
    """Measure the turns of one chat: the first tenth and the last one, as the two sides."""
    thread = {"agent": {"name": "talker", "prompt": "Answer.", "model": {"name": "turns-1"}}}
    async with connected(place.address) as connection:
        _, body = await connection.send(place.request("POST", "/threads", thread))
        path = f"/threads/{json.loads(body)['thread_id']}/messages"
        taken = []
        for turn in range(turns):
            message = {"content": f"{turn} " + "word " * 200}
            seconds, _ = await connection.send(place.request("POST", path, message, **COMPLETED))
            taken.append(1e3 * seconds)
    tenth = max(1, turns // 10)
    first, last = Samples(tuple(taken[1 : tenth + 1])), Samples(tuple(taken[-tenth:]))
    title = f"a turn of a chat ({place.tenant}): turns 2 to {tenth + 1}, last {tenth} of {turns}"
    return Line(title, (first, last))


async def _cost(place: Place) -> float:
    request = place.request("POST", "/runs", RUN, **COMPLETED)
    before = await asyncio.to_thread(_cpu_seconds, place)
    requests = 20 * IN_FLIGHT
    await put_load(place.address, request, connections=IN_FLIGHT, requests=requests)
    after = await asyncio.to_thread(_cpu_seconds, place)
    return 1e3 * sum(each - before.get(pid, 0) for pid, each in after.items()) / requests


def _cpu_seconds(place: Place) -> dict[int, float]:
    """Return the CPU seconds used so far by a service and the backends of its database."""
    processes = [process_at(place.address)]
    with psycopg.connect(place.url) as connection:
        processes += [psutil.Process(pid) for (pid,) in connection.execute(BACKENDS)]
    times = {process.pid: process.cpu_times() for process in processes}
    return {pid: each.user + each.system for pid, each in times.items()}


_ACTIVITY: Final = """
SELECT xact_commit + xact_rollback, blks_hit + blks_read FROM pg_stat_database
WHERE datname = current_database()
"""


async def _idle(places: Sequence[Place], *, seconds: float) -> list[Line]:
    values: list[tuple[float, float, float]] = []
    for place in places:
        await asyncio.sleep(2)  # until the work of the last requests has ended
        before = await asyncio.to_thread(_activity, place)
        await asyncio.sleep(seconds)
        after = await asyncio.to_thread(_activity, place)
        changes = (end - begin for begin, end in zip(before, after, strict=True))
        transactions, blocks, cpu = (change / seconds for change in changes)
        values.append((transactions, blocks, cpu))
    units = ("transactions/s", "blocks of 8 KiB/s", "ms/s")
    titles = ("idle, transactions", "idle, blocks read", "idle, CPU of service and backends")
    return [
        Line(title, (Samples((values[0][n],)), Samples((values[1][n],))), unit=unit)
        for n, (title, unit) in enumerate(zip(titles, units, strict=True))
    ]


def _activity(place: Place) -> tuple[float, float, float]:
    with psycopg.connect(place.url) as connection:
        transactions, blocks = connection.execute(_ACTIVITY).fetchone() or (0, 0)
    return transactions, blocks, 1e3 * sum(_cpu_seconds(place).values())


_DUE: Final[LiteralString] = """
WITH due AS (
    UPDATE schedules SET next_at = date_trunc('second', now() + interval '3 s')
    WHERE (tenant_id, name) IN (
        SELECT tenant_id, name FROM schedules WHERE NOT paused AND last_at IS NULL
        ORDER BY name LIMIT %(limit)s
    ) RETURNING tenant_id, name, next_at
), jobs AS (
    INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, scheduled_at)
    SELECT 'schedules', 'fire_schedule', 'schedule/' || tenant_id || '/' || name || '/'
        || extract(epoch FROM next_at)::bigint,
        jsonb_build_object('tenant', tenant_id, 'name', name), next_at FROM due
    WHERE EXISTS (SELECT FROM procrastinate_jobs WHERE queue_name = 'schedules')
)
SELECT count(*), max(next_at) FROM due
"""
_NOT_FIRED: Final[LiteralString] = """
SELECT count(*), extract(epoch FROM clock_timestamp() - %(due)s)::float8 FROM schedules
WHERE next_at <= %(due)s
"""


async def _fire(url: str) -> float | None:
    """Return the milliseconds of each of many schedules that are due at the same time."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        found = await connection.execute(_DUE, {"limit": DUE_SCHEDULES})
        number, due = await found.fetchone() or (0, None)
        if not number:
            return None
        until = time.monotonic() + 120
        while time.monotonic() < until:
            missing, seconds = await (
                await connection.execute(_NOT_FIRED, {"due": due})
            ).fetchone() or (0, 0.0)
            if not missing:
                return float(1e3 * seconds / number)
            await asyncio.sleep(0.05)
    raise TimeoutError(f"{missing} of {number} schedules did not fire in two minutes")


async def _retention(sides: Sequence[Stores]) -> list[Line]:
    stores = [PostgresRetention(each.engines.work, DROPS) for each in sides]
    lines = [
        await alternating(
            "retention sweep that finds nothing, all tenants",
            [timed(partial(_sweep, each)) for each in stores],
            2,
        )
    ]
    records = [*sorted(DROPS.keys() - {"runs"}), "runs"]
    for record in records:
        limit = FEW_THREADS if record == "threads" else RUNS_AT_ONCE
        works = [timed(partial(_drop, each, record, limit)) for each in sides]
        title = f"retention, a batch of {limit} {record}"
        lines.append(await alternating(title, works, BATCHES, warm_up=0))
    return lines


async def _drop(stores: Stores, record: str, limit: int) -> bool:
    batch = {"tenant": LARGE, "record": record, "days": BATCH_DAYS, "limit": limit}
    async with transaction(stores.engines.work) as connection:
        return await DROPS[record](connection, batch)


async def _sweep(retention: PostgresRetention) -> None:
    days = await retention.days_by_tenant(dict.fromkeys(DROPS, NEVER_DAYS))
    for tenant, records in days.items():
        for record in records:
            await retention.drop(tenant, record, days=NEVER_DAYS)
    await retention.drop_pending_cancels()


async def _enqueue(stores: Stores, tenants: int) -> None:
    """Queue one run for each of ``tenants`` new tenants, and enough runs for all claims.

    Both sides may be one database.
    """
    runs = range(max(tenants, 2 * (CLAIMS + 12)))
    limit = asyncio.Semaphore(50)

    async def accept(number: int) -> None:
        async with limit:
            run = new_run(f"waits-{tenants}-{number}", tenant=f"waits-{number % tenants:05}")
            await stores.runs.accept(run, worker_id=None)

    async with asyncio.TaskGroup() as group:
        for number in runs:
            group.create_task(accept(number))


async def _claim(stores: Stores) -> None:
    if await stores.runs.claim(None, "bench") is None:
        raise RuntimeError("no run was queued")


def _remove_waiting(url: str) -> None:
    with psycopg.connect(url) as connection:
        for table, *_ in connection.execute(TABLES).fetchall():
            delete = sql.SQL("DELETE FROM {} WHERE tenant_id LIKE 'waits-%'")
            connection.execute(delete.format(sql.Identifier(table)))
        connection.execute("DELETE FROM procrastinate_jobs WHERE queueing_lock LIKE 'waits-%'")
