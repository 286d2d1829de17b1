"""The store of runs: accepting, cancelling, claiming and reading them."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    Select,
    Subquery,
    Text,
    and_,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.accept_and_cancel import (
    StoreLimits,
    accept_in,
    cancel_in,
    journal_of,
    last_seq_of,
)
from app.adapters.postgres.dispatch import QueueDispatch
from app.adapters.postgres.engines import Engines, transaction
from app.adapters.postgres.journal import ClaimedInsert, PostgresJournal
from app.adapters.postgres.rows import (
    call_from_row,
    call_to_json,
    claimed_run,
    decode_cursor,
    dump,
    encode_cursor,
    event_from_row,
    event_to_json,
    run_from_row,
)
from app.adapters.postgres.run_statements import (
    ADD_LATE,
    CLAIM,
    CONVERSATION,
    EVENTS,
    PAYLOADS,
    RELEASE,
    SPENT,
    WRITE_CALLS,
    WRITE_EVENTS,
)
from app.adapters.postgres.tables import calls, events, of_run, runs, snapshots
from app.runs.event_log import late_result
from app.runs.ports import (
    Accepted,
    CancelStatus,
    EventPage,
    LateResult,
    Notification,
    Page,
    RunFilter,
    SpentSoFar,
    json_of_text,
)
from app.runs.replay import charge_of
from app.runs.run import (
    TERMINAL,
    CallRecord,
    CancelRequest,
    EventRecord,
    NewRun,
    Run,
    RunKey,
    RunKind,
    RunStatus,
)
from app.trace.node import ATTEMPT

_GRAPH = literal(["graph", "inputs", "chat"], ARRAY(Text))
_WITHOUT_GRAPH = runs.c.request.op("-", return_type=JSONB())(_GRAPH).label("request")
_LEFT_OUT: dict[str, ColumnElement[Any]] = {
    "request": _WITHOUT_GRAPH,
    "result": null().label("result"),
}
_LISTED = [_LEFT_OUT.get(column.name, column) for column in runs.c]
"""A page of runs would hold a page of graphs and results, which nobody looks at there."""

_HAS_METADATA: ColumnElement[bool] = literal_column("runs.metadata <> '{}'", Boolean)

RUN_BYTES = 1000
"""What a run takes on a page beside its metadata, about."""

_PLAIN = re.compile(r"[\x20-\x7e]{1,200}")
"""What a run id may consist of, and more; nothing that the database would refuse."""


@dataclass(slots=True)
class PostgresRuns:
    """Implements the run store; one row decides, see :mod:`app.runs.ports`."""

    engines: Engines
    journal: PostgresJournal
    dispatch: QueueDispatch
    limits: StoreLimits
    _inserting: dict[RunKey, asyncio.Event] = field(default_factory=dict)
    """Runs that this process is just inserting; set when the insert has come to its end."""

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id`` or queued for any worker."""
        if (other := self._inserting.get(new.key)) is not None:
            await other.wait()  # which of the two made the run is known when that one has ended
        elif worker_id is not None:
            with self._begun(new.key):
                if new.request.source is None:
                    return await self._accept_claimed(new, worker_id)
                return await self._accept_alone(new, worker_id)
        return await self._accept_alone(new, worker_id)

    async def _accept_claimed(self, new: NewRun, worker_id: str) -> Accepted:
        insert = ClaimedInsert(new, worker_id)
        created_at = await self.journal.insert(
            insert, timeout_seconds=self.limits.accept_timeout_seconds
        )
        if created_at is not None:
            return Accepted(claimed_run(new, worker_id, created_at), created=True)
        accepted = await self._accept_alone(new, worker_id)
        if insert.maybe_stored and _is_of(insert, accepted.run):
            return Accepted(accepted.run, created=True)
        return accepted

    @contextmanager
    def _begun(self, key: RunKey) -> Iterator[None]:
        """Have others who accept a run of the same id in this process wait for the block's end."""
        self._inserting[key] = ended = asyncio.Event()
        try:
            yield
        finally:
            del self._inserting[key]
            ended.set()

    async def _accept_alone(self, new: NewRun, worker_id: str | None) -> Accepted:
        async with transaction(self.engines.work) as connection:
            accepted = await accept_in(
                connection, new, worker_id=worker_id, max_queued=self.limits.max_queued
            )
            run = accepted.run
            if accepted.created and run.status is RunStatus.QUEUED:
                await self.dispatch.defer(connection, {new.key: None})
        return accepted

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        """Store a cancel request and notify the workers; a queued run is finished at once."""
        async with transaction(self.engines.control) as connection:
            cancelled = await cancel_in(connection, key, cancel_request, self.limits)
        self.journal.notifier.notify(key)
        return cancelled

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; a pending cancel is none."""
        return await self._one(of_run(runs, key))

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run that was made under an idempotency key, or without one under an id."""
        if idempotency_key is None:
            return await self._one(of_run(runs, key))
        by_key = runs.c.idempotency_key == idempotency_key
        return await self._one((runs.c.tenant_id == key.tenant) & by_key)

    async def _one(self, which: ColumnElement[bool]) -> Run | None:
        wanted = select(runs).where(which, runs.c.request.is_not(None))
        async with transaction(self.engines.work) as connection:
            row = (await connection.execute(wanted)).mappings().one_or_none()
        return None if row is None else run_from_row(row)

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs, newest first."""
        query = select(*_LISTED).where(runs.c.tenant_id == tenant, runs.c.request.is_not(None))
        if wanted.status:
            query = query.where(runs.c.status == wanted.status.value)
        if wanted.kind:
            query = query.where(_of_kind(wanted.kind))
        if wanted.agent is not None:
            name = literal_column("request #>> '{graph_ref,name}'", Text)
            query = query.where(_of_kind(RunKind.AGENT), name == wanted.agent)
        for key, value in wanted.metadata.items():
            same = (runs.c.metadata.contains({key: one}) for one in json_of_text(value))
            query = query.where(_HAS_METADATA, or_(*same))
        if wanted.created_after:
            query = query.where(runs.c.created_at > wanted.created_after)
        if wanted.created_before:
            query = query.where(runs.c.created_at < wanted.created_before)
        if wanted.cursor is not None:
            after = decode_cursor(wanted.cursor, _place_in)
            query = query.where(tuple_(runs.c.created_at, runs.c.run_id) < after)
        query = query.order_by(runs.c.created_at.desc(), runs.c.run_id.desc())
        page = _bounded(query.limit(wanted.limit + 1).subquery(), wanted.max_bytes)
        async with transaction(self.engines.work) as connection:
            rows = (await connection.execute(page)).mappings().all()
        found = [run_from_row(row) for row in rows[: wanted.limit]]
        if not rows or rows[0]["there_are"] == len(found):
            return Page(found, None)
        last = found[-1]
        return Page(found, encode_cursor([last.created_at.isoformat(), last.key.run_id]))

    async def claim(self, key: RunKey, worker_id: str) -> Run | None:
        """Take a queued run; None if there is nothing to take."""
        async with transaction(self.engines.work) as connection:
            claimed = await connection.exec_driver_sql(CLAIM, (worker_id, key.tenant, key.run_id))
            row = claimed.mappings().one_or_none()
            if row is None:
                return None
            run = run_from_row(row)
            if run.fence == 1:
                return run
            last_seq = await last_seq_of(connection, key)
            stored_once = await _stored_once(connection, key)
        return replace(run, last_seq=last_seq, stored_once=stored_once)

    async def release(
        self,
        run: Run,
        *,
        active_seconds: float,
        calls: Sequence[CallRecord],
        counted: bool,
        events: Sequence[EventRecord] = (),
        pause_seconds: float = 0.0,
    ) -> None:
        """Give a claimed run back to the queue; ``counted`` says whether the attempt counts."""
        key = run.key
        uncounted, place = 0 if counted else 1, (key.tenant, key.run_id, run.fence)
        released = (uncounted, pause_seconds, active_seconds, *place)
        async with transaction(self.engines.work) as connection:
            row = (await connection.exec_driver_sql(RELEASE, released)).one_or_none()
            if row is None:
                return
            await _write(connection, key, run.fence, calls, events)
            await self.dispatch.defer(connection, {key: row.queued_at if pause_seconds else None})
        self.journal.notifier.notify(key)

    async def late(self, result: LateResult) -> None:
        """Record a result that came after the end; status and result stay as they are."""
        key, fence = result.key, result.fence
        added = (dump(result.usage), key.tenant, key.run_id, fence)
        async with transaction(self.engines.work) as connection:
            if (await connection.exec_driver_sql(ADD_LATE, added)).one_or_none() is None:
                return
            last_seq = await last_seq_of(connection, key)
            event = late_result(result.usage, last_seq)
            await _write(connection, key, fence, result.calls, event)
        self.journal.notifier.notify(key)

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return the events behind number ``after``, and whether the run had ended by then."""
        asked = {"tenant": key.tenant, "run_id": key.run_id, "after": after, "limit": limit}
        async with transaction(self.engines.work) as connection:
            rows = (await connection.exec_driver_sql(EVENTS, asked)).mappings().all()
        if not rows:
            return None
        found = [event_from_row(row) for row in rows if row["seq"] is not None]
        return EventPage(found, finished=rows[0]["status"] in TERMINAL)

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return a notification that is set whenever this process stores events of a run."""
        return self.journal.notifier.listening(key)

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        async with transaction(self.engines.work) as connection:
            return await journal_of(connection, key)

    async def spent(self, key: RunKey) -> SpentSoFar:
        """Return what a run has spent so far."""
        asked = {"tenant": key.tenant, "run_id": key.run_id}
        async with transaction(self.engines.work) as connection:
            found = (await connection.exec_driver_sql(SPENT, asked)).one()
        return SpentSoFar(charge=charge_of(found.charge), seconds=found.seconds)

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        """Return one call with what it asked, its attempts and the root of the run."""
        node = calls.c.node
        attempts = and_(
            node["parent_id"].astext == node_id,
            node["name"].astext == ATTEMPT,
            node["kind"].astext == "system",
        )
        wanted = of_run(calls, key) & (calls.c.seq.in_((1, int(node_id[1:]))) | attempts)
        query = select(calls).where(wanted).order_by(calls.c.seq)
        async with transaction(self.engines.work) as connection:
            return [call_from_row(row) for row in (await connection.execute(query)).mappings()]

    async def payloads(
        self, key: RunKey, *, max_bytes: int, call_keys: Sequence[str] | None = None
    ) -> Sequence[CallRecord]:
        """Return the first calls of a run with what they asked and what they got."""
        wanted = None if call_keys is None else list(call_keys)
        asked = (key.tenant, key.run_id, wanted, wanted, max_bytes)
        async with transaction(self.engines.work) as connection:
            rows = (await connection.exec_driver_sql(PAYLOADS, asked)).mappings().all()
        return [call_from_row(row) for row in rows]

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        """Return the calls of the conversation that a call began, and those that they name."""
        asked = {
            "tenant": key.tenant,
            "run_id": key.run_id,
            "seq": int(until.node_id[1:]),
            "call_key": call_key,
            "max_bytes": max_bytes,
        }
        async with transaction(self.engines.work) as connection:
            rows = (await connection.exec_driver_sql(CONVERSATION, asked)).mappings().all()
        return [call_from_row(row) for row in rows]

    async def snapshot(self, key: RunKey) -> Mapping[str, Any] | None:
        """Return the ExecutionGraph that was stored with the end of a run."""
        query = select(snapshots.c.snapshot).where(of_run(snapshots, key))
        async with transaction(self.engines.work) as connection:
            found: Mapping[str, Any] | None = await connection.scalar(query)
        return found


def _of_kind(kind: RunKind) -> ColumnElement[bool]:
    """Return the condition, written out and not bound: partial indexes are chosen by it."""
    return runs.c.kind == literal(kind.value, Text, literal_execute=True)


def _bounded(page: Subquery, max_bytes: int | None) -> Select[Any]:
    """Return the rows of a page that begin within ``max_bytes``, with how many there would be."""
    order = page.c.created_at.desc(), page.c.run_id.desc()
    size = func.octet_length(cast(page.c.metadata, Text)) + RUN_BYTES
    before = func.sum(size).over(order_by=order) - size
    counted = select(page, before.label("before"), func.count().over().label("there_are"))
    rows = counted.subquery()
    wanted = select(rows).order_by(rows.c.created_at.desc(), rows.c.run_id.desc())
    return wanted if max_bytes is None else wanted.where(rows.c.before < max_bytes)


def _is_of(insert: ClaimedInsert, run: Run) -> bool:
    """Return whether a run is there as an insert would have left it whose answer was lost."""
    return run.key == insert.new.key and run.worker_id == insert.worker_id and run.fence == 1


async def _write(
    connection: AsyncConnection,
    key: RunKey,
    fence: int,
    calls: Sequence[CallRecord],
    events: Sequence[EventRecord],
) -> None:
    """Write what belongs to a run whose row is locked by this transaction."""
    if calls:
        rows = [call_to_json(key, fence, record) for record in calls]
        await connection.exec_driver_sql(WRITE_CALLS, (dump(rows),))
    if events:
        rows = [event_to_json(key, fence, record) for record in events]
        await connection.exec_driver_sql(WRITE_EVENTS, (dump(rows),))


async def _stored_once(connection: AsyncConnection, key: RunKey) -> frozenset[str]:
    """Return the keys of the events of a run that are stored once."""
    keyed = of_run(events, key) & events.c.once_key.is_not(None)
    return frozenset((await connection.execute(select(events.c.once_key).where(keyed))).scalars())


def _place_in(place: Any) -> ColumnElement[Any]:
    """Return what rows after a cursor are less than."""
    created_at, run_id = place
    if not _PLAIN.fullmatch(run_id):
        raise ValueError(run_id)
    return tuple_(literal(datetime.fromisoformat(created_at)), literal(run_id))
