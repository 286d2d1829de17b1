"""Storage for runs in Postgres: accept, cancel, claim, release and erase them.

Accepting and cancelling write the row of a run that may not exist yet. Both insert the row or
update the existing one, so a cancel request takes effect even if it arrives before its run. A
batched insert stores new runs without conflicts, which is the common case. :func:`accept_in`
accepts the runs that this insert does not store.

See docs/internals.md, "One row decides".
"""

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.core.budget.accounts import Hold
from caseworker.core.budget.stops import DeadlineExceededError
from caseworker.platform.caller import DEFAULT_TENANT
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import transaction
from caseworker.platform.postgres.json_text import dump
from caseworker.platform.postgres.locks import LOCK_IDEMPOTENCY_KEY
from caseworker.runs.accept.postgres.batch_accept import (
    ACCEPT_ONE,
    COUNT_QUEUED,
    COUNT_QUEUED_OF,
    AcceptChecks,
    RunCheck,
    RunInsert,
    few_of_queue,
)
from caseworker.runs.accept.postgres.batch_accept import (
    UNLIMITED as UNLIMITED_QUEUE,
)
from caseworker.runs.accept.postgres.run_import import import_run
from caseworker.runs.errors import (
    IdempotencyMismatchError,
    QueueFullError,
    RunConflictError,
    TooManyPendingCancelsError,
)
from caseworker.runs.execute.outcome import cancelled_while_queued, stopped_while_queued
from caseworker.runs.execute.postgres.suspension import suspend_in
from caseworker.runs.journal.event_log import late_result
from caseworker.runs.journal.journal_rows import (
    call_to_json,
    event_to_json,
    finish_to_json,
    hold_to_json,
    key_to_json,
)
from caseworker.runs.journal.replay import restore
from caseworker.runs.kinds import KINDS
from caseworker.runs.ports import Accepted, CancelStatus, LateResult, RunFilter
from caseworker.runs.postgres.erasure import erase_in
from caseworker.runs.postgres.listener import CANCEL_CHANNEL
from caseworker.runs.postgres.queue_jobs import defer_runs
from caseworker.runs.postgres.rows import (
    accepted_run,
    cancel_request_from_row,
    new_run_to_json,
    run_from_row,
)
from caseworker.runs.postgres.run_statements import (
    ADD_LATE,
    CLAIM,
    CLAIM_STOPPED,
    CLAIM_SUSPECT,
    CLEAR_DEATHS,
    COUNT_BROKEN,
    COUNT_PENDING,
    DEATHS,
    DROP_EXPIRED,
    FINISH_UNOWNED,
    OVERDUE,
    RELEASE,
    REQUEST_CANCEL,
    SETTLE,
    STOPPED_STARTED,
    WAKE_STOPPED,
    WRITE_CALLS,
    WRITE_EVENTS,
)
from caseworker.runs.postgres.tables import of_run, runs
from caseworker.runs.quotas import UNLIMITED, Quota
from caseworker.runs.read.postgres.run_listing import can_be_stopped, stoppable
from caseworker.runs.read.postgres.run_reader import (
    RUN_OF_KEY,
    PostgresRunReader,
    journal_of,
    last_seq_of,
    once_keys_of,
    open_starts_of,
    read_run,
    streamed_in,
)
from caseworker.runs.run import (
    CallRecord,
    CancelRequest,
    Deaths,
    EventRecord,
    FinishRun,
    NewRun,
    Run,
    RunKey,
    RunStatus,
    as_ended,
)

UNOWNED_STATUSES = (RunStatus.QUEUED, RunStatus.WAITING)

MAX_EXPIRED_DROPPED = 100
"""Maximum number of expired cancel requests, for runs that were never created, to delete for each
new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits that the store enforces when it accepts and cancels runs."""

    pending_cancel_ttl_seconds: float
    max_pending_cancels: int
    """Maximum number of cancel requests per tenant for runs that do not exist."""
    max_queued: int | None = None
    quota: Quota
    """Quota for tenants without their own quota."""
    checks: AcceptChecks
    """Checks runs that batches do not accept."""
    accept_timeout_seconds: float


