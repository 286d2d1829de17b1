"""Operations that race with a cancel request, and the check of the resulting run."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import text

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.platform.postgres.connections import Patience
from caseworker.platform.postgres.engines import Engines, KeptConnection, transaction
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.execute.postgres.runs import PostgresRuns, accept_in
from caseworker.runs.journal.postgres.journal import PostgresJournal
from caseworker.runs.ports import CancelStatus, JournalWrite
from caseworker.runs.postgres.rows import accepted_run, request_to_json
from caseworker.runs.quotas import Quota
from caseworker.runs.recover.postgres import take_lost
from caseworker.runs.run import Run, RunKey, RunStatus
from tests.integration.postgres.interleaving import (
    Begin,
    Session,
    Trial,
    Work,
)
from tests.support.graph_invariants import violations
from tests.support.limits import patience, store_limits
from tests.support.stores import (
    CANCEL_REQUEST,
    Oracle,
    Stores,
    end_of,
    new_run,
    open_oracle,
    open_stores,
    records_of,
    stored_graph,
)

EARLY, AT_BARRIER, LATER = "cancelled", "seen at its barrier", "seen when it is claimed"
"""The allowed outcomes of a run after a cancel request."""

FILLER = RunKey("default", "filler")


class GatedJournal(PostgresJournal):
    """The journal of a session, whose hot writes pass its gate."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.url, patience(), usual=Quota())
        self._session = session

    async def _connect(self, _: Patience) -> Any:
        return await self._session.connect_for_hot_writes()


@dataclass
class Client:
    """A session and the stores that use it."""

    session: Session
    engines: Engines
    journal: PostgresJournal
    runs: PostgresRuns


@dataclass
class Race:
    """Racing sessions, and two connections that observe."""

    clients: list[Client]
    watching: Stores
    oracle: Oracle
    outcomes: Counter[str] = field(default_factory=Counter)
    orders: set[str] = field(default_factory=set)
    blocked: int = 0

    async def race(self, acts: "Sequence[Act]", before: "Before", schedules: "Schedules") -> None:
        """Race ``acts``, the last of which is a cancel request, and record the outcome."""
        stops: list[object] = []

        async def stop(client: Client, key: RunKey) -> None:
            stops.append(await acts[-1](client, key))

        async def begin(number: int) -> list[Work]:
            await before(self, key_of(number))
            racing = zip([*acts[:-1], stop], self.clients, strict=False)
            return [partial(act, client, key_of(number)) for act, client in racing]

        sessions = [client.session for client in self.clients[: len(acts)]]
        async for trial in schedules(self.oracle, sessions, begin):
            key = key_of(self.trials)
            self.orders.add(trial.steps)
            self.blocked += trial.blocked
            self.outcomes[await outcome(self.watching, self.oracle, key, stops[-1])] += 1
            await self.oracle.rows("DELETE FROM runs WHERE run_id = %s", key.run_id)

    @property
    def trials(self) -> int:
        return self.outcomes.total()


def key_of(number: int) -> RunKey:
    return RunKey("default", f"case-{number}")


async def outcome(watching: Stores, oracle: Oracle, key: RunKey, stop: object) -> str:
    """Return the outcome of a run after its cancel request and all acts have been answered."""
    (row,) = await oracle.rows("SELECT * FROM runs WHERE run_id = %s", key.run_id)
    match row["status"]:
        case "cancelled":
            graph = await stored_graph(watching.runs, key)
            statuses = [node["status"] for node in graph["nodes"].values()] if graph else []
            sound = graph is not None and statuses == ["halt"] and not violations(graph)
            return "cancelled" if sound else "cancelled without a trace"
        case "running":
            permission = await watching.journal.write(JournalWrite(key=key, fence=row["fence"]))
            return "seen at its barrier" if permission.cancel_request is not None else "unaware"
        case "queued":
            claimed = await watching.runs.claim(key, "w9")
            assert claimed is not None
            return "seen when it is claimed" if claimed.cancel_request is not None else "unaware"
        case ended:
            known = isinstance(stop, CancelStatus) and stop.already_finished
            return f"{ended} before" if known else f"{ended} after its stop"


@asynccontextmanager
async def open_world(url: str) -> AsyncIterator[Race]:
    async with AsyncExitStack() as stack:
        watching = await stack.enter_async_context(open_stores(url))
        oracle = await stack.enter_async_context(open_oracle(url))
        await watching.runs.accept(new_run("filler"), worker_id="w1")
        clients = []
        for _ in range(3):
            session = Session(url)
            pool = session.pool()
            stack.push_async_callback(pool.dispose)
            kept = KeptConnection(session.connect)
            engines = Engines(work=pool, control=pool, pulse=kept, look=kept)
            journal = GatedJournal(session)
            await journal.start()
            stack.push_async_callback(journal.stop)
            runs = PostgresRuns(engines, journal, store_limits())
            await runs.get(FILLER)  # connects
            clients.append(Client(session, engines, journal, runs))
        yield Race(clients, watching, oracle)


