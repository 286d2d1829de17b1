"""Kept costs and their sums equal the calls of the runs that exist, after every change."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json

from caseworker.features.erasure.postgres import PostgresErasure, Subject
from caseworker.features.expiry import drop_runs
from caseworker.features.spend.postgres.spend import PostgresCosts, PostgresSpend
from caseworker.features.spend.postgres.statistics import PeriodLength, PostgresStatistics
from caseworker.platform.postgres.engines import transaction
from caseworker.platform.postgres.schema_version import upgrade
from caseworker.runs.ports import LateResult
from caseworker.runs.postgres.erasure import delete_runs
from tests.support.database import TestServer
from tests.support.spend_oracle import spend_from_calls, statistics_from_runs
from tests.support.stores import (
    Oracle,
    Stores,
    end_of,
    graph_with_calls,
    new_run,
    open_oracle,
    open_stores,
    records_of,
)

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)
"""Runs are accepted from two days before this time until two days after it, over a month's end."""

BEFORE = "20261130_1300"
"""The revision before the one that keeps costs."""

BEFORE_WAITING = "20261130_1350"
"""The revision before the one that keeps the costs of waiting runs."""
KEPT_WAITING = "SELECT sum(runs)::integer FROM cost_sums WHERE span = 'day' AND status = 'waiting'"

ACCEPT = """
INSERT INTO runs (tenant_id, run_id, kind, status, request, request_hash, metadata, created_at,
    queued_at)
VALUES (%s, %s, %s, 'queued', %s, 'h', %s, %s, now())
"""
CALL = """
INSERT INTO calls (tenant_id, run_id, seq, status, charge, node, brief)
VALUES (%s, %s, %s, 'running', %s, %s, %s)
"""
START = """
UPDATE runs SET status = 'running', worker_id = 'w', fence = fence + 1,
    started_at = coalesce(started_at, %s)
WHERE tenant_id = %s AND run_id = %s AND status <> 'running'
"""
REQUEUE = """
UPDATE runs SET status = 'queued', worker_id = NULL
WHERE tenant_id = %s AND run_id = %s AND status = 'running'
"""
MOVE = """
UPDATE runs SET status = %s, worker_id = NULL WHERE tenant_id = %s AND run_id = %s
"""
END = """
UPDATE runs SET status = %s, worker_id = NULL, finished_at = %s, stop = %s, usage = '{}'
WHERE tenant_id = %s AND run_id = %s
"""
LATE = "UPDATE runs SET usage = '{\"late\": true}' WHERE tenant_id = %s AND run_id = %s"
SETTLE = """
UPDATE calls SET status = 'success', charge = charge - 'cost_usd_estimated',
    brief = replace(brief::text, '"f"', '"x"')::json
WHERE tenant_id = %s AND run_id = %s AND status = 'running'
"""
WITHOUT_COSTS = "SET LOCAL session_replication_role = replica"
"""Ends runs as processes did before costs were kept: triggers do not run."""

REQUESTS = (
    ("case", {"kind": "case", "input": "2+2?"}),
    ("agent", {"kind": "agent", "graph_ref": {"name": "clerk"}}),
    ("agent", {"kind": "agent", "graph_ref": {"name": "judge"}}),
    ("graph", {"kind": "graph", "graph_ref": {"name": "no agent"}}),
    ("graph", {"kind": "graph", "chat": {"agent": {"name": "clerk"}}}),
    (
        "external",
        {"kind": "external", "graph": {"steps": [{"data": {"external": {"name": "outside"}}}]}},
    ),
    ("external", {"kind": "external", "graph": {"steps": [{"data": {"external": {}}}]}}),
)
ENDS = (
    ("completed", None),
    ("failed", {"kind": "error", "error_class": "ToolFailedError"}),
    ("halted", {"kind": "budget", "dimension": "tokens"}),
    ("cancelled", {"kind": "cancelled"}),
)