@dataclass(slots=True)
class PostgresRuns(PostgresRunReader):
    """Stores runs in Postgres; see :mod:`caseworker.runs.ports` for the rules."""

    limits: StoreLimits
    skips_suspects: bool = False
    """Whether :meth:`claim` skips suspects, because other processes execute them alone."""
    kinds: list[str] | None = None
    """Kinds of runs to claim; None claims runs of all kinds."""
    _inserting: dict[RunKey, asyncio.Event] = field(default_factory=dict)
    """Runs that this process is inserting; the event is set when the insert has finished."""
    _in_batches: bool = field(init=False)
    """Whether the default quota limits at most storage, which a batch checks itself."""

    def __post_init__(self) -> None:
        self._in_batches = self.limits.quota.for_tenant(DEFAULT_TENANT) == UNLIMITED

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id``; without a worker, queued."""
        if (other := self._inserting.get(new.key)) is not None:
            await other.wait()  # only the outcome of that insert shows which one created the run
            return await self._accept_alone(new, worker_id)
        request = new.request
        plain = request.source is None and self._in_batches and not new.is_overdue
        with self._exclusive_accept(new.key):
            if plain and (worker_id is not None or request.start_at is None):
                return await self._accept_in_batch(new, worker_id)
            return await self._accept_alone(new, worker_id)

    async def _accept_in_batch(self, new: NewRun, worker_id: str | None) -> Accepted:
        max_queued, usual = self.limits.max_queued, self.limits.quota.for_tenant(new.key.tenant)
        insert = RunInsert(
            new,
            worker_id,
            UNLIMITED_QUEUE if max_queued is None else max_queued,
            usual.max_stored_bytes,
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
    def _exclusive_accept(self, key: RunKey) -> Iterator[None]:
        """Make concurrent accepts of the same run ID in this process wait until the block ends."""
        self._inserting[key] = ended = asyncio.Event()
        try:
            yield
        finally:
            del self._inserting[key]
            ended.set()

    async def _accept_alone(self, new: NewRun, worker_id: str | None) -> Accepted:
        try:
            new = await new.current()
        except Exception:  # the run may be stored already, with a definition that is gone now
            run = await self.earlier(new.key, new.idempotency_key)
            if run is None or run.request_hash != new.request_hash:
                raise
            return Accepted(run, created=False)
        async with transaction(self.engines.work) as connection:
            accepted = await accept_in(connection, new, worker_id=worker_id, limits=self.limits)
            run = accepted.run
            if accepted.created and run.status is RunStatus.QUEUED:
                await defer_runs(connection, {new.key: new.request.start_at})
        return accepted

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        """Store a cancel request and notify the workers; a run that no worker owns ends at once."""
        async with transaction(self.engines.control) as connection:
            cancelled = await cancel_in(connection, key, cancel_request, self.limits)
        self.journal.notifier.notify(key)
        return cancelled

    async def stoppable(self, tenant: str, run_filter: RunFilter) -> Sequence[RunKey]:
        """Return the oldest matching runs that have not ended and have no cancel request."""
        async with self._listing(tenant, run_filter) as connection:
            run_ids = (await connection.execute(stoppable(tenant, run_filter))).scalars().all()
        return [RunKey(tenant, run_id) for run_id in run_ids]

    async def cancel_matching(
        self, key: RunKey, cancel_request: CancelRequest, run_filter: RunFilter
    ) -> CancelStatus | None:
        """Cancel a run, if :meth:`stoppable` would still return it; otherwise return None."""
        locked = select(runs.c.run_id).where(
            of_run(runs, key), *can_be_stopped(key.tenant, run_filter)
        )
        async with transaction(self.engines.work) as connection:
            fits = await connection.execute(locked.with_for_update(key_share=True))
            if fits.one_or_none() is None:
                return None
            await record(connection, key.tenant, Act.RUN_CANCELLED, key.run_id)
            cancelled = await cancel_in(connection, key, cancel_request, self.limits)
        self.journal.notifier.notify(key)
        return cancelled

    async def erase(self, key: RunKey) -> None:
        """Erase an ended run with all its data."""
        async with transaction(self.engines.work) as connection:
            await erase_in(connection, key)
            await record(connection, key.tenant, Act.RUN_ERASED, key.run_id)

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        """Claim the given queued run, or the next one; return None if none can be claimed."""
        one = (None, None) if key is None else (key.tenant, key.run_id)
        suspects = False if key is None and self.skips_suspects else None
        parameters = (worker_id, self.limits.quota.max_running, *one, list(excluding), suspects)
        return await self._claim(CLAIM, (*parameters, self.kinds))

    async def claim_suspect(self, worker_id: str) -> Run | None:
        """Claim a queued suspect; return None if there is none, or two are being executed."""
        parameters = worker_id, self.limits.quota.max_running, self.kinds
        return await self._claim(CLAIM_SUSPECT, parameters)

    async def claim_stopped(self, key: RunKey, worker_id: str) -> Run | None:
        """Claim a run that has started and was stopped, unless a worker owns it."""
        return await self._claim(CLAIM_STOPPED, (worker_id, key.tenant, key.run_id))

    async def _claim(self, statement: str, parameters: tuple[Any, ...]) -> Run | None:
        async with transaction(self.engines.work) as connection:
            claimed = await connection.exec_driver_sql(statement, parameters)
            row = claimed.mappings().one_or_none()
            if row is None:
                return None
            run = run_from_row(row)
            # A first claim has no events to continue from.
            if run.fence == 1:
                return run
            last_seq = await last_seq_of(connection, run.key)
            stored_once = await once_keys_of(connection, run.key)
            streamed = await streamed_in(connection, run.key)
            open_starts = await open_starts_of(connection, run.key)
            deaths = await _deaths_of(connection, run.key)
        return replace(
            run,
            deaths=deaths,
            last_seq=last_seq,
            stored_once=stored_once,
            streamed=streamed,
            open_starts=open_starts,
        )

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
        settled: Sequence[Hold] = (),
        cleared: bool = False,
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
            if counted or cleared:
                count = CLEAR_DEATHS if cleared else COUNT_BROKEN
                await connection.exec_driver_sql(count, (key.tenant, key.run_id))
            if settled:
                holds = [hold_to_json(key_to_json(key, run.fence), hold) for hold in settled]
                await connection.exec_driver_sql(SETTLE, (dump(holds),))
            if row.status == RunStatus.QUEUED:
                at = row.queued_at if pause_seconds else None
                await defer_runs(connection, {key: at})
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


async def _deaths_of(connection: AsyncConnection, key: RunKey) -> Deaths | None:
    rows = await connection.exec_driver_sql(DEATHS, (key.tenant, key.run_id))
    row = rows.mappings().one_or_none()
    return None if row is None else Deaths(**{**row, "calls": tuple(row["calls"])})


async def accept_in(
    connection: AsyncConnection, new: NewRun, *, worker_id: str | None, limits: StoreLimits
) -> Accepted:
    """Store a run in this transaction, or return the run that the same request created before.

    The caller must roll the transaction back after an error: the run may have been inserted.

    Raises:
        RunConflictError: the run ID, alone or with the idempotency key, was used for a different
            request.
        IdempotencyMismatchError: the idempotency key was used with a different body.
        QueueFullError: too many runs are queued.
        QuotaExceededError: a quota of the tenant is exhausted.
        SourceNotFoundError, SourceNotEndedError, InvalidRunError: see :func:`import_run`.
    """
    # The order of locks is that of platform/postgres/locks.py: the idempotency key, the tenant,
    # the row of the run (ON CONFLICT), the row of its source, the rows of quotas. A claim also
    # locks the tenant before the row. Another order can deadlock with it.
    if new.idempotency_key is not None:
        earlier = await _earlier_by_key(connection, new)
        if earlier is not None:
            return await _repeated(connection, earlier, limits)
    admission = await limits.checks.check_of(connection, new, limits.quota)
    if admission is not None:
        new = admission.restricted
    overdue = new.is_overdue
    if overdue or (admission is not None and not admission.may_begin):
        worker_id = None
    document = dump([new_run_to_json(new, worker_id)])
    async with nullcontext() if admission is None else admission.storing(connection):
        row = (await connection.exec_driver_sql(ACCEPT_ONE, (document,))).mappings().one_or_none()
    if row is None:
        # A run with this ID exists; ON CONFLICT has locked its row.
        return await _repeated(connection, await _same_request(connection, new), limits)
    if new.request.source is not None:
        await import_run(connection, new.key, new.request.source)
    cancel_request = cancel_request_from_row(row)
    if cancel_request is not None:
        run = await read_run(connection, new.key)
        await _cancel_unstarted(connection, run, cancel_request)
        return Accepted(await read_run(connection, new.key), created=True)
    run = replace(accepted_run(new, worker_id, row["created_at"]), fence=row["fence"])
    rate = None
    if worker_id is None and not overdue:
        await _require_place(connection, new, admission, limits)
    if admission is not None:
        rate = await admission.charge(connection, queued=worker_id is None and not overdue)
        run = replace(run, accounts=run.accounts or admission.accounts)
    if overdue:
        run, _ = await _halt_overdue(connection, run)
    return Accepted(run, created=True, rate=rate)


async def _require_place(
    connection: AsyncConnection, new: NewRun, admission: RunCheck | None, limits: StoreLimits
) -> None:
    """Check that a run that this transaction has stored may wait in the queue.

    Raises:
        QuotaExceededError: the run cannot wait, because it only works while its client does.
        QueueFullError: too many runs are queued.
    """
    if admission is not None and KINDS[new.request.kind].is_external:
        raise admission.cannot_start
    if limits.max_queued is None or await _queue_has_capacity(connection, new, limits.max_queued):
        return
    rate = None
    if admission is not None:
        rate = await limits.checks.left_of_rate(connection, new.key.tenant, limits.quota)
    raise QueueFullError(rate)


async def _repeated(connection: AsyncConnection, run: Run, limits: StoreLimits) -> Accepted:
    """Answer a repeated request with its run; this consumes none of the tenant's rate."""
    rate = await limits.checks.left_of_rate(connection, run.key.tenant, limits.quota)
    return Accepted(run, created=False, rate=rate)


