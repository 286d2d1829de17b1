"""The store of runs: accepting, stopping and reading them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Text,
    and_,
    func,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.adapters.postgres.accepting import accept_in
from app.adapters.postgres.cancelling import PendingCancelLimits, cancel_in
from app.adapters.postgres.cursors import after, cursor_of
from app.adapters.postgres.engines import Engines, transaction
from app.adapters.postgres.hot_writes import ClaimedInsert
from app.adapters.postgres.journal import PostgresJournal
from app.adapters.postgres.ports import Dispatch
from app.adapters.postgres.rows import claimed_run, event_from_row, run_from_row
from app.adapters.postgres.tables import runs, snapshots
from app.adapters.postgres.writing import (
    insert_events,
    journal_of,
    last_seq_of,
    skipped_in,
    upsert_calls,
)
from app.runs.event_log import late_result
from app.runs.notifier import Notification
from app.runs.ports import Accepted, Cancelled, EventPage, LateResult, Page, RunFilter
from app.runs.run import (
    TERMINAL,
    CallRecord,
    CancelRequest,
    EventRecord,
    NewRun,
    Run,
    RunKey,
    RunStatus,
)

OWNED = runs.c.status.in_(("running", "waiting"))

_GRAPH = literal(["graph", "inputs"], ARRAY(Text))
_WITHOUT_GRAPH = runs.c.request.op("-", return_type=JSONB())(_GRAPH).label("request")
_LISTED = [_WITHOUT_GRAPH if column is runs.c.request else column for column in runs.c]
"""A page of runs would hold a page of graphs, which nobody looks at there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """What the store refuses."""

    intent_ttl_seconds: float
    max_early_intents: int
    max_queued: int | None = None
    accept_timeout_seconds: float