@dataclass
class ChangingRuns:
    """Runs that change at random."""

    stores: Stores
    oracle: Oracle
    draw: random.Random
    alive: list[tuple[str, str]] = field(default_factory=list)
    """Tenant and ID of the runs that have not ended."""
    waiting: set[tuple[str, str]] = field(default_factory=set)
    """Those of them that wait."""
    waited: int = 0
    """Number of times that a run began to wait."""
    ended: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection for changes."""
        return self.oracle.connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[bool]:
        """Use a transaction, which is rolled back at its end once in five times.

        Yields whether it commits.
        """
        commits = self.draw.random() < 0.8
        async with self.connection.transaction(force_rollback=not commits):
            yield commits

    def instant(self) -> datetime:
        """Return the time of an acceptance, often exactly on an hour or day."""
        at = NOON + timedelta(seconds=self.draw.uniform(-48, 48) * 3600)
        match self.draw.randrange(4):
            case 0:
                return at.replace(minute=0, second=0, microsecond=0)
            case 1:
                return at.replace(hour=0, minute=0, second=0, microsecond=0)
            case _:
                return at

    async def accept(self) -> None:
        """Accept a run."""
        self.count += 1
        key = self.draw.choice("ab"), f"run-{self.count}"
        kind, request = self.draw.choice(REQUESTS)
        metadata = self.draw.choice(({}, {"team": "red"}, {"team": "blue"}, {"team": 7}))
        values = (*key, kind, Json(request), Json(metadata), self.instant())
        async with self.transaction() as commits:
            await self.connection.execute(ACCEPT, values)
            if self.draw.random() < 0.8:
                await self.connection.execute(START, (NOON, *key))
                for seq in range(self.draw.randrange(4)):
                    await self.call(key, seq)
            if self.draw.random() < 0.3:
                await self.connection.execute(REQUEUE, key)
        if commits:
            self.alive.append(key)

    async def call(self, key: tuple[str, str], seq: int) -> None:
        """Write a call: of a model or a tool, with and without charges, in either form."""
        draw = self.draw
        model = draw.choice(("small", "big", None))
        cost = f"0.{draw.randrange(1, 10**6):06d}"
        brief, full = draw.choice(
            (
                ({"m": 1, "t": 15, "c": cost}, {"llm_calls_small": 1, "tokens": 15}),
                ({"b": 2, "t": 40, "c": cost, "f": cost}, {"llm_calls_big": 2, "cost_usd": cost}),
                ({"c": cost, "f": cost}, {"cost_usd": cost, "cost_usd_estimated": cost}),
                ({"m": 0, "b": 0}, {"llm_calls_small": 0}),
                ({"t": 3}, {"tokens": 3}),
                ({"o": 1}, {"tool_calls": 1}),
                ({}, {}),
            )
        )
        if draw.random() < 0.7:
            charge, node = Json({}), None
            list_ = Json(["llm", "x", 1, 2, 1, model, 0, 1, 1, brief, {}])
        else:
            charge, node, list_ = Json(full), Json({"model": model}), None
        await self.connection.execute(CALL, (*key, seq, charge, node, list_))

    async def end(self, *, waiting: bool = True) -> None:
        """End a run, some without having started, with a call after or before the update."""
        if not (keys := [key for key in self.alive if waiting or key not in self.waiting]):
            return
        key = self.draw.choice(keys)
        status, stop = self.draw.choice(ENDS)
        began = NOON - timedelta(seconds=self.draw.random() * 100)
        async with self.transaction() as commits:
            if status in ("completed", "failed") or self.draw.random() < 0.5:
                if key in self.waiting:
                    await self.connection.execute(MOVE, ("queued", *key))
                await self.connection.execute(START, (began, *key))
            await self.call(key, 10)
            over = began + timedelta(seconds=self.draw.random() * 1e4)
            await self.connection.execute(END, (status, over, stop and Json(stop), *key))
            await self.call(key, 11)
        if commits:
            self.alive.remove(key)
            self.waiting.discard(key)
            self.ended.append(key)

    async def wait(self) -> None:
        """Let a run wait, or let it stop waiting, with a call after or before the update."""
        if not self.alive:
            return
        key = self.draw.choice(self.alive)
        seq = 30 + self.draw.randrange(10**6)
        async with self.transaction() as commits:
            if key in self.waiting:
                await self.connection.execute(MOVE, ("queued", *key))
                if self.draw.random() < 0.5:
                    await self.connection.execute(START, (NOON, *key))
                    await self.call(key, seq)
            else:
                await self.connection.execute(START, (NOON, *key))
                await self.connection.execute(MOVE, ("waiting", *key))
                await self.call(key, seq)
        if commits:
            self.waiting ^= {key}
            self.waited += key in self.waiting

    async def end_without_costs(self) -> None:
        """End some runs as before the migration, unless such runs are left, and look for them."""
        if await self.oracle.value("SELECT count(*) FROM cost_backfill"):
            return
        async with self.connection.transaction():
            await self.connection.execute(WITHOUT_COSTS)
            for _ in range(4):
                await self.end(waiting=False)
        await PostgresCosts(self.stores.engines.work).find_gaps()

    async def late(self) -> None:
        """Settle calls of a run that has ended or waits, and write another one."""
        if not (keys := [*self.ended, *sorted(self.waiting)]):
            return
        key = self.draw.choice(keys)
        async with self.transaction():
            await self.connection.execute(LATE, key)
            await self.connection.execute(SETTLE, key)
            await self.call(key, 20 + self.draw.randrange(10**6))

    async def erase(self) -> None:
        """Erase a run: by the service, by an operator's SQL, or by an earlier release."""
        if not self.ended:
            return
        tenant, run_id = key = self.draw.choice(self.ended)
        if self.draw.random() < 0.5:
            async with transaction(self.stores.engines.work) as connection:
                await delete_runs(connection, tenant, [run_id])
            commits = True
        else:
            async with self.transaction() as commits:
                delete = "DELETE FROM runs WHERE tenant_id = %s AND run_id = %s"
                await self.connection.execute(delete, key)
        if commits:
            self.ended.remove(key)

    async def keep(self) -> None:
        """Store and add up costs, in batches of a few, or lose such a batch in a crash."""
        async with self.transaction():
            await self.connection.execute("SELECT caseworker_fill_costs(2)")
        async with self.transaction():
            await self.connection.execute("SELECT caseworker_sum_costs(10)")

    async def step(self) -> None:
        """Make a change."""
        (change,) = self.draw.choices(
            (
                *(self.accept, self.end, self.wait, self.late),
                *(self.erase, self.keep, self.end_without_costs),
            ),
            (10, 7, 6, 2, 2, 4, 1),
        )
        await change()

    async def check(self) -> None:
        """Compare all groups, periods and some ranges with the calls."""
        spend = PostgresSpend(self.stores.engines.work, self.stores.engines.sums)
        some = sorted((self.instant(), self.instant()))
        ranges = (None, None), (some[0], None), (None, some[1]), (some[0], some[1])
        for group_by in ("tenant", "agent", "model", "metadata.team"):
            for after, before in ranges:
                about: dict[str, Any] = {
                    "all_tenants": group_by == "tenant" and self.draw.random() < 0.7,
                    "period": self.draw.choice((None, "day", "month")),
                    "after": after,
                    "before": before,
                }
                expected = await spend_from_calls(self.oracle, "a", group_by, **about)
                assert await spend.find("a", group_by, **about) == expected, (group_by, about)
        after, before = some[0], some[1] + timedelta(microseconds=1)
        statistics = PostgresStatistics(self.stores.engines)
        periods: tuple[PeriodLength, ...] = ("hour", "day")
        for period in periods:
            counted = await statistics_from_runs(self.oracle, "a", period, after, before)
            found = await statistics.find("a", period, after, before)
            assert found == counted, (period, after, before)