async def _queue_has_capacity(connection: AsyncConnection, new: NewRun, max_queued: int) -> bool:
    """Return whether the queue has capacity for a run that this transaction has already stored.

    One tenant may fill the queue. To keep other tenants from being rejected, a tenant with few
    queued runs may extend a full queue to twice its length.
    """
    later, tenant = new.request.start_at is not None, new.key.tenant

    async def at_most(limit: int, statement: str, *of: str) -> bool:
        rows = await connection.exec_driver_sql(statement, (*of, later, limit + 1))
        count: int = rows.scalar_one()
        return count <= limit

    if await at_most(max_queued, COUNT_QUEUED):
        return True
    has_few = await at_most(few_of_queue(max_queued), COUNT_QUEUED_OF, tenant)
    return has_few and await at_most(2 * max_queued, COUNT_QUEUED)


async def _earlier_by_key(connection: AsyncConnection, new: NewRun) -> Run | None:
    """Return the run with this idempotency key, and lock the key until the transaction commits."""
    key = new.key.tenant, new.idempotency_key
    await connection.exec_driver_sql(LOCK_IDEMPOTENCY_KEY, key)
    rows = await connection.exec_driver_sql(RUN_OF_KEY, key)
    row = rows.mappings().one_or_none()
    if row is None:
        return None
    if new.named and row["run_id"] != new.key.run_id:
        raise RunConflictError
    if row["request_hash"] != new.request_hash:
        raise IdempotencyMismatchError
    return run_from_row(row)


