"""Accepts runs in batches: one statement inserts many new runs.

A run that the batch leaves out because of a conflict is accepted separately, by an insert that
handles all cases. As in :mod:`run_statements`, the statements are SQL text with placeholders of the
psycopg driver, and take their rows as one JSON document.

A batch only inserts runs whose tenant has no limit. The feature ``quotas`` checks the other runs,
through the port :class:`AcceptChecks`.

See docs/internals.md, "One row decides".
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

import psycopg
from psycopg.errors import LockNotAvailable
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.postgres.group_commit import RetryLater
from caseworker.platform.postgres.json_text import dump
from caseworker.platform.postgres.locks import TRY_IDEMPOTENCY_KEY
from caseworker.runs.errors import QueueFullError, QuotaExceededError, RateState
from caseworker.runs.postgres.queue_jobs import EXECUTE, QUEUE
from caseworker.runs.postgres.rows import ACCEPTED_COLUMNS, Row, new_run_to_json
from caseworker.runs.postgres.tables import runs
from caseworker.runs.quotas import Quota
from caseworker.runs.run import NewRun, RunKey

_DIALECT: Final = postgresql.dialect()  # type: ignore[no-untyped-call]
_KEY: Final = ("tenant_id", "run_id")
_DEFAULTS: Final = {"priority": "coalesce(priority, 0)"}
"""SQL for columns that are not null, although the row leaves out their default."""


def _type(column: str) -> str:
    return runs.c[column].type.compile(_DIALECT).lower()


_NAMES = ", ".join(ACCEPTED_COLUMNS)
_VALUES = ", ".join({**{name: name for name in ACCEPTED_COLUMNS}, **_DEFAULTS}.values())
_TYPED = ", ".join(f"{name} {_type(name)}" for name in ACCEPTED_COLUMNS)
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in ACCEPTED_COLUMNS if name not in _KEY)

_INSERT = f"""
INSERT INTO runs (
    {_NAMES}, created_at,
    status, fence, attempts, worker_id, queued_at, claimed_at, started_at
)
SELECT {_VALUES}, now.at,
    CASE WHEN claimed THEN 'running' ELSE 'queued' END, claimed::integer, claimed::integer,
    worker_id, CASE WHEN NOT claimed THEN greatest(now.at, start_at) END,
    CASE WHEN claimed THEN now.at END, CASE WHEN claimed THEN now.at END
FROM json_to_recordset(%s::json) AS new(
    {_TYPED}, worker_id text, claimed boolean,
    start_at timestamptz, max_stored_bytes bigint, remembered jsonb
), (SELECT now() AS at) AS now
"""  # noqa: S608
"""Messages that a trigger stores with a run get the same time, that of the transaction."""

NEARLY_FULL_BYTES = 1 << 28
"""Remaining storage, in bytes, below which a tenant's runs are accepted one by one.

It exceeds the bytes that the concurrent batches of all processes can insert together.
"""

_IS_CURRENT = """(remembered IS NULL OR (remembered->>'version', remembered->>'sha256') = (
    SELECT kept.version::text, kept.sha256 FROM definitions kept
    WHERE kept.tenant_id = new.tenant_id AND kept.kind = remembered->>'kind'
        AND kept.name = (remembered->>'name') COLLATE "C" AND kept.definition IS NOT NULL
        AND ((remembered->>'newest')::boolean
            OR kept.version = (remembered->>'version')::bigint)
    ORDER BY kept.version DESC LIMIT 1
))"""
"""Whether the definition of a new run is still the one that its reference resolves to."""

_HAS_NO_LIMIT = f"""concurrency_key IS NULL AND {_IS_CURRENT}
    AND NOT EXISTS (SELECT FROM quotas WHERE quotas.tenant_id = new.tenant_id{{limit}})
    AND (max_stored_bytes IS NULL OR max_stored_bytes - {NEARLY_FULL_BYTES} >= coalesce(
        (SELECT sum(bytes) FROM stored WHERE stored.tenant_id = new.tenant_id), 0))"""  # noqa: S608

_OTHER_LIMITS = sorted({*Quota.__dataclass_fields__} - {"max_running"})

_QUEUES_FREELY = _HAS_NO_LIMIT.format(
    limit=f" AND num_nonnulls({', '.join(f'quotas.{name}' for name in _OTHER_LIMITS)}) > 0"
)
"""Like :data:`_HAS_NO_LIMIT`, for runs that are queued: claims enforce ``max_running``."""

_THREAD_IS_FREE = """(request -> 'chat' -> 'reply' IS NULL OR EXISTS (
    SELECT FROM threads WHERE threads.tenant_id = new.tenant_id
        AND threads.thread_id = request -> 'chat' ->> 'thread_id'
    FOR NO KEY UPDATE SKIP LOCKED))"""
"""Whether the thread in which a new run answers exists, and no other transaction has locked it."""

_MEETS_NOTHING = f"""{{has_no_limit}} AND (idempotency_key IS NULL
    OR {TRY_IDEMPOTENCY_KEY})
    AND {_THREAD_IS_FREE}
