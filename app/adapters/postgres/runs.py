"""The store of runs: accepting, stopping and reading them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Insert, and_, func, insert, select, tuple_, update

from app.adapters.postgres.accepting import accept_in
from app.adapters.postgres.cancelling import Intents, cancel_in
from app.adapters.postgres.cursors import after, cursor_of
from app.adapters.postgres.engines import Engines, transaction
from app.adapters.postgres.hot_writes import ClaimedInsert
from app.adapters.postgres.journal import PostgresJournal
from app.adapters.postgres.ports import Dispatch
from app.adapters.postgres.rows import claimed_run, run_from_row
from app.adapters.postgres.tables import events, runs, snapshots
from app.adapters.postgres.writing import journal_of, upsert_calls
from app.runs.ports import Accepted, Cancelled, LateResult, Page, RunFilter
from app.runs.run import TERMINAL, CallRecord, NewRun, Run, RunKey, RunStatus, StopWish

OWNED = runs.c.status.in_(("running", "waiting"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """What the store refuses."""

    intent_ttl_seconds: float = 3600.0
    max_early_intents: int = 1000
    max_queued: int | None = None
    accept_timeout_seconds: float = 10.0


class PostgresRuns:
    """Implements the run store; one row decides, see :mod:`app.runs.ports`."""

    def __init__(
        self, engines: Engines, journal: PostgresJournal, dispatch: Dispatch, limits: StoreLimits
    ) -> None:
        self._engines = engines
        self._journal = journal
        self._dispatch = dispatch
        self._limits = limits

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id`` or queued for any worker."""
        if worker_id is not None and new.idempotency_key is None:
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
        if or_found and accepted.run.worker_id == worker_id and accepted.run.fence == 1:
            return Accepted(accepted.run, created=True)
        return accepted

    async def cancel(self, key: RunKey, wish: StopWish) -> Cancelled:
        """Store a wish to stop and tell the workers; a queued run is settled at once."""
        intents = Intents(self._limits.intent_ttl_seconds, self._limits.max_early_intents)
        async with transaction(self._engines.control) as connection:
            return await cancel_in(connection, key, wish, intents)

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; an early wish alone is not one."""
        wanted = select(runs).where(_is(key), runs.c.request.is_not(None))
        async with transaction(self._engines.work) as connection:
            row = (await connection.execute(wanted)).mappings().one_or_none()
        return None if row is None else run_from_row(row)

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs, newest first."""
        query = select(runs).where(runs.c.tenant_id == tenant, runs.c.request.is_not(None))
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
        return None if row is None else run_from_row(row)

    async def release(
        self, run: Run, *, active_seconds: float, calls: Sequence[CallRecord], counted: bool
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
            await self._dispatch.defer(connection, [run.key])

    async def late(self, result: LateResult) -> None:
        """Record a result that came after the end; status and result stay as they are."""
        ended = _is(result.key) & runs.c.status.in_(TERMINAL)
        spent = update(runs).where(ended).values(usage=dict(result.usage)).returning(runs.c.run_id)
        async with transaction(self._engines.work) as connection:
            if (await connection.execute(spent)).one_or_none() is None:
                return
            await upsert_calls(connection, result.key, result.calls)
            await connection.execute(_late_result(result))

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


def _late_result(result: LateResult) -> Insert:
    """Return the event; the locked row of the run keeps two from taking the same number."""
    tenant, run_id = result.key.tenant, result.key.run_id
    of_run = (events.c.tenant_id == tenant) & (events.c.run_id == run_id)
    last = select(func.coalesce(func.max(events.c.seq), 0)).where(of_run).scalar_subquery()
    return insert(events).values(
        tenant_id=tenant,
        run_id=run_id,
        seq=last + 1,
        type="late_result",
        data={"usage": dict(result.usage)},
    )


def _is(key: RunKey) -> Any:
    return and_(runs.c.tenant_id == key.tenant, runs.c.run_id == key.run_id)
