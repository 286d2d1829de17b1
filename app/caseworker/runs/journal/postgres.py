"""Stores new runs and journal writes of all runs, in batches that share a commit.

The writers of a batch are independent, but two of them may refer to the same run. Examples are the
previous and the current owner of a run, or two callers that chose the same ID. Every row is
therefore matched by run and fencing token, and every writer gets its own response.

See docs/internals.md, "The journal and its barrier".
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.connections import Connection, Patience
from caseworker.platform.postgres.group_commit import STOP_SECONDS, GroupCommit, RetryLater
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.accept.postgres.batch_accept import (
    InsertAnswer,
    QueueCapacity,
    RunInsert,
    accept_in_batch,
)
from caseworker.runs.errors import QueueFullError
from caseworker.runs.journal.journal_rows import (
    Ownership,
    OwnersWrite,
    as_rows,
    hold_answers,
)
from caseworker.runs.observers import RunNotifier
from caseworker.runs.ports import FinishResult, JournalWrite, Permission
from caseworker.runs.postgres.rows import cancel_request_from_row
from caseworker.runs.postgres.run_statements import (
    FINISH,
    JOURNAL,
    JOURNAL_WITH_HOLDS,
    RUN_STATES,
)
from caseworker.runs.quotas import Quota
from caseworker.runs.run import FinishRun, RunKey, RunStatus

LOCK_MS = 200
"""Lock timeout of a batch in milliseconds, for rows that another transaction is inserting. Other
locked rows are skipped."""

USUAL_SECONDS = 30.0
"""Minimum time, in seconds, for which the fastest response of the database is the baseline."""

DELAYED_SECONDS = 0.15
"""Seconds by which a response must exceed the fastest response time to count as slow."""

LARGE_BYTES = 64 * 1024
"""Size in bytes from which a write uses a separate connection, so that small ones overtake it."""

LARGE_PATIENCE: Mapping[str, Any] = {"statement_ms": 60_000, "answer_seconds": 90.0}
"""Timeouts for large writes."""

OwnersAnswer = Permission | FinishResult | RetryLater

Row = Mapping[str, Any]


class ResponseTimes:
    """Tracks the usual response time of a server: its fastest response in the last minute."""

    def __init__(self) -> None:
        self._before = self._current = math.inf
        self._until = 0.0

    def answered_at(self, sent_at: float, arrived_at: float) -> float:
        """Return the time from which the age of a response is measured.

        This is ``arrived_at`` if the response was about as fast as usual. A slow response may have
        been in transit for the whole time, so its age counts from ``sent_at``.
        """
        took = arrived_at - sent_at
        if arrived_at > self._until:
            self._before, self._current = self._current, math.inf
            self._until = arrived_at + USUAL_SECONDS
        self._current = min(self._current, took)
        slower = took - min(self._before, self._current)
        return arrived_at if slower <= DELAYED_SECONDS else sent_at


class PostgresJournal:
    """Implements the journal store over connections that all runs share.

    One connection inserts new runs, so that inserts and other writes do not wait for each other's
    commits. The writes of owners share a second connection, because each write of a run must see
    the results of the previous one. Large writes use a third connection, so that other writes do
    not wait for them. A run makes no other write while a large one is in flight.
    """

    def __init__(
        self,
        url: str,
        patience: Patience,
        *,
        tenants_wait: bool = False,
        usual: Quota,
    ) -> None:
        """Connect to ``url``; set ``tenants_wait`` if every tenant has a limit on active runs.

        ``usual`` is the quota of tenants that have none of their own.
        """
        self._url = url
        self._usual = dump(usual.costs)
        self._tenants_wait = tenants_wait
        self._patience = replace(patience, lock_ms=LOCK_MS)
        self.notifier = RunNotifier()
        """Is notified of every run that stored events or ended in this process."""
        self._accepting: GroupCommit[RunInsert, InsertAnswer] = GroupCommit(
            partial(self._connect, self._patience),
            partial(accept_in_batch, capacity=QueueCapacity()),
        )
        self._owners = self._owners_line(self._patience)
        self._large = self._owners_line(replace(self._patience, **LARGE_PATIENCE))

    @property
    def stuck_seconds(self) -> float:
        """Number of seconds for which pending writes have made no progress."""
        return max(self._accepting.stuck_seconds, self._owners.stuck_seconds)

    async def start(self) -> None:
        """Connect and start writing.

        Raises:
            StoreUnavailableError: the database cannot be reached.
        """
        await self._accepting.start()
        try:
            await self._owners.start()
        except StoreUnavailableError:
            await self._accepting.stop()
            raise
        self._large.begin()

    async def stop(self, *, grace_seconds: float = STOP_SECONDS) -> None:
        """Finish the queued writes, then stop; writes that exceed the grace period fail."""
        async with asyncio.TaskGroup() as group:
            for commits in (self._accepting, self._owners, self._large):
                group.create_task(commits.stop(grace_seconds=grace_seconds))

    async def insert(self, insert: RunInsert, *, timeout_seconds: float) -> datetime | None:
        """Insert a run and return its creation time; None if it has a conflict or reaches a limit.

        If the run would start in this process, the insert waits while many writes of active runs
        are queued. This also slows down the arrival of further runs.

        Raises:
            QueueFullError: the run is new and the queue is full.
            StoreUnavailableError: the database did not answer in time. The run may still be stored
                if its insert was in flight.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                if insert.worker_id is not None:
                    await self._owners.wait_for_capacity(patience_seconds=timeout_seconds / 2)
                answer = await self._accepting.submit(insert, len(insert.row))
        except TimeoutError:
            raise StoreUnavailableError from None
        if isinstance(answer, QueueFullError):
            raise answer
        return answer

    async def write(self, write: JournalWrite) -> Permission:
        """Store journal changes of a run; return whether the run may continue."""
        permission = cast("Permission", await self._submit(write))
        if write.events and permission.owned:
            self.notifier.notify(write.key, write.events)
        return permission

    async def finish(self, finish: FinishRun) -> FinishResult:
        """Store the end of a run, if the writer still owns it."""
        finished = cast("FinishResult", await self._submit(finish))
        stored = finish.events if finished.done else ()
        self.notifier.notify(finish.key, stored, ended=finished.done)
        if self._tenants_wait and not finished.frees_capacity:
            return replace(finished, frees_capacity=True)
        return finished

    async def _submit(self, write: JournalWrite | FinishRun) -> OwnersAnswer:
        rows = await as_rows(write)
        line = self._owners if rows.size_bytes < LARGE_BYTES else self._large
        return await line.submit(rows, rows.size_bytes)

    def _owners_line(self, patience: Patience) -> GroupCommit[OwnersWrite, OwnersAnswer]:
        return GroupCommit(
            partial(self._connect, patience),
            partial(write_in_batch, usual=ResponseTimes(), costs=self._usual),
        )

    async def _connect(self, patience: Patience) -> psycopg.AsyncConnection[Any]:
        """Open a connection that prepares each statement at once and keeps it prepared.

        All statements look up rows by key. Sequential scans are disabled: a cached plan from when a
        table was small would otherwise keep scanning it after it has grown.
        """
        connection = await Connection.open(
            self._url, patience, autocommit=True, row_factory=dict_row, prepare_threshold=0
        )
        try:
            await connection.execute("SET enable_seqscan = off")
        except BaseException:  # no caller can close the connection yet
            await connection.close()
            raise
        return connection


