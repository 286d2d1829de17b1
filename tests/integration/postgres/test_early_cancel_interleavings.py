"""A stop and whatever else befalls its run, in every order in which their statements can come."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.engines import Engines
from app.adapters.postgres.journal import PostgresJournal
from app.adapters.postgres.runs import PostgresRuns, StoreLimits
from app.adapters.queue.rescue import Rescue
from app.runs.ports import Cancelled, JournalWrite
from app.runs.run import Run, RunKey
from app.trace.invariants import violations
from tests.integration.postgres.interleaving import Session, Trial, Work, explore
from tests.support.stores import (
    WISH,
    Oracle,
    Stores,
    end_of,
    new_run,
    open_oracle,
    open_stores,
)

FILLER = RunKey("default", "filler")


class NoDispatch:
    """No jobs: these trials are about the row of the run."""

    async def defer(self, connection: AsyncConnection, keys: Sequence[RunKey]) -> None:
        return


class GatedJournal(PostgresJournal):
    """The hot writes of a session."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.url, connect_timeout_seconds=5)
        self._session = session

    async def _connect(self) -> Any:
        return await self._session.connect_for_hot_writes()


@dataclass
class Client:
    """What a session can do."""

    session: Session
    engines: Engines
    journal: PostgresJournal
    runs: PostgresRuns


@dataclass
class World:
    """Sessions that race, and two that watch."""

    clients: list[Client]
    watching: Stores
    oracle: Oracle
    outcomes: Counter[str] = field(default_factory=Counter)
    orders: set[str] = field(default_factory=set)
    blocked: int = 0
    answers: list[Cancelled] = field(default_factory=list)

    async def stop(self, client: Client, key: RunKey) -> None:
        self.answers.append(await client.runs.cancel(key, WISH))

    async def judge(self, trial: Trial, key: RunKey) -> None:
        self.orders.add(trial.steps)
        self.blocked += trial.blocked
        self.outcomes[await outcome(self.watching, self.oracle, key, self.answers[-1])] += 1


async def outcome(watching: Stores, oracle: Oracle, key: RunKey, stop: Cancelled) -> str:
    """Say how a run stands after its stop and everything else has been answered."""
    (row,) = await oracle.rows("SELECT * FROM runs WHERE run_id = %s", key.run_id)
    match row["status"]:
        case "cancelled":
            snapshot = await watching.runs.snapshot(key)
            statuses = [n["status"] for n in snapshot["nodes"].values()] if snapshot else []
            sound = statuses == ["halt"] and not violations(dict(snapshot or {}))
            return "cancelled" if sound else "cancelled without a trace"
        case "running":
            permission = await watching.journal.write(JournalWrite(key=key, fence=row["fence"]))
            return "told at its barrier" if permission.wish is not None else "unaware"
        case "queued":
            claimed = await watching.runs.claim(key, "w9")
            assert claimed is not None
            return "told when it is claimed" if claimed.wish is not None else "queued, unaware"
        case ended:
            return f"{ended} before" if stop.already_finished else f"{ended} after its stop"


@asynccontextmanager
async def open_world(url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        watching = await stack.enter_async_context(open_stores(url))
        oracle = await stack.enter_async_context(open_oracle(url))
        await watching.runs.accept(new_run("filler"), worker_id="w1")
        clients = []
        for _ in range(3):
            session = Session(url)
            engine = session.engine()
            stack.push_async_callback(engine.dispose)
            engines = Engines(work=engine, control=engine, pulse=engine)
            journal = GatedJournal(session)
            await journal.start()
            stack.push_async_callback(journal.stop)
            runs = PostgresRuns(engines, journal, NoDispatch(), StoreLimits())
            await runs.get(FILLER)  # connects
            clients.append(Client(session, engines, journal, runs))
        yield World(clients, watching, oracle)


Act = Callable[[Client, RunKey], Work]


def post_alone(client: Client, key: RunKey) -> Work:
    """Accept with the one statement that commits by itself."""
    return lambda: client.runs.accept(new_run(key.run_id), worker_id="w1")


def post_in_a_batch(client: Client, key: RunKey) -> Work:
    """Accept in one transaction with the journal of another run."""

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(client.journal.write(JournalWrite(key=FILLER, fence=1)))
            group.create_task(client.runs.accept(new_run(key.run_id), worker_id="w1"))

    return work


def post_with_a_key(client: Client, key: RunKey) -> Work:
    """Accept in a transaction of several statements."""
    new = new_run(key.run_id, key=f"key of {key.run_id}")
    return lambda: client.runs.accept(new, worker_id="w1")


def post_to_the_queue(client: Client, key: RunKey) -> Work:
    """Accept for any worker."""
    return lambda: client.runs.accept(new_run(key.run_id), worker_id=None)


def claim(client: Client, key: RunKey) -> Work:
    return lambda: client.runs.claim(key, "w2")


def give_back(client: Client, key: RunKey) -> Work:
    run = owned(key)
    return lambda: client.runs.release(run, active_seconds=1, calls=(), counted=False)


def complete(client: Client, key: RunKey) -> Work:
    """End the run; where a wish came first, end it as cancelled, as an executor does."""

    async def work() -> None:
        settled = await client.journal.settle(end_of(owned(key)))
        if settled.wish is not None:
            cancelled = end_of(owned(key), status="cancelled")
            assert (await client.journal.settle(cancelled)).done

    return work


def rescue(client: Client, key: RunKey) -> Work:
    """Take the run from a worker that never beat."""
    look = Rescue(client.engines.work, NoDispatch(), interval_seconds=0, stale_seconds=0).look
    return lambda: look()


def owned(key: RunKey) -> Run:
    return Run(**{**RUN, "key": key})


RUN: dict[str, Any] = {}


@dataclass(frozen=True)
class Race:
    """What races with a stop, and what had happened before."""

    acts: tuple[Act, ...]
    before: str = "nothing"
    ends: frozenset[str] = frozenset({"cancelled", "told at its barrier"})
    """Every one of these must happen, and nothing else may."""

    def __str__(self) -> str:
        names = " and ".join(act.__name__ for act in self.acts)
        return f"{names} after {self.before}"
