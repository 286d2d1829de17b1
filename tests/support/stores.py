"""The real stores on a real database, opened and closed for a test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.adapters.postgres.engines import Engines, PoolSizes, open_engines
from app.adapters.postgres.journal import PostgresJournal
from app.adapters.postgres.runs import PostgresRuns, StoreLimits
from app.adapters.postgres.workers import PostgresWorkers
from app.adapters.queue.dispatch import QueueDispatch
from app.control.budget import Budget
from app.runs.run import NewRun, RunKey, RunKind, RunRequest


@dataclass(frozen=True)
class Stores:
    """What one process holds of the database."""

    engines: Engines
    journal: PostgresJournal
    runs: PostgresRuns
    workers: PostgresWorkers
    dispatch: QueueDispatch


@asynccontextmanager
async def open_stores(url: str, limits: StoreLimits | None = None) -> AsyncIterator[Stores]:
    """Open the stores as a process does."""
    engines = open_engines(url, PoolSizes())
    journal = PostgresJournal(url, connect_timeout_seconds=5)
    dispatch = QueueDispatch(url)
    await journal.start()
    runs = PostgresRuns(engines, journal, dispatch, limits or StoreLimits())
    try:
        yield Stores(engines, journal, runs, PostgresWorkers(engines), dispatch)
    finally:
        await journal.stop()
        await engines.dispose()


def new_run(
    run_id: str, *, tenant: str = "default", text: str = "2+2?", key: str | None = None
) -> NewRun:
    """Return a request as the API would hand it on."""
    return NewRun(
        key=RunKey(tenant, run_id),
        request=RunRequest(kind=RunKind.CASE, input=text, budget=Budget(max_tool_calls=6)),
        request_hash=f"hash of {text}",
        idempotency_key=key,
    )