@pytest.mark.parametrize("seed", range(8))
async def test_sums_equal_the_calls_after_every_change(database_url: str, seed: int) -> None:
    """Runs end, get late costs, are erased and rolled back in any order, at any time."""
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        world = ChangingRuns(stores, oracle, random.Random(seed))
        for _ in range(6):
            for _ in range(25):
                await world.step()
            await world.check()
        assert len(world.ended) > 5
        assert world.waited > 5
        assert await oracle.value("SELECT count(*) FROM cost_sums WHERE merged") > 0

        await oracle.rows("DELETE FROM runs")
        await world.check()
        costs = PostgresCosts(stores.engines.work)
        while await costs.keep():
            pass
        assert await oracle.value("SELECT count(*) FROM cost_sums") == 0


async def test_concurrent_changes_leave_exact_sums_and_no_deadlock(database_url: str) -> None:
    """Several sessions end, settle and erase runs, and two more store and add up costs."""
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(database_url))
        worlds = [
            ChangingRuns(
                stores,
                await stack.enter_async_context(open_oracle(database_url)),
                random.Random(seed),
                count=seed * 10_000,
            )
            for seed in range(4)
        ]
        changed = asyncio.Event()

        async def change(world: ChangingRuns) -> None:
            for _ in range(150):
                await world.step()

        async def keep() -> None:
            while not changed.is_set():
                await PostgresCosts(stores.engines.work).keep()
                await PostgresCosts(stores.engines.work).find_gaps()

        async with asyncio.TaskGroup() as keeping:
            for _ in range(2):
                keeping.create_task(keep())
            async with asyncio.TaskGroup() as changing:
                for world in worlds:
                    changing.create_task(change(world))
            changed.set()
        costs = PostgresCosts(stores.engines.work)
        for _ in range(2):  # runs without costs are not looked for while older ones are left
            await costs.find_gaps()
            while await costs.keep():
                pass
        await worlds[0].check()
        assert await worlds[0].oracle.value("SELECT sum(runs) FROM cost_sums") > 0
        await worlds[0].oracle.rows("DELETE FROM runs")