"""

ACCEPT_NEW = f"""{_INSERT}
WHERE {_MEETS_NOTHING.format(has_no_limit=_HAS_NO_LIMIT.format(limit=""))}
ON CONFLICT DO NOTHING
RETURNING tenant_id, run_id, created_at
"""
"""Insert runs without conflicts and return them; use :data:`ACCEPT_ONE` for the rest.

A run is not inserted if a run or an earlier cancel request has its ID. It is not inserted if its
idempotency key exists, or is locked with :data:`LOCK_IDEMPOTENCY_KEY`. It is also not inserted if
it might have to wait for other runs of its tenant, or if its remembered definition has changed. A
run that answers in a thread is left out if the thread is locked or gone, so the batch never waits
for it.

The rows must be sorted, so that two processes that insert the same IDs cannot deadlock.
"""

_WAITS = "status = 'queued' AND queued_at <= statement_timestamp()"
"""Whether a run is waiting for a worker."""

ACCEPT_QUEUED = f"""
WITH before AS MATERIALIZED (
    SELECT count(*) AS waiting FROM (SELECT FROM runs WHERE {_WAITS} LIMIT %s::bigint) queued
), accepted AS (
    {_INSERT}
    WHERE {_MEETS_NOTHING.format(has_no_limit=_QUEUES_FREELY)}
    LIMIT greatest(0, %s::bigint - (SELECT waiting FROM before))
    ON CONFLICT DO NOTHING
    RETURNING tenant_id, run_id, created_at
), deferred AS (
    INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args)
    SELECT '{QUEUE}', '{EXECUTE}', tenant_id || '/' || run_id,
        jsonb_build_object('tenant', tenant_id, 'run_id', run_id) FROM accepted
    ON CONFLICT DO NOTHING
)
SELECT accepted.*, waiting FROM accepted, before
"""  # noqa: S608
"""Insert queued runs, each with its job, under the conditions of :data:`ACCEPT_NEW`.

The last parameter is the maximum queue length. The result column ``waiting`` is the number of runs
that already wait, counted up to the first parameter; 0 skips the count. The jobs are those of
:func:`defer_runs`.
"""

CHECK_CAPACITY = f"""
SELECT tenant_id, run_id, waiting >= %(most)s::bigint AS is_full
FROM json_to_recordset(%(runs)s::json) AS new(
    tenant_id text, run_id text, request jsonb, idempotency_key text, concurrency_key text,
    max_stored_bytes bigint, remembered jsonb
), (
    SELECT count(*) AS waiting
    FROM (SELECT FROM runs WHERE {_WAITS} LIMIT 2 * %(most)s::bigint) queued
) AS queue
WHERE {_QUEUES_FREELY} AND {_THREAD_IS_FREE}
AND (
    waiting < %(most)s::bigint OR waiting >= 2 * %(most)s::bigint
    OR (SELECT count(*) FROM (SELECT FROM runs WHERE runs.tenant_id = new.tenant_id AND {_WAITS}
        LIMIT %(few)s::bigint) own) >= %(few)s::bigint
)
AND NOT EXISTS (
    SELECT FROM runs WHERE runs.tenant_id = new.tenant_id AND runs.run_id = new.run_id
) AND (idempotency_key IS NULL OR NOT EXISTS (
    SELECT FROM runs
    WHERE runs.tenant_id = new.tenant_id AND runs.idempotency_key = new.idempotency_key
))
"""  # noqa: S608
"""Return the runs in ``runs`` that only the queue length kept from being inserted.

``is_full`` is true if the queue is full, so that the run is rejected; false if it has capacity
again. The queue holds ``most`` runs, or twice as many for tenants with fewer than ``few`` queued
runs. A run that may use this extra capacity is not returned.
"""

_PENDING = "runs.pending_cancel_expires_at > excluded.created_at"

_WHERE_PENDING = {
    "status": "'queued'",
    "attempts": "0",
    "worker_id": "NULL",
    "queued_at": "excluded.created_at",
    "claimed_at": "NULL",
    "started_at": "NULL",
    "cancel_requested_at": "runs.cancel_requested_at",
    "cancel_requested_by": "runs.cancel_requested_by",
    "cancel_reason": "runs.cancel_reason",
}
_SET_BY_PENDING = ", ".join(
    f"{column} = CASE WHEN {_PENDING} THEN {kept} ELSE excluded.{column} END"
    for column, kept in _WHERE_PENDING.items()
)

ACCEPT_ONE = f"""{_INSERT}
ON CONFLICT (tenant_id, run_id) DO UPDATE SET
    {_REPLACED}, created_at = excluded.created_at, pending_cancel_expires_at = NULL,
    fence = runs.fence + CASE WHEN runs.fence > 0 THEN 1
        WHEN {_PENDING} THEN 0 ELSE excluded.fence END, {_SET_BY_PENDING}