async def _same_request(connection: AsyncConnection, new: NewRun) -> Run:
    """Return the run with this ID if the same request created it."""
    run = await read_run(connection, new.key)
    other_key = new.idempotency_key not in (None, run.idempotency_key)
    if run.request_hash != new.request_hash or other_key:
        raise RunConflictError
    return run


async def cancel_in(
    connection: AsyncConnection, key: RunKey, cancel_request: CancelRequest, limits: StoreLimits
) -> CancelStatus:
    """Store a cancel request in this transaction; end the run at once if no worker owns it.

    Raises:
        TooManyPendingCancelsError: too many cancel requests are stored for runs that do not exist.
    """
    by, reason = cancel_request.requested_by, cancel_request.reason
    parameters = (key.tenant, key.run_id, by, reason, limits.pending_cancel_ttl_seconds)
    stored = await connection.exec_driver_sql(REQUEST_CANCEL, parameters)
    row: RowMapping | None = stored.mappings().one_or_none()
    if row is None:
        run = await read_run(connection, key)
        return CancelStatus(key.run_id, run, run.cancel_request, already_finished=True)
    first = cancel_request_from_row(row)
    if row["request"] is None or first is None:
        await _require_capacity(connection, key.tenant, limits.max_pending_cancels)
        return CancelStatus(key.run_id, None, first)
    run = run_from_row(row)
    if run.started_at is None:
        snapshot = await _cancel_unstarted(connection, run, first)
        run = await read_run(connection, key)
        return CancelStatus(key.run_id, run, run.cancel_request, snapshot=snapshot)
    if run.status in UNOWNED_STATUSES:
        await connection.exec_driver_sql(WAKE_STOPPED, (key.tenant, key.run_id))
        await defer_runs(connection, {key: None})
        run = replace(run, status=RunStatus.QUEUED)
    await _notify(connection, run, first)
    return CancelStatus(key.run_id, run, run.cancel_request)