async def write_in_batch(
    connection: psycopg.AsyncConnection[Any],
    writes: Sequence[OwnersWrite],
    *,
    usual: ResponseTimes,
    costs: str,
) -> Sequence[OwnersAnswer]:
    """Write a batch, with one statement per kind; return the responses in the same order.

    ``costs`` are the cost limits of tenants without a quota of their own, from
    :func:`_costs_of`.

    The statements do not share a transaction. Each write is complete in itself, and may be repeated
    if the second statement fails.
    """
    ends = [write for write in writes if write.end is not None]
    writes_without_end = [write for write in writes if write.end is None]
    permissions = iter(
        await _write_all(connection, writes_without_end, usual, costs) if writes_without_end else ()
    )
    finished = iter(await _finish_all(connection, ends) if ends else ())
    return [next(permissions if write.end is None else finished) for write in writes]


async def _write_all(
    connection: psycopg.AsyncConnection[Any],
    writes: Sequence[OwnersWrite],
    usual: ResponseTimes,
    costs: str,
) -> Sequence[Permission | RetryLater]:
    rows_by_owner = {write.owner: write.owner_row for write in writes}
    calls, events = [write.calls for write in writes], [write.events for write in writes]
    statement = JOURNAL
    parameters: tuple[str, ...] = (_array(rows_by_owner.values()), _merged(calls), _merged(events))
    settled = [row for write in writes for row in write.settled]
    holds = [row for write in writes for row in write.holds]
    if settled or holds:
        numbered = dump([{**row, "number": number} for number, row in enumerate(holds)])
        statement, parameters = JOURNAL_WITH_HOLDS, (*parameters, _array(settled), numbered, costs)
    sent_at = time.monotonic()
    owned = _by_owner(await (await connection.execute(statement, parameters)).fetchall())
    answered_at = usual.answered_at(sent_at, time.monotonic())
    # Skipped runs are lost, finished, or locked by another transaction.
    skipped = [row for owner, row in rows_by_owner.items() if owner not in owned]
    states = await _states(connection, skipped) if skipped else {}
    return [_permission(write.owner, owned, states, answered_at) for write in writes]