@pytest.fixture
def migrated_url(postgres: TestServer) -> Iterator[str]:
    """A database at the revision before the one that keeps costs."""
    with postgres.empty_database() as url:
        upgrade(url, BEFORE)
        yield url


async def test_sums_are_right_while_a_migrated_database_is_filled(migrated_url: str) -> None:
    """Runs that ended before the migration count from their calls until their costs are stored."""
    async with open_oracle(migrated_url) as oracle, open_stores(migrated_url) as stores:
        world = ChangingRuns(stores, oracle, random.Random(1))
        for _ in range(30):
            await world.accept()
            await world.accept()
            await world.wait()
            await world.end()
        upgrade(migrated_url)
        assert len(world.ended) > 10
        assert len(world.waiting) > 2
        assert await oracle.value("SELECT count(*) FROM run_costs") == 0
        filled = 0
        while await oracle.value("SELECT count(*) FROM cost_backfill"):
            await world.check()
            await world.wait()
            await world.end()
            await world.late()
            await oracle.rows("SELECT caseworker_fill_costs(3)")
            filled += 1
        await world.check()

    assert filled > 5


async def test_waiting_runs_of_an_earlier_revision_count_once(postgres: TestServer) -> None:
    """The sums of the earlier revision are complete, and lack the runs that wait."""
    with postgres.empty_database() as url:
        upgrade(url, BEFORE_WAITING)
        async with open_oracle(url) as oracle, open_stores(url) as stores:
            world = ChangingRuns(stores, oracle, random.Random(2))
            for _ in range(30):
                await world.accept()
                await world.accept()
                await world.wait()
                await world.end()
            costs = PostgresCosts(stores.engines.work)
            while await costs.keep():
                pass
            upgrade(url)
            assert len(world.waiting) > 2
            await world.check()
            while await costs.keep():
                pass
            assert await oracle.value(KEPT_WAITING) == len(world.waiting)
            await world.check()


