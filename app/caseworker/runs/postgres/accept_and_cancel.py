"""The two transactions that may write a run's row before the run exists: accept and cancel.

Both insert the row or update the existing one, so an early cancel request and a late run cannot
miss each other. In the common case, a new run without conflicts, a batched insert stores the run.
Only the runs that this insert does not store are accepted here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.core.budget.stops import DeadlineExceededError
from caseworker.engine.events import CONTENT_CHUNK
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.errors import (
    IdempotencyMismatchError,
    QueueFullError,
    RunConflictError,
    TooManyPendingCancelsError,
)
from caseworker.runs.outcome import cancelled_while_queued, stopped_while_queued
from caseworker.runs.ports import Accepted, CancelStatus
from caseworker.runs.postgres.accept_statements import (
    ACCEPT_ONE,
    COUNT_QUEUED,
    COUNT_QUEUED_OF,
    LOCK_KEY,
)
from caseworker.runs.postgres.quotas import admission_of, left_of_rate, storing
from caseworker.runs.postgres.read_statements import STREAMED
from caseworker.runs.postgres.rows import (
    call_from_row,
    call_to_json,
    cancel_request_from_row,
    event_to_json,
    finish_to_json,
    new_run_to_json,
    run_from_row,
)
from caseworker.runs.postgres.run_statements import (
    COUNT_PENDING,
    DROP_EXPIRED,
    FINISH_UNOWNED,
    OVERDUE,
    REQUEST_CANCEL,
)
from caseworker.runs.postgres.tables import JOURNAL_COLUMNS, events, journal, of_run, runs
from caseworker.runs.postgres.taking_over import take_over
from caseworker.runs.quotas import UNLIMITED, Quota, few_of_queue
from caseworker.runs.run import (
    CallRecord,
    CancelRequest,
    FinishRun,
    NewRun,
    Run,
    RunKey,
    RunStatus,
    as_ended,
)

CANCEL_CHANNEL = "caseworker_cancel"
"""Postgres notification channel for cancel requests. Heartbeats find the requests that a worker
missed."""

MAX_RECEIPT_CALLS = 100
"""Maximum number of calls listed in the response to a cancel request."""

MAX_EXPIRED_DROPPED = 100
"""Maximum number of expired cancel requests (for runs that never came) to delete for each new
one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits that the store enforces when it accepts and cancels runs."""

    pending_cancel_ttl_seconds: float
    max_pending_cancels: int
    """Maximum number of cancel requests per tenant for runs that do not exist."""
    max_queued: int | None = None
    quota: Quota
    """Quota for tenants without their own quota."""
    accept_timeout_seconds: float


async def accept_in(
    connection: AsyncConnection, new: NewRun, *, worker_id: str | None, limits: StoreLimits
) -> Accepted:
    """Store a run in this transaction, or return the run that the same request created before.

    Raises:
        RunConflictError: the run ID, or the idempotency key together with it, belongs to another
            request.
        IdempotencyMismatchError: the idempotency key was used with a different body.
        QueueFullError: too many runs are queued.
        QuotaExceededError: a quota of the tenant is exhausted.
        SourceNotFoundError, SourceNotEndedError, InvalidRunError: see :func:`take_over`.
    """
    if new.idempotency_key is not None:
        earlier = await _earlier_by_key(connection, new)
        if earlier is not None:
            return await _repeated(connection, earlier, limits)
    admission = await admission_of(connection, new, limits.quota)
    if admission is not None:
        new = admission.restricted
    overdue = new.is_overdue
    if overdue or (admission is not None and not admission.may_begin):
        worker_id = None
    document = dump([new_run_to_json(new, worker_id)])
    async with storing(connection, new.key.tenant, admission.quota if admission else UNLIMITED):
        row = (await connection.exec_driver_sql(ACCEPT_ONE, (document,))).mappings().one_or_none()
    if row is None:
        # A run with this ID exists; ON CONFLICT has locked its row.
        return await _repeated(connection, await _same_request(connection, new), limits)
    run = run_from_row(row)
    if new.request.source is not None:
        await take_over(connection, new.key, new.request.source)
    if run.cancel_request is not None:
        await _cancel_unowned(connection, run, run.cancel_request)
        run = await read_run(connection, new.key)
        return Accepted(run, created=True)
    queued = worker_id is None and not overdue
    most, rate = limits.max_queued, None
    if queued and most is not None and not await _has_place(connection, new, most):
        if admission is not None:
            rate = await left_of_rate(connection, new.key.tenant, limits.quota)
        raise QueueFullError(rate)
    if admission is not None:
        rate = await admission.charge(connection, queued=queued)
    if overdue:
        run, _ = await _halt_overdue(connection, run)
    return Accepted(run, created=True, rate=rate)


async def _repeated(connection: AsyncConnection, run: Run, limits: StoreLimits) -> Accepted:
    """Answer a repeated request with its run; this consumes none of the tenant's rate."""
    rate = await left_of_rate(connection, run.key.tenant, limits.quota)
    return Accepted(run, created=False, rate=rate)


