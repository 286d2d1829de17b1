"""Storage for runs in Postgres: accept, cancel, claim and read them."""

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    cast,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.core.trace.node import ATTEMPT
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.event_log import late_result
from caseworker.runs.notifying import Notification
from caseworker.runs.ports import (
    Accepted,
    CancelStatus,
    EventPage,
    LateResult,
    Page,
    RunFilter,
    SpentSoFar,
)
from caseworker.runs.postgres.accept_and_cancel import (
    StoreLimits,
    accept_in,
    cancel_in,
    journal_of,
    last_seq_of,
    streamed_in,
)
from caseworker.runs.postgres.accepting import UNLIMITED, RunInsert
from caseworker.runs.postgres.approvals import suspend_in
from caseworker.runs.postgres.brief import whole_once
from caseworker.runs.postgres.dispatch import QueueDispatch
from caseworker.runs.postgres.journal import PostgresJournal
from caseworker.runs.postgres.quotas import usual_of
from caseworker.runs.postgres.read_statements import CONVERSATION, EVENTS, PAYLOADS
from caseworker.runs.postgres.retention import erase_in
from caseworker.runs.postgres.rows import (
    accepted_run,
    call_from_row,
    call_to_json,
    encode_cursor,
    event_from_row,
    event_to_json,
    run_from_row,
)
from caseworker.runs.postgres.run_listing import LIST_STATEMENT_MS, page_of, stoppable
from caseworker.runs.postgres.run_statements import (
    ADD_LATE,
    CLAIM,
    RELEASE,
    SPENT,
    WRITE_CALLS,
    WRITE_EVENTS,
)
from caseworker.runs.postgres.tables import events, journal, of_run, runs
from caseworker.runs.replay import charge_of
from caseworker.runs.run import (
    TERMINAL,
    CallRecord,
    CancelRequest,
    EventRecord,
    NewRun,
    Run,
    RunKey,
    RunStatus,
)