Act = Callable[[Client, RunKey], Coroutine[Any, Any, object]]
Before = Callable[[Race, RunKey], Coroutine[Any, Any, object]]
Schedules = Callable[[Oracle, Sequence[Session], Begin], AsyncIterator[Trial]]


async def stop(client: Client, key: RunKey) -> CancelStatus:
    return await client.runs.cancel(key, CANCEL_REQUEST)


async def post_alone(client: Client, key: RunKey) -> None:
    """Accept a run with the single statement that commits on its own."""
    await client.runs.accept(new_run(key.run_id), worker_id="w1")


async def post_in_a_batch(client: Client, key: RunKey) -> None:
    """Accept in one statement together with a run that already exists."""
    async with asyncio.TaskGroup() as group:
        for run_id in (FILLER.run_id, key.run_id):
            group.create_task(client.runs.accept(new_run(run_id), worker_id="w1"))


async def post_with_a_key(client: Client, key: RunKey) -> None:
    await client.runs.accept(new_run(key.run_id, key=f"key of {key.run_id}"), worker_id="w1")


async def post_apart(client: Client, key: RunKey) -> None:
    """Accept in a transaction of several statements, as after a batch that left the run out."""
    new = new_run(key.run_id, key=f"key of {key.run_id}")
    async with transaction(client.engines.work) as connection:
        await accept_in(connection, new, worker_id="w1", limits=store_limits())


async def post_to_the_queue(client: Client, key: RunKey) -> None:
    await client.runs.accept(new_run(key.run_id), worker_id=None)


async def claim(client: Client, key: RunKey) -> None:
    await client.runs.claim(key, "w2")


async def give_back(client: Client, key: RunKey) -> None:
    await client.runs.release(owned(key), active_seconds=1, calls=(), counted=False)


async def complete(client: Client, key: RunKey) -> None:
    """End the run; end it as cancelled if a cancel request came first, as an executor does."""
    finish_result = await client.journal.finish(end_of(owned(key)))
    if finish_result.cancel_request is not None:
        graph = ExecutionGraph(key.run_id)
        graph.mark_halt(graph.create_root("case"), "over")
        end = end_of(owned(key), RunStatus.CANCELLED, calls=records_of(graph))
        assert (await client.journal.finish(end)).done


async def recover(client: Client, _: RunKey) -> None:
    """Recover runs from workers without a row."""
    async with transaction(client.engines.work) as connection:
        await take_lost(connection, (), stale_seconds=0, max_attempts=5)


async def nothing(world: Race, key: RunKey) -> None:
    return


async def an_expired_pending_cancel(world: Race, key: RunKey) -> None:
    await world.watching.runs.cancel(key, CANCEL_REQUEST)
    await world.oracle.rows(
        "UPDATE runs SET pending_cancel_expires_at = now() - interval '1 s' WHERE run_id = %s",
        key.run_id,
    )


async def it_was_queued(world: Race, key: RunKey) -> None:
    await world.watching.runs.accept(new_run(key.run_id), worker_id=None)


async def it_was_running(world: Race, key: RunKey) -> None:
    await world.watching.runs.accept(new_run(key.run_id), worker_id="w1")


def owned(key: RunKey) -> Run:
    """Return a run as its first owner has it."""
    return accepted_run(new_run(key.run_id), "w1", datetime.now(UTC))


async def stop_in_a_table_of_its_own(client: Client, key: RunKey) -> None:
    """Mark the run, or insert a request into a separate table if no run exists."""
    async with transaction(client.engines.control) as connection:
        marked = await connection.execute(MARK, {"run_id": key.run_id})
        if marked.first() is None:
            leave = text("INSERT INTO pending_cancels VALUES (:run_id)")
            await connection.execute(leave, {"run_id": key.run_id})


async def post_that_looks_into_that_table(client: Client, key: RunKey) -> None:
    """Read the separate table for a request, then insert the run."""
    async with transaction(client.engines.work) as connection:
        look = text("SELECT FROM pending_cancels WHERE run_id = :run_id")
        cancel_requested = (
            await connection.execute(look, {"run_id": key.run_id})
        ).first() is not None
        await accept_in(connection, new_run(key.run_id), worker_id="w1", limits=store_limits())
        if cancel_requested:
            await connection.execute(MARK, {"run_id": key.run_id})


async def post_over_whatever_is_there(client: Client, key: RunKey) -> None:
    """Insert the run, or turn the existing row into a run."""
    async with transaction(client.engines.work) as connection:
        request = dump(request_to_json(new_run(key.run_id).request))
        await connection.execute(OVERWRITE, {"run_id": key.run_id, "request": request})


MARK = text("""
UPDATE runs SET cancel_requested_at = now(), cancel_requested_by = 'tester'
WHERE run_id = :run_id RETURNING run_id
""")

OVERWRITE = text("""
INSERT INTO runs (tenant_id, run_id, kind, status, request, fence, worker_id)
VALUES ('default', :run_id, 'case', 'running', CAST(:request AS jsonb), 1, 'w1')
ON CONFLICT (tenant_id, run_id) DO UPDATE SET kind = 'case', status = 'running',
    request = excluded.request, fence = 1, worker_id = 'w1', cancel_requested_at = NULL
""")