async def _require_capacity(connection: AsyncConnection, tenant: str, max_pending: int) -> None:
    """Delete some expired pending cancels, then enforce the tenant's limit on the rest."""
    await connection.exec_driver_sql(DROP_EXPIRED, (tenant, MAX_EXPIRED_DROPPED))
    pending = await connection.exec_driver_sql(COUNT_PENDING, (tenant, max_pending + 1))
    if pending.scalar_one() > max_pending:
        raise TooManyPendingCancelsError


async def halt_overdue(
    connection: AsyncConnection, limit: int
) -> Sequence[tuple[Run, Mapping[str, Any]]]:
    """End up to ``limit`` queued runs that never started and whose deadline has passed.

    Return each run in its final state, with its ExecutionGraph.
    """
    rows = (await connection.exec_driver_sql(OVERDUE, (limit,))).mappings().all()
    overdue = sorted(map(run_from_row, rows), key=lambda run: (run.key.tenant, run.created_at))
    # Sorted, so that concurrent calls lock the tenants' quota rows in the same order.
    return [await _halt_overdue(connection, run) for run in overdue]


async def stopped_started(connection: AsyncConnection, limit: int) -> Sequence[RunKey]:
    """Return up to ``limit`` queued runs that have started and were stopped.

    They have a cancel request, or their deadline has passed.
    """
    rows = (await connection.exec_driver_sql(STOPPED_STARTED, (limit, limit))).all()
    return [RunKey(row.tenant_id, row.run_id) for row in rows]


async def _halt_overdue(connection: AsyncConnection, run: Run) -> tuple[Run, Mapping[str, Any]]:
    """End a queued run, locked by this transaction, that never started and is overdue."""
    deadline = run.request.deadline or run.created_at
    stop = DeadlineExceededError(deadline)
    finish = await _end_unstarted(
        connection, run, lambda imported: stopped_while_queued(run, stop, imported, at=deadline)
    )
    ended = await read_run(connection, run.key)
    return as_ended(run, finish, ended.finished_at or deadline), finish.snapshot


async def _cancel_unstarted(
    connection: AsyncConnection, run: Run, cancel_request: CancelRequest
) -> Mapping[str, Any]:
    """Cancel a run that never started and that this transaction has locked.

    Return its ExecutionGraph.
    """
    finish = await _end_unstarted(
        connection, run, lambda imported: cancelled_while_queued(run, cancel_request, imported)
    )
    return finish.snapshot


async def _end_unstarted(
    connection: AsyncConnection, run: Run, end: Callable[[Sequence[CallRecord]], FinishRun]
) -> FinishRun:
    """Persist and return the end of a run that never started and that this transaction has locked.

    ``end`` builds it from the calls that the run imported from the run that it resumes.
    """
    resumes = run.request.source is not None
    imported = await journal_of(connection, run.key) if resumes else ()
    finish = await restore(imported, lambda: end(imported))
    of_run = key_to_json(finish.key, finish.fence)
    calls = dump([call_to_json(of_run, record) for record in finish.calls])
    events = dump([event_to_json(of_run, record) for record in finish.events])
    documents = (dump([finish_to_json(finish, len(calls) + len(events))]), calls, events, "[]")
    await connection.exec_driver_sql(FINISH_UNOWNED, documents)
    return finish


async def _notify(connection: AsyncConnection, run: Run, cancel_request: CancelRequest) -> None:
    """Notify the workers; Postgres limits a notification to 8,000 bytes."""
    payload: dict[str, Any] = {
        "tenant": run.key.tenant,
        "run_id": run.key.run_id,
        "unowned": run.status in UNOWNED_STATUSES,
        "by": cancel_request.requested_by[:200],
        "reason": (cancel_request.reason or "")[:500] or None,
    }
    text = json.dumps(payload, ensure_ascii=False)
    await connection.execute(select(func.pg_notify(CANCEL_CHANNEL, text)))


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
    of_run = key_to_json(key, fence)
    if calls:
        rows = [call_to_json(of_run, record) for record in calls]
        await connection.exec_driver_sql(WRITE_CALLS, (dump(rows),))
    if events:
        rows = [event_to_json(of_run, record) for record in events]
        await connection.exec_driver_sql(WRITE_EVENTS, (dump(rows),))