async def _has_place(connection: AsyncConnection, new: NewRun, most: int) -> bool:
    """Return whether the queue has capacity for a run that this transaction has already stored.

    One tenant may fill the queue. To keep other tenants from being rejected, a tenant with few
    queued runs may extend a full queue to twice its length.
    """
    later, tenant = new.request.start_at is not None, new.key.tenant
    few = few_of_queue(most)

    async def at_most(limit: int, statement: str, *of: str) -> bool:
        found = await connection.exec_driver_sql(statement, (*of, later, limit + 1))
        count: int = found.scalar_one()
        return count <= limit

    if await at_most(most, COUNT_QUEUED):
        return True
    has_few = await at_most(few, COUNT_QUEUED_OF, tenant)
    return has_few and await at_most(2 * most, COUNT_QUEUED)


async def _earlier_by_key(connection: AsyncConnection, new: NewRun) -> Run | None:
    """Return the run with this idempotency key, and lock the key until the transaction commits."""
    await connection.exec_driver_sql(LOCK_KEY, (new.key.tenant, new.idempotency_key))
    found = await connection.execute(
        select(runs).where(
            runs.c.tenant_id == new.key.tenant, runs.c.idempotency_key == new.idempotency_key
        )
    )
    row = found.mappings().one_or_none()
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
        await _require_room(connection, key.tenant, limits.max_pending_cancels)
        return CancelStatus(key.run_id, None, first)
    run = run_from_row(row)
    begun, snapshot = await _begun_calls(connection, key), None
    if run.status in (RunStatus.QUEUED, RunStatus.WAITING):
        snapshot = await _cancel_unowned(connection, run, first)
        run = await read_run(connection, key)
    else:
        await _notify(connection, key, first)
    return CancelStatus(key.run_id, run, run.cancel_request, calls=begun, snapshot=snapshot)


async def _require_room(connection: AsyncConnection, tenant: str, most: int) -> None:
    """Delete some expired pending cancels, then enforce the tenant's limit on the rest."""
    await connection.exec_driver_sql(DROP_EXPIRED, (tenant, MAX_EXPIRED_DROPPED))
    pending = await connection.exec_driver_sql(COUNT_PENDING, (tenant,))
    if pending.scalar_one() > most:
        raise TooManyPendingCancelsError


async def _cancel_unowned(
    connection: AsyncConnection, run: Run, cancel_request: CancelRequest
) -> Mapping[str, Any]:
    """Cancel a run that no worker owns; return its ExecutionGraph."""
    earlier = await journal_of(connection, run.key)
    last_seq = await last_seq_of(connection, run.key)
    run = replace(run, streamed=await streamed_in(connection, run.key))
    finish = cancelled_while_queued(run, cancel_request, earlier, last_seq=last_seq)
    await _finish_queued(connection, finish)
    return finish.snapshot


async def halt_overdue(
    connection: AsyncConnection, limit: int
) -> Sequence[tuple[Run, Mapping[str, Any]]]:
    """End up to ``limit`` queued runs whose deadline has passed.

    Return each run in its final state, with its ExecutionGraph.
    """
    rows = (await connection.exec_driver_sql(OVERDUE, (limit,))).mappings().all()
    found = sorted(map(run_from_row, rows), key=lambda run: (run.key.tenant, run.created_at))
    # Sorted, so that concurrent calls lock the tenants' quota rows in the same order.
    return [await _halt_overdue(connection, run) for run in found]


