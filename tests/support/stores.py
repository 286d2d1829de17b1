"""The real stores on a real database, opened and closed for a test, and their test data."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Engine
from sqlalchemy.event import listen, remove

from caseworker.core.budget.budget import Budget
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.snapshot import Snapshot
from caseworker.features.feature import Parts
from caseworker.platform.postgres.connections import driver_url
from caseworker.platform.postgres.engines import Engines, PoolSizes, open_engines
from caseworker.runs.execute.postgres.runs import PostgresRuns, StoreLimits
from caseworker.runs.journal.postgres import PostgresJournal
from caseworker.runs.ports import RunStore
from caseworker.runs.recover.postgres import PostgresWorkers, StaleRunRecovery
from caseworker.runs.run import (
    CallRecord,
    CancelRequest,
    FinishRun,
    NewRun,
    Run,
    RunKey,
    RunKind,
    RunRequest,
    RunStatus,
)
from tests.support.limits import pool_sizes, store_limits

CANCEL_REQUEST = CancelRequest(requested_by="tester", reason="no longer needed")


@dataclass(frozen=True)
class Stores:
    """The stores and engines of one process."""

    engines: Engines
    journal: PostgresJournal
    runs: PostgresRuns
    workers: PostgresWorkers


@asynccontextmanager
async def open_stores(
    url: str, limits: StoreLimits | None = None, *, sizes: PoolSizes | None = None
) -> AsyncIterator[Stores]:
    """Open the stores as a process does."""
    sizes = sizes or pool_sizes()
    engines = open_engines(url, sizes)
    limits = limits or store_limits()
    journal = PostgresJournal(url, sizes.patience, usual=limits.quota)
    await journal.start()
    runs = PostgresRuns(engines, journal, limits)
    try:
        yield Stores(engines, journal, runs, PostgresWorkers(engines))
    finally:
        await journal.stop()
        await engines.dispose()


class Oracle:
    """A separate connection that reads the database without the service."""

    def __init__(self, connection: psycopg.AsyncConnection[dict[str, Any]]) -> None:
        self.connection = connection

    async def rows(self, query: str, *parameters: object) -> list[dict[str, Any]]:
        """Return the rows of a query or statement."""
        cursor = await self.connection.execute(query.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []

    async def value(self, query: str, *parameters: object) -> Any:
        """Return the first column of the only row."""
        (row,) = await self.rows(query, *parameters)
        return next(iter(row.values()))

    async def until_waiting(self, kind: str) -> None:
        """Return once a session waits for a lock of a kind, named as in ``pg_locks``."""
        query = """SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE datname = current_database() AND NOT granted AND locktype = %s)"""
        await eventually(lambda: self.value(query, kind))


@asynccontextmanager
async def open_oracle(url: str) -> AsyncIterator[Oracle]:
    """Connect to the database directly; every statement commits on its own."""
    connection = await psycopg.AsyncConnection.connect(
        driver_url(url), autocommit=True, row_factory=dict_row
    )
    async with connection:
        yield Oracle(connection)


class NotingObserver:
    """Records notifications as ``event run_id status``, with the status of a graph."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def accepted(self, run: Run) -> None:
        self.told.append(f"accepted {run.key.run_id} {run.status}")

    def started(self, run: Run) -> None:
        self.told.append(f"begun {run.key.run_id} {run.status}")

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        shown = "" if graph is None else f" {graph['nodes'][graph['root_id']]['status']}"
        self.told.append(f"ended {run.key.run_id} {run.status}{shown}")


async def eventually(condition: Callable[[], Awaitable[bool]], *, seconds: float = 150) -> None:
    """Wait until a condition holds; it is checked after growing pauses, at most 0.1 seconds.

    Raises:
        TimeoutError: The condition did not hold in time.
    """
    pause = 0.005
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(pause)
            pause = min(1.2 * pause, 0.1)


def new_run(
    run_id: str,
    *,
    tenant: str = "default",
    text: str = "2+2?",
    key: str | None = None,
    named: bool = True,
) -> NewRun:
    """Return a request as the API passes it on."""
    return NewRun(
        key=RunKey(tenant, run_id),
        request=RunRequest(kind=RunKind.CASE, input=text, budget=Budget(max_tool_calls=6)),
        request_hash=f"hash of {text}",
        idempotency_key=key,
        named=named,
    )


def graph_with_calls(run_id: str, *, llm_calls: int = 1) -> ExecutionGraph:
    """Return a graph with a running root and completed calls below it."""
    graph = ExecutionGraph(run_id)
    root = graph.create_root("case")
    graph.mark_running(root)
    for _ in range(llm_calls):
        call = graph.begin_node(root, "llm", "plan", "small-model")
        graph.mark_running(call)
        graph.mark_success(call, 0.5, tokens_in=10, tokens_out=5)
    return graph


def records_of(graph: ExecutionGraph, **values: Any) -> tuple[CallRecord, ...]:
    """Return the journal of a graph; ``values`` apply to all of its calls except the root."""
    _, nodes = graph.changed_since(0)
    return tuple(
        CallRecord(node=node, **({} if node["parent_id"] is None else values)) for node in nodes
    )


async def stored_graph(runs: RunStore, key: RunKey) -> Snapshot | None:
    """Return the ExecutionGraph of a run from its journal; None if there are no nodes."""
    nodes = await runs.nodes(key)
    return ExecutionGraph.restore(key.run_id, map(dict, nodes)).snapshot() if nodes else None


def end_of(
    run: Run,
    status: RunStatus = RunStatus.COMPLETED,
    *,
    calls: Sequence[CallRecord] = (),
    **values: Any,
) -> FinishRun:
    """Return the end of a run as its owner writes it."""
    graph = ExecutionGraph(run.key.run_id)
    root = graph.create_root("case")
    graph.mark_halt(root, "over")
    ended: dict[str, Any] = {
        "key": run.key,
        "fence": run.fence,
        "status": status,
        "finish_reason": "success" if status is RunStatus.COMPLETED else None,
        "result": {"answer": "4"},
        "usage": {"tokens": 15},
        "stop": None,
        "active_seconds": 1.25,
        "calls": tuple(calls),
        "snapshot": graph.snapshot(),
    }
    return FinishRun(**ended | values)


def recovery_of(process: Stores | Parts, **options: Any) -> StaleRunRecovery:
    """Return the recovery of lost and overdue runs of a process; ``options`` replace the usual."""
    usual: dict[str, Any] = {
        "interval_seconds": 1,
        "stale_seconds": 10,
        "max_attempts": 3,
        "end": ended_nowhere,
    }
    return StaleRunRecovery(engines=process.engines, **usual | options)


async def ended_nowhere(key: RunKey) -> None:
    """Leave a stopped run that has started in the queue: no process executes it."""


async def statements_of(call: Awaitable[Any]) -> list[tuple[str, Any]]:
    """Return the statements that an operation of a store executes, with their parameters."""
    asked: list[tuple[str, Any]] = []

    def keep(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "set_config" not in statement:
            asked.append((statement, parameters))

    listen(Engine, "before_cursor_execute", keep)
    try:
        await call
    finally:
        remove(Engine, "before_cursor_execute", keep)
    return asked


async def blocks_read(oracle: Oracle, statement: str, parameters: Any) -> int:
    """Execute a statement and return the number of blocks of tables and indexes that it reads."""
    explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    cursor = await oracle.connection.execute(explained.encode(), parameters)
    (row,) = await cursor.fetchall()
    plan = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