async def test_the_spend_of_waiting_runs_reads_no_calls(stores: Stores, oracle: Oracle) -> None:
    """Only calls of queued and running runs are read, so a thousand waiting runs cost nothing."""
    world = ChangingRuns(stores, oracle, random.Random(3))
    for _ in range(40):
        await world.accept()
        await world.wait()
    assert len(world.waiting) > 5
    in_progress = [key for key in world.alive if key not in world.waiting]
    await oracle.rows("ALTER TABLE calls DISABLE TRIGGER ALL")
    await oracle.rows(
        "DELETE FROM calls USING runs WHERE runs.status = 'waiting' "
        "AND calls.tenant_id = runs.tenant_id AND calls.run_id = runs.run_id"
    )
    spend = PostgresSpend(stores.engines.work, stores.engines.sums)

    about: dict[str, Any] = {"period": None, "after": None, "before": None}
    (total,) = {
        row["runs_in_all"] for row in await spend.find("a", "tenant", all_tenants=True, **about)
    }

    assert total == len(world.alive) > len(in_progress)


async def test_kept_costs_do_not_contain_metadata_and_leave_with_their_runs(
    stores: Stores, oracle: Oracle
) -> None:
    """After an erasure, a retention sweep and a merge, no row has a sum."""
    costs = PostgresCosts(stores.engines.work)
    for run_id in ("a", "b"):
        accepted = await stores.runs.accept(new_run(run_id), worker_id="w1")
        calls = records_of(graph_with_calls(run_id), charge={"tokens": 15})
        await stores.journal.finish(end_of(accepted.run, calls=calls))
    while await costs.keep():
        pass
    names = """SELECT count(*) FROM information_schema.columns WHERE column_name = 'metadata'
        AND table_name IN ('run_costs', 'cost_sums', 'cost_backfill')"""
    assert await oracle.value("SELECT sum(tokens) FROM cost_sums WHERE span = 'day'") == 30
    assert await oracle.value(names) == 0

    async with transaction(stores.engines.work) as connection:
        await delete_runs(connection, "default", ["a"])
        batch = {"tenant": "default", "record": "runs", "days": 0, "limit": 10}
        await drop_runs(connection, batch)
    while await costs.keep():
        pass

    assert await oracle.value("SELECT count(*) FROM runs WHERE request IS NOT NULL") == 0
    assert await oracle.value("SELECT count(*) FROM run_costs") == 0
    assert await oracle.value("SELECT count(*) FROM cost_sums") == 0


async def test_the_erasure_of_a_tenant_leaves_no_sums(stores: Stores, oracle: Oracle) -> None:
    """Rows of sums that were not merged yet are deleted too."""
    accepted = await stores.runs.accept(new_run("a", tenant="acme"), worker_id="w1")
    await stores.journal.finish(end_of(accepted.run))
    await PostgresCosts(stores.engines.work).keep()
    erasure = PostgresErasure(stores.engines.work)

    await erasure.erase_runs(Subject("acme"), [{"a"}])
    await erasure.finish(Subject("acme"))

    assert await oracle.value("SELECT count(*) FROM cost_sums WHERE tenant_id = 'acme'") == 0


async def test_late_costs_of_the_service_reach_the_sums(stores: Stores, oracle: Oracle) -> None:
    """The usage is stored before the call that it includes, in one transaction."""
    accepted = await stores.runs.accept(new_run("a"), worker_id="w1")
    graph = graph_with_calls("a")
    await stores.journal.finish(end_of(accepted.run, calls=records_of(graph)))
    await PostgresCosts(stores.engines.work).keep()
    before = await oracle.value("SELECT sum(tokens) FROM run_costs")
    later = records_of(graph_with_calls("a", llm_calls=3), charge={"tokens": 100})[-2:]
    key, fence = accepted.run.key, accepted.run.fence
    late = LateResult(key=key, fence=fence, calls=later, usage={"tokens": 200})
    await stores.runs.late(late)

    assert (before, await oracle.value("SELECT sum(tokens) FROM run_costs")) == (0, 200)


async def test_one_process_at_a_time_keeps_costs(stores: Stores, oracle: Oracle) -> None:
    """Another process does not wait for the lock, and finds nothing to do."""
    costs = PostgresCosts(stores.engines.work)
    async with oracle.connection.transaction():
        await oracle.rows("SELECT pg_advisory_xact_lock(hashtextextended('costs', 3))")
        await costs.find_gaps()
        assert not await costs.keep()