async def _halt_overdue(connection: AsyncConnection, run: Run) -> tuple[Run, Mapping[str, Any]]:
    """End a queued run, locked by this transaction, whose deadline has passed."""
    deadline = run.request.deadline or run.created_at
    earlier = await journal_of(connection, run.key)
    last_seq = await last_seq_of(connection, run.key)
    run = replace(run, streamed=await streamed_in(connection, run.key))
    stop = DeadlineExceededError(deadline)
    finish = stopped_while_queued(run, stop, earlier, at=deadline, last_seq=last_seq)
    finished_at = await _finish_queued(connection, finish)
    return as_ended(run, finish, finished_at), finish.snapshot


async def _finish_queued(connection: AsyncConnection, finish: FinishRun) -> datetime:
    """Persist the end of a run that no worker owns and this transaction has locked; return when."""
    calls = dump([call_to_json(finish.key, finish.fence, record) for record in finish.calls])
    events = dump([event_to_json(finish.key, finish.fence, record) for record in finish.events])
    documents = (dump([finish_to_json(finish, len(calls) + len(events))]), calls, events)
    finished_at: datetime = (
        (await connection.exec_driver_sql(FINISH_UNOWNED, documents)).one().finished_at
    )
    return finished_at


async def _notify(connection: AsyncConnection, key: RunKey, cancel_request: CancelRequest) -> None:
    """Notify the workers; Postgres limits a notification to 8,000 bytes."""
    payload: dict[str, Any] = {
        "tenant": key.tenant,
        "run_id": key.run_id,
        "by": cancel_request.requested_by[:200],
        "reason": (cancel_request.reason or "")[:500] or None,
    }
    text = json.dumps(payload, ensure_ascii=False)
    await connection.execute(select(func.pg_notify(CANCEL_CHANNEL, text)))


async def _begun_calls(connection: AsyncConnection, key: RunKey) -> tuple[CallRecord, ...]:
    """Return the last LLM and tool calls that have taken effect, or may have.

    A call journaled as created has passed its barrier or is about to. The run's row is locked
    during this query, so the number of calls is limited.
    """
    last = (
        select(*JOURNAL_COLUMNS)
        .where(of_run(journal, key), journal.c.node["kind"].astext.in_(("llm", "tool")))
        .order_by(journal.c.seq.desc())
        .limit(MAX_RECEIPT_CALLS)
    )
    rows = (await connection.execute(last)).mappings().all()
    return tuple(call_from_row(row) for row in reversed(rows))


async def read_run(connection: AsyncConnection, key: RunKey) -> Run:
    """Return a run, which must exist."""
    query = select(runs).where(of_run(runs, key))
    return run_from_row((await connection.execute(query)).mappings().one())


async def journal_of(connection: AsyncConnection, key: RunKey) -> Sequence[CallRecord]:
    """Return the journal of a run, in the order of its CallNodes."""
    query = select(*JOURNAL_COLUMNS).where(of_run(journal, key)).order_by(journal.c.seq)
    return [call_from_row(row) for row in (await connection.execute(query)).mappings()]


async def last_seq_of(connection: AsyncConnection, key: RunKey) -> int:
    """Return the sequence number of a run's last event, or 0 without events.

    An earlier statement of this transaction must have locked the run's row. If a statement itself
    waits for the lock, it does not see the events that were committed during the wait.
    """
    last = select(func.max(events.c.seq)).where(of_run(events, key))
    return await connection.scalar(last) or 0


async def streamed_in(
    connection: AsyncConnection, key: RunKey
) -> dict[tuple[str | None, str], Any]:
    """Return the answers whose streaming was not finished, by step ID and event type.

    Each value holds the number of the agent's turn and the text streamed so far.
    """
    found: dict[tuple[str | None, str], tuple[int, str]] = {}
    asked = {"tenant": key.tenant, "run_id": key.run_id}
    for row in await connection.exec_driver_sql(STREAMED, asked):
        of = row.step_id, CONTENT_CHUNK
        _, before = found.get(of, (0, ""))
        found[of] = row.turn, before[: row.offset] + row.content
    return found