@dataclass(slots=True)
class PostgresRuns:
    """Stores runs in Postgres; see :mod:`caseworker.runs.ports` for the rules."""

    engines: Engines
    journal: PostgresJournal
    dispatch: QueueDispatch
    limits: StoreLimits
    _inserting: dict[RunKey, asyncio.Event] = field(default_factory=dict)
    """Runs that this process is inserting; the event is set when the insert has finished."""

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id``; without a worker, queued."""
        if (other := self._inserting.get(new.key)) is not None:
            await other.wait()  # only the outcome of that insert shows which one created the run
            return await self._accept_alone(new, worker_id)
        request = new.request
        unlimited = self.limits.quota.without_storage.is_unlimited
        plain = request.source is None and unlimited and not new.is_overdue
        with self._begun(new.key):
            if plain and (worker_id is not None or request.start_at is None):
                return await self._accept_in_batch(new, worker_id)
            return await self._accept_alone(new, worker_id)

    async def _accept_in_batch(self, new: NewRun, worker_id: str | None) -> Accepted:
        most, usual = self.limits.max_queued, usual_of(new.key.tenant, self.limits.quota)
        insert = RunInsert(
            new, worker_id, UNLIMITED if most is None else most, usual.max_stored_bytes
        )
        created_at = await self.journal.insert(
            insert, timeout_seconds=self.limits.accept_timeout_seconds
        )
        if created_at is not None:
            return Accepted(accepted_run(new, worker_id, created_at), created=True)
        accepted = await self._accept_alone(new, worker_id)
        # The insert may have been committed although its answer was lost.
        if insert.maybe_stored and _is_of(insert, accepted.run):
            return Accepted(accepted.run, created=True)
        return accepted

    @contextmanager
    def _begun(self, key: RunKey) -> Iterator[None]:
        """Make concurrent accepts of the same run ID in this process wait until the block ends."""
        self._inserting[key] = ended = asyncio.Event()
        try:
            yield
        finally:
            del self._inserting[key]
            ended.set()

    async def _accept_alone(self, new: NewRun, worker_id: str | None) -> Accepted:
        async with transaction(self.engines.work) as connection:
            accepted = await accept_in(connection, new, worker_id=worker_id, limits=self.limits)
            run = accepted.run
            if accepted.created and run.status is RunStatus.QUEUED:
                await self.dispatch.defer(connection, {new.key: new.request.start_at})
        return accepted

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        """Store a cancel request and notify the workers; a run that no worker owns ends at once."""
        async with transaction(self.engines.control) as connection:
            cancelled = await cancel_in(connection, key, cancel_request, self.limits)
        self.journal.notifier.notify(key)
        return cancelled

    async def stoppable(self, tenant: str, wanted: RunFilter) -> Sequence[RunKey]:
        """Return the oldest runs that match and that have neither ended nor a cancel request."""
        query = stoppable(tenant, wanted).order_by(runs.c.created_at, runs.c.run_id)
        async with self._listing(tenant, wanted) as connection:
            found = (await connection.execute(query.limit(wanted.limit))).scalars().all()
        return [RunKey(tenant, run_id) for run_id in found]

    async def cancel_matching(
        self, key: RunKey, cancel_request: CancelRequest, wanted: RunFilter
    ) -> CancelStatus | None:
        """Cancel a run, if :meth:`stoppable` would still return it; otherwise return None."""
        locked = stoppable(key.tenant, wanted).where(of_run(runs, key))
        async with transaction(self.engines.work) as connection:
            fits = await connection.execute(locked.with_for_update(key_share=True))
            if fits.one_or_none() is None:
                return None
            cancelled = await cancel_in(connection, key, cancel_request, self.limits)
        self.journal.notifier.notify(key)
        return cancelled

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; None if it does not exist, even if a cancel request is stored for it."""
        return await self._one(key.tenant, of_run(runs, key))

    async def erase(self, key: RunKey) -> None:
        """Erase an ended run with all its data."""
        async with transaction(self.engines.work) as connection:
            await erase_in(connection, key)

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run that has an idempotency key; without a key, return the run ``key``."""
        if idempotency_key is None:
            return await self._one(key.tenant, of_run(runs, key))
        by_key = runs.c.idempotency_key == idempotency_key
        return await self._one(key.tenant, (runs.c.tenant_id == key.tenant) & by_key)

    async def _one(self, tenant: str, which: ColumnElement[bool]) -> Run | None:
        wanted = select(runs).where(which, runs.c.request.is_not(None))
        async with transaction(self.engines.work, tenant) as connection:
            row = (await connection.execute(wanted)).mappings().one_or_none()
        return None if row is None else run_from_row(row)

    def _listing(
        self, tenant: str, wanted: RunFilter
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        return transaction(
            self.engines.work,
            _wall(tenant, wanted),
            on_behalf_of=tenant,
            statement_ms=LIST_STATEMENT_MS,
        )

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs, newest first."""
        page = page_of(tenant, wanted)
        async with self._listing(tenant, wanted) as connection:
            rows = (await connection.execute(page)).mappings().all()
        found = [run_from_row(row) for row in rows[: wanted.limit]]
        if not rows or rows[0]["there_are"] == len(found):
            return Page(found, None)
        last = found[-1]
        return Page(found, encode_cursor([last.created_at.isoformat(), last.key.run_id]))

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        """Claim the given queued run, or the next one; return None if none can be claimed."""
        one = (None, None) if key is None else (key.tenant, key.run_id)
        asked = (worker_id, self.limits.quota.max_running, *one, list(excluding))
        async with transaction(self.engines.work) as connection:
            claimed = await connection.exec_driver_sql(CLAIM, asked)
            row = claimed.mappings().one_or_none()
            if row is None:
                return None
            run = run_from_row(row)
            # A first claim has no events to continue from.
            if run.fence == 1:
                return run
            last_seq = await last_seq_of(connection, run.key)
            stored_once = await _stored_once(connection, run.key)
            streamed = await streamed_in(connection, run.key)
        return replace(run, last_seq=last_seq, stored_once=stored_once, streamed=streamed)

    async def release(
        self,
        run: Run,
        *,
        active_seconds: float,
        calls: Sequence[CallRecord],
        counted: bool,
        events: Sequence[EventRecord] = (),
        pause_seconds: float = 0.0,
        waits_for: Collection[str] = (),
    ) -> None:
        """Release a claimed run to the queue, or suspend it until an approval is decided."""
        key = run.key
        released = (pause_seconds, active_seconds, counted, key.tenant, key.run_id, run.fence)
        async with transaction(self.engines.work) as connection:
            if waits_for:
                row = await suspend_in(
                    connection, run, active_seconds=active_seconds, waits_for=waits_for
                )
            else:
                row = (await connection.exec_driver_sql(RELEASE, released)).one_or_none()
            if row is None:
                return
            await _write(connection, key, run.fence, calls, events)
            if row.status == RunStatus.QUEUED:
                at = row.queued_at if pause_seconds else None
                await self.dispatch.defer(connection, {key: at})
        self.journal.notifier.notify(key)

    async def late(self, result: LateResult) -> None:
        """Record costs that arose after the end of a run; its status and result do not change."""
        key, fence = result.key, result.fence
        added = {
            "usage": dump(result.usage),
            "tenant": key.tenant,
            "run_id": key.run_id,
            "fence": fence,
        }
        async with transaction(self.engines.work) as connection:
            if (await connection.exec_driver_sql(ADD_LATE, added)).one_or_none() is None:
                return
            last_seq = await last_seq_of(connection, key)
            event = late_result(result.usage, last_seq)
            await _write(connection, key, fence, result.calls, event)
        self.journal.notifier.notify(key)

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return the events after the sequence number ``after``, and whether the run had ended."""
        asked = {"tenant": key.tenant, "run_id": key.run_id, "after": after, "limit": limit}
        async with transaction(self.engines.work, key.tenant) as connection:
            rows = (await connection.exec_driver_sql(EVENTS, asked)).mappings().all()
        if not rows:
            return None
        found = [event_from_row(row) for row in rows if row["seq"] is not None]
        return EventPage(found, finished=rows[0]["status"] in TERMINAL)

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return an event object that is set when the run has new events."""
        return self.journal.notifier.listening(key)

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        async with transaction(self.engines.work, key.tenant) as connection:
            return await journal_of(connection, key)

    async def spent(self, key: RunKey) -> SpentSoFar:
        """Return the usage of a run according to its journal."""
        asked = {"tenant": key.tenant, "run_id": key.run_id}
        async with transaction(self.engines.work, key.tenant) as connection:
            found = (await connection.exec_driver_sql(SPENT, asked)).one()
        return SpentSoFar(charge=charge_of(found.charge), seconds=found.seconds)

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        """Return the records of one call, with its request and attempts, and of the run's root."""
        node = journal.c.node
        attempts = and_(
            node["parent_id"].astext == node_id,
            node["name"].astext == ATTEMPT,
            node["kind"].astext == "system",
        )
        wanted = of_run(journal, key) & (journal.c.seq.in_((1, int(node_id[1:]))) | attempts)
        query = select(journal).where(wanted).order_by(journal.c.seq)
        async with transaction(self.engines.work, key.tenant) as connection:
            return [call_from_row(row) for row in (await connection.execute(query)).mappings()]

    async def payloads(
        self, key: RunKey, *, max_bytes: int, call_keys: Sequence[str] | None = None
    ) -> Sequence[CallRecord]:
        """Return the first calls of a run, with requests and results of up to ``max_bytes``."""
        wanted = None if call_keys is None else list(call_keys)
        asked = (key.tenant, key.run_id, wanted, wanted, max_bytes)
        async with transaction(self.engines.work, key.tenant) as connection:
            rows = (await connection.exec_driver_sql(PAYLOADS, asked)).mappings().all()
        return [call_from_row(row) for row in rows]

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        """Return the calls of a conversation, and the calls that they reference, in order."""
        asked = {
            "tenant": key.tenant,
            "run_id": key.run_id,
            "seq": int(until.node_id[1:]),
            "call_key": call_key,
            "max_bytes": max_bytes,
        }
        async with transaction(self.engines.work, key.tenant) as connection:
            rows = (await connection.exec_driver_sql(CONVERSATION, asked)).mappings().all()
        return [call_from_row(row) for row in rows]

    async def nodes(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        """Return the stored CallNodes of a run, in the order of their IDs."""
        node = cast(journal.c.node, Text)
        query = select(node).where(of_run(journal, key)).order_by(journal.c.seq)
        async with transaction(self.engines.work, key.tenant) as connection:
            texts = (await connection.scalars(query)).all()
        return await asyncio.to_thread(_read_all, texts)  # would block the event loop


def _read_all(texts: Sequence[str]) -> list[Mapping[str, Any]]:
    return [json.loads(text) for text in texts]


def _wall(tenant: str, wanted: RunFilter) -> str | None:
    """Return the tenant that restricts a listing, or None where that would prevent index use.

    Row-level security prevents the use of the indexes on metadata, agents and threads, because
    their operators are not leakproof. In that case only the condition in the query separates
    tenants.
    """
    indexed = wanted.metadata, wanted.agent, wanted.thread_id
    return None if any(indexed) else tenant


def _is_of(insert: RunInsert, run: Run) -> bool:
    """Return whether a run results from the given insert, whose answer was lost.

    A run ID generated by the service, or a worker ID, occurs in no other insert.
    """
    ours = not insert.new.named if insert.worker_id is None else run.worker_id == insert.worker_id
    return run.key == insert.new.key and ours and run.fence <= 1


async def _write(
    connection: AsyncConnection,
    key: RunKey,
    fence: int,
    calls: Sequence[CallRecord],
    events: Sequence[EventRecord],
) -> None:
    """Write calls and events of a run whose row this transaction has locked."""
    if calls:
        rows = [call_to_json(key, fence, record) for record in calls]
        await connection.exec_driver_sql(WRITE_CALLS, (dump(rows),))
    if events:
        rows = [event_to_json(key, fence, record) for record in events]
        await connection.exec_driver_sql(WRITE_EVENTS, (dump(rows),))


async def _stored_once(connection: AsyncConnection, key: RunKey) -> frozenset[str]:
    """Return the keys of the once-only events of a run."""
    key_of = events.c.step_id, events.c.type, events.c.once_key
    keyed = select(*key_of).where(of_run(events, key), events.c.once_key.is_not(None))
    return frozenset(whole_once(*row) for row in await connection.execute(keyed))