async def _finish_all(
    connection: psycopg.AsyncConnection[Any], writes: Sequence[OwnersWrite]
) -> Sequence[FinishResult | RetryLater]:
    first: dict[Ownership, OwnersWrite] = {}
    for write in writes:
        # A repeated finish of the same owner gets the answer of the first one.
        first.setdefault(write.owner, write)
    ends = first.values()
    rows = _array([write.end for write in ends if write.end is not None])
    calls, events = [write.calls for write in ends], [write.events for write in ends]
    settled = _array(row for write in ends for row in write.settled)
    parameters = rows, _merged(calls), _merged(events), settled
    cursor = await connection.execute(FINISH, parameters)
    finished = _by_owner(await cursor.fetchall())
    skipped = [write.owner_row for write in ends if write.owner not in finished]
    states = await _states(connection, skipped) if skipped else {}
    return [
        _finish_result(write.what, finished, states)
        for write in writes
        if isinstance(write.what, FinishRun)
    ]


async def _states(
    connection: psycopg.AsyncConnection[Any], rows: Sequence[str]
) -> Mapping[Ownership, Row]:
    """Return the states of skipped runs; ``rows`` are the JSON rows that identify them."""
    cursor = await connection.execute(RUN_STATES, (_array(rows),))
    return _by_owner(await cursor.fetchall())


def _permission(
    asking: Ownership,
    owned: Mapping[Ownership, Row],
    states: Mapping[Ownership, Row],
    answered_at: float,
) -> Permission | RetryLater:
    if (row := owned.get(asking)) is not None:
        request = cancel_request_from_row(row) if row["cancel_requested_at"] else None
        holds = hold_answers(row.get("holds") or ())
        return Permission(owned=True, cancel_request=request, answered_at=answered_at, holds=holds)
    if (row := states.get(asking)) is None or _has_no_owner(row):
        return Permission(owned=False, cancel_request=None)
    return RetryLater.LATER


def _finish_result(
    finish: FinishRun, finished: Mapping[Ownership, Row], states: Mapping[Ownership, Row]
) -> FinishResult | RetryLater:
    """Return the result of a finish; a repeated one is recognized by its exact active seconds."""
    asking = finish.key, finish.fence
    if asking in finished:
        row = finished[asking]
        frees_capacity = row["frees_capacity"]
        return FinishResult(
            done=True, finished_at=row["finished_at"], frees_capacity=frees_capacity
        )
    state = states.get(asking)
    if state is None:
        return FinishResult(done=False)
    if _has_no_owner(state):
        same = state["status"] == finish.status and state["active_seconds"] == finish.active_seconds
        return FinishResult(done=same, finished_at=state["finished_at"] if same else None)
    cancel_request = cancel_request_from_row(state)
    if cancel_request is not None and finish.status is not RunStatus.CANCELLED:
        return FinishResult(done=False, cancel_request=cancel_request)
    return RetryLater.LATER


def _has_no_owner(row: Row) -> bool:
    return bool(row["status"] != RunStatus.RUNNING)


def _by_owner(rows: Iterable[Row]) -> dict[Ownership, Row]:
    return {(RunKey(row["tenant_id"], row["run_id"]), row["fence"]): row for row in rows}


def _merged(writes: Iterable[Mapping[Any, str]]) -> str:
    """Return the calls or the events of several writes as a JSON array, each in its last state."""
    last: dict[Any, str] = {}
    for write in writes:
        last |= write
    return _array(last.values())


def _array(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"