WHERE runs.request IS NULL
RETURNING created_at, fence, cancel_requested_at, cancel_requested_by, cancel_reason
"""
"""Insert a run, even if a row with its ID holds a cancel request or an erased run's fencing token.

If the run already exists, its row is locked but not returned. If there is an unexpired cancel
request, the run is stored as queued, so that this transaction can cancel it.
"""

_IS_QUEUED = """status = 'queued' AND queued_at <= CASE WHEN %s::boolean THEN 'infinity'
    ELSE statement_timestamp() END"""
"""Like :data:`_WAITS`; if the parameter is true, runs with a later start time count as well."""

COUNT_QUEUED = f"""
SELECT count(*) FROM (SELECT FROM runs WHERE {_IS_QUEUED} LIMIT %s) queued
"""  # noqa: S608
"""Count the queued runs of all tenants, up to a limit."""

COUNT_QUEUED_OF = f"""
SELECT count(*) FROM (SELECT FROM runs WHERE tenant_id = %s AND {_IS_QUEUED} LIMIT %s) queued
"""  # noqa: S608
"""Count the queued runs of a tenant, up to a limit.

A single statement for both counts would not use the tenant index.
"""

UNLIMITED = 2**62
"""Queue length that is never reached; means no limit."""

InsertAnswer = datetime | QueueFullError | None


@dataclass(slots=True)
class RunInsert:
    """A run to insert, claimed for a worker or queued for any worker."""

    new: NewRun
    worker_id: str | None
    max_queued: int = UNLIMITED
    """Maximum length of the queue in runs, including this run."""
    max_stored_bytes: int | None = None
    """Storage limit of the tenant in bytes; None means no limit."""
    row: str = field(init=False)
    """Row of the run as JSON."""
    maybe_stored: bool = False
    """Whether an earlier attempt failed while inserting. An existing row may then be its result."""

    def __post_init__(self) -> None:
        """Convert the run to its row."""
        row = new_run_to_json(self.new, self.worker_id)
        if self.new.remembered is not None:
            row["remembered"] = self.new.remembered.to_json()
        self.row = dump({**row, "max_stored_bytes": self.max_stored_bytes})


class QueueCapacity:
    """Keeps track of how many runs this process may queue before it counts the queue again.

    Counting takes longer the more runs are queued. Each count therefore permits a small part of the
    free capacity to be used without another count. Near the limit every batch counts, and processes
    that counted at the same time cannot exceed the limit by much.
    """

    PART: Final = 64
    SECONDS: Final = 1.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs_left = 0
        self._until = 0.0

    def take(self, runs: int) -> bool:
        """Use capacity for some runs; return False if the queue must be counted first."""
        if runs > self._runs_left or self._clock() >= self._until:
            return False
        self._runs_left -= runs
        return True

    def counted(self, free: int) -> None:
        """Record how many runs the queue can still hold, after a count."""
        self._runs_left = free // self.PART
        self._until = self._clock() + self.SECONDS


async def accept_in_batch(
    connection: psycopg.AsyncConnection[Any],
    inserts: Sequence[RunInsert],
    *,
    capacity: QueueCapacity,
) -> Sequence[InsertAnswer | RetryLater]:
    """Insert runs: the claimed ones with one statement, then the queued ones with another.

    Each statement is its own transaction; a run is queued together with its job or not at all. For
    each run, the result is its creation time, QueueFullError, or RetryLater if the insert must be
    retried. None means that the run has a conflict and must be accepted separately.
    """
    first: dict[RunKey, RunInsert] = {}
    for insert in inserts:
        # A second insert with the same ID is accepted separately: a repeat or a conflict.
        first.setdefault(insert.new.key, insert)
    # Sorted: concurrent batches with the same threads or IDs must lock them in the same order.
    ordered = sorted(first.values(), key=_lock_order)
    try:
        answers = await _insert(connection, ordered, capacity)
    except LockNotAvailable:
        if len(inserts) == 1:
            return [None]  # the row is being inserted
        for insert in ordered:
            insert.maybe_stored |= insert.worker_id is not None
        raise
    except Exception:
        for insert in inserts:
            insert.maybe_stored = True
        raise
    return [
        answers.get(insert.new.key) if first[insert.new.key] is insert else None
        for insert in inserts
    ]


async def _insert(
    connection: psycopg.AsyncConnection[Any],
    ordered: Sequence[RunInsert],
    capacity: QueueCapacity,
) -> Mapping[RunKey, InsertAnswer | RetryLater]:
    claimed = [insert for insert in ordered if insert.worker_id is not None]
    queued = [insert for insert in ordered if insert.worker_id is None]
    answers: dict[RunKey, InsertAnswer | RetryLater] = {}
    if claimed:
        cursor = await connection.execute(ACCEPT_NEW, (_document(claimed),))
        answers |= _created(await cursor.fetchall())
    if queued:
        answers |= await _queue(connection, queued, capacity)
    return answers


async def _queue(
    connection: psycopg.AsyncConnection[Any], queued: Sequence[RunInsert], capacity: QueueCapacity
) -> Mapping[RunKey, InsertAnswer | RetryLater]:
    """Insert as many runs as the queue has capacity for; find the runs that it rejects.

    A burst of runs at a full queue is thus rejected at once, not run by run. If the queue has
    capacity again, the runs are retried in a batch. Accepted one by one, concurrent runs would not
    count each other.
    """
    max_queued = queued[0].max_queued
    counts = max_queued < UNLIMITED and not capacity.take(len(queued))
    parameters = max_queued if counts else 0, _document(queued), max_queued
    rows = await (await connection.execute(ACCEPT_QUEUED, parameters)).fetchall()
    if rows and counts:
        capacity.counted(max_queued - rows[0]["waiting"] - len(rows))
    answers = _created(rows)
    unanswered = [insert for insert in queued if insert.new.key not in answers]
    if unanswered and max_queued < UNLIMITED:
        parameters_of_check = {
            "runs": _document(unanswered),
            "most": max_queued,
            "few": few_of_queue(max_queued),
        }
        new = await (await connection.execute(CHECK_CAPACITY, parameters_of_check)).fetchall()
        answers |= {_key_of(row): _refusal_or_retry(row) for row in new}
    return answers


def few_of_queue(places: int) -> int:
    """Return how many runs each tenant may queue even if a queue for ``places`` runs is full."""
    return places // 10 or 1


def _lock_order(insert: RunInsert) -> tuple[str, RunKey]:
    chat = insert.new.request.chat
    return "" if chat is None else chat.thread_id, insert.new.key


def _refusal_or_retry(row: Row) -> QueueFullError | RetryLater:
    return QueueFullError() if row["is_full"] else RetryLater.LATER


def _created(rows: Iterable[Row]) -> dict[RunKey, InsertAnswer | RetryLater]:
    return {_key_of(row): row["created_at"] for row in rows}


def _key_of(row: Row) -> RunKey:
    return RunKey(row["tenant_id"], row["run_id"])


def _document(inserts: Sequence[RunInsert]) -> str:
    return f"[{','.join(insert.row for insert in inserts)}]"


class RunCheck(Protocol):
    """Decides whether a run is accepted, in the transaction that stores it."""

    @property
    def may_begin(self) -> bool:
        """Whether the run may be claimed at once, without waiting for other runs of its tenant."""
        ...

    @property
    def cannot_start(self) -> QuotaExceededError:
        """The error for a run that must not wait for other runs of its tenant, but would."""
        ...

    @property
    def restricted(self) -> NewRun:
        """The run, with the restrictions of its tenant added to its request."""
        ...

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts in which the calls of the run reserve."""
        ...

    def storing(self, connection: AsyncConnection) -> AbstractAsyncContextManager[None]:
        """Check the tenant's storage quota at the end of the block, after its writes.

        Raises:
            QuotaExceededError: the transaction must be rolled back.
        """
        ...

    async def charge(self, connection: AsyncConnection, *, queued: bool) -> RateState | None:
        """Charge the stored run to its tenant; return the state of the rate limit, if any.

        Raises:
            QuotaExceededError: the transaction must be rolled back.
            GraphRefusedError: the run uses a model that the tenant may not use.
        """
        ...


class AcceptChecks(Protocol):
    """Checks runs when they are accepted, in the transactions that store them.

    ``usual`` is the quota of tenants without their own quota.
    """

    async def check_of(
        self, connection: AsyncConnection, new: NewRun, usual: Quota
    ) -> RunCheck | None:
        """Lock the tenant and return the check of a run; None if no limit applies."""
        ...

    async def left_of_rate(
        self, connection: AsyncConnection, tenant: str, usual: Quota
    ) -> RateState | None:
        """Return the state of a tenant's rate limit without consuming it; None without a limit."""
        ...