class PostgresRuns:
    """Implements the run store; one row decides, see :mod:`app.runs.ports`."""

    def __init__(
        self, engines: Engines, journal: PostgresJournal, dispatch: Dispatch, limits: StoreLimits
    ) -> None:
        self._engines = engines
        self._journal = journal
        self._notifier = journal.notifier
        self._dispatch = dispatch
        self._limits = limits

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id`` or queued for any worker."""
        if worker_id is not None:
            insert = ClaimedInsert(new, worker_id)
            created_at = await self._journal.insert(
                insert, timeout_seconds=self._limits.accept_timeout_seconds
            )
            if created_at is not None:
                return Accepted(claimed_run(new, worker_id, created_at), created=True)
            if insert.maybe_stored:
                return await self._accept(new, worker_id, or_found=True)
        return await self._accept(new, worker_id)

    async def _accept(
        self, new: NewRun, worker_id: str | None, *, or_found: bool = False
    ) -> Accepted:
        """Accept a run in a transaction of its own.

        With ``or_found``, a run that is there as our lost insert would have left it is ours.
        """
        async with transaction(self._engines.work) as connection:
            accepted = await accept_in(
                connection, new, worker_id=worker_id, max_queued=self._limits.max_queued
            )
            if accepted.created and accepted.run.status is RunStatus.QUEUED:
                await self._dispatch.defer(connection, [new.key])
        run = accepted.run
        ours = run.key == new.key and run.worker_id == worker_id and run.fence == 1
        return Accepted(run, created=True) if or_found and ours else accepted

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> Cancelled:
        """Store a wish to stop and tell the workers; a queued run is settled at once."""
        pending_cancels = PendingCancelLimits(
            self._limits.intent_ttl_seconds, self._limits.max_early_intents
        )
        async with transaction(self._engines.control) as connection:
            cancelled = await cancel_in(connection, key, cancel_request, pending_cancels)
        self._notifier.notify(key)
        return cancelled

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; an early wish alone is not one."""
        return await self._one(_is(key))

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run that was made under an idempotency key, or without one under an id."""
        if idempotency_key is None:
            return await self._one(_is(key))
        by_key = runs.c.idempotency_key == idempotency_key
        return await self._one((runs.c.tenant_id == key.tenant) & by_key)

    async def _one(self, which: ColumnElement[bool]) -> Run | None:
        wanted = select(runs).where(which, runs.c.request.is_not(None))
        async with transaction(self._engines.work) as connection:
            row = (await connection.execute(wanted)).mappings().one_or_none()
        return None if row is None else run_from_row(row)

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs, newest first."""
        query = select(*_LISTED).where(runs.c.tenant_id == tenant, runs.c.request.is_not(None))
        if wanted.status is not None:
            query = query.where(runs.c.status == wanted.status.value)
        if wanted.created_after is not None:
            query = query.where(runs.c.created_at > wanted.created_after)
        if wanted.created_before is not None:
            query = query.where(runs.c.created_at < wanted.created_before)
        if wanted.cursor is not None:
            query = query.where(tuple_(runs.c.created_at, runs.c.run_id) < after(wanted.cursor))
        query = query.order_by(runs.c.created_at.desc(), runs.c.run_id.desc())
        async with transaction(self._engines.work) as connection:
            rows = (await connection.execute(query.limit(wanted.limit + 1))).mappings().all()
        found = [run_from_row(row) for row in rows[: wanted.limit]]
        more = len(rows) > wanted.limit
        return Page(found, cursor_of(found[-1]) if more else None)

    async def claim(self, key: RunKey, worker_id: str) -> Run | None:
        """Take a queued run; None if there is nothing to take."""
        now = func.clock_timestamp()
        taken = (
            update(runs)
            .where(_is(key), runs.c.status == "queued")
            .values(
                status="running",
                worker_id=worker_id,
                fence=runs.c.fence + 1,
                attempts=runs.c.attempts + 1,
                claimed_at=now,
                started_at=func.coalesce(runs.c.started_at, now),
            )
            .returning(runs)
        )
        async with transaction(self._engines.work) as connection:
            row = (await connection.execute(taken)).mappings().one_or_none()
            if row is None:
                return None
            run = run_from_row(row)
            if run.fence == 1:
                return run
            last_seq = await last_seq_of(connection, key)
            skipped = await skipped_in(connection, key)
        return replace(run, last_seq=last_seq, skipped=skipped)

    async def release(
        self,
        run: Run,
        *,
        active_seconds: float,
        calls: Sequence[CallRecord],
        counted: bool,
        events: Sequence[EventRecord] = (),
    ) -> None:
        """Give a claimed run back to the queue; ``counted`` says whether the attempt counts."""
        given_back = (
            update(runs)
            .where(_is(run.key), runs.c.fence == run.fence, OWNED)
            .values(
                status="queued",
                worker_id=None,
                attempts=runs.c.attempts - (0 if counted else 1),
                queued_at=func.clock_timestamp(),
                active_seconds=active_seconds,
            )
            .returning(runs.c.run_id)
        )
        async with transaction(self._engines.work) as connection:
            if (await connection.execute(given_back)).one_or_none() is None:
                return
            await upsert_calls(connection, run.key, calls)
            await insert_events(connection, run.key, events)
            await self._dispatch.defer(connection, [run.key])
        self._notifier.notify(run.key)

    async def late(self, result: LateResult) -> None:
        """Record a result that came after the end; status and result stay as they are."""
        ended = _is(result.key) & runs.c.status.in_(TERMINAL) & (runs.c.fence == result.fence)
        spent = update(runs).where(ended).values(usage=dict(result.usage)).returning(runs.c.run_id)
        async with transaction(self._engines.work) as connection:
            if (await connection.execute(spent)).one_or_none() is None:
                return
            await upsert_calls(connection, result.key, result.calls)
            last_seq = await last_seq_of(connection, result.key)
            await insert_events(connection, result.key, late_result(result.usage, last_seq))
        self._notifier.notify(result.key)

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return the events behind number ``after``, and whether the run had ended by then."""
        asked = {"tenant": key.tenant, "run_id": key.run_id, "after": after, "limit": limit}
        async with transaction(self._engines.work) as connection:
            rows = (await connection.execute(_EVENTS, asked)).mappings().all()
        if not rows:
            return None
        found = [event_from_row(row) for row in rows if row["seq"] is not None]
        return EventPage(found, finished=rows[0]["status"] in TERMINAL)

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Have a bell rung whenever this process stores events of a run."""
        return self._notifier.listening(key)

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        async with transaction(self._engines.work) as connection:
            return await journal_of(connection, key)

    async def snapshot(self, key: RunKey) -> Mapping[str, Any] | None:
        """Return the last stored snapshot of a run's ExecutionGraph."""
        query = (
            select(snapshots.c.snapshot)
            .where(snapshots.c.tenant_id == key.tenant, snapshots.c.run_id == key.run_id)
            .order_by(snapshots.c.version.desc())
            .limit(1)
        )
        async with transaction(self._engines.work) as connection:
            found: Mapping[str, Any] | None = await connection.scalar(query)
        return found


_EVENTS = text(
    """
    SELECT runs.status, e.* FROM runs LEFT JOIN LATERAL (
        SELECT seq, ts, type, step_id, node_id, data FROM events
        WHERE events.tenant_id = runs.tenant_id AND events.run_id = runs.run_id AND seq > :after
        ORDER BY seq LIMIT :limit
    ) e ON true
    WHERE runs.tenant_id = :tenant AND runs.run_id = :run_id AND runs.request IS NOT NULL
    ORDER BY e.seq
    """
)
"""The run's status and its events as they are at one moment."""


def _is(key: RunKey) -> Any:
    return and_(runs.c.tenant_id == key.tenant, runs.c.run_id == key.run_id)
