"""Runs in memory: the ports of ``caseworker.runs`` with the guarantees of a database.

Every operation is atomic, between two points at which other tasks may run: before it (the statement
is being sent) and after it (the answer is on its way back). A caller that is cancelled at the
second point loses the answer, not the write. Stored values pass through JSON, as for a database, so
callers share no objects with the store.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from caseworker.core.budget.accounts import Hold
from caseworker.runs.errors import (
    IdempotencyMismatchError,
    QueueFullError,
    RunConflictError,
    TooManyPendingCancelsError,
)
from caseworker.runs.execute.outcome import cancelled_while_queued
from caseworker.runs.journal.event_log import late_result
from caseworker.runs.observers import RunNotifier
from caseworker.runs.ports import (
    Accepted,
    Beat,
    CancelStatus,
    EventPage,
    FinishResult,
    JournalWrite,
    LateResult,
    Notification,
    Permission,
)
from caseworker.runs.run import (
    NEXT,
    CallRecord,
    CancelRequest,
    Deaths,
    EventRecord,
    FinishRun,
    NewRun,
    Run,
    RunKey,
    RunStatus,
)
from tests.support.memory_approvals import goes_on
from tests.support.memory_claims import is_full, next_row, waits_for_its_key
from tests.support.memory_rows import (
    Row,
    as_json,
    begin_row,
    ended_calls_of,
    has_begun,
    journal_of,
    last_seq_of,
    open_starts,
    run_of,
    stored_once,
    streamed_in,
    write_calls,
    write_events,
)
from tests.support.memory_traces import MemoryTraces, transaction

OWNED = frozenset({RunStatus.RUNNING})
UNOWNED = frozenset({RunStatus.QUEUED, RunStatus.WAITING})


class MemoryRuns(MemoryTraces):
    """Implements the run store, the journal store and the worker store of one database."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pending_cancel_ttl_seconds: float = 3600.0,
        max_pending_cancels: int = 1000,
        max_queued: int | None = None,
    ) -> None:
        """Start empty; ``now`` is the database's clock."""
        self.rows: dict[RunKey, Row] = {}
        self.workers: set[str] = set()
        self._notifier = RunNotifier()
        self.now = now
        self._pending_cancel_ttl = timedelta(seconds=pending_cancel_ttl_seconds)
        self._max_pending_cancels = max_pending_cancels
        self._max_queued = max_queued

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        async with transaction():
            earlier = self._earlier(new)
            if earlier is not None:
                return Accepted(earlier, created=False)
            if worker_id is None and is_full(self.queued(), new.key.tenant, self._max_queued):
                raise QueueFullError
            row = begin_row(self.rows, new)
            self.rows[new.key] = row
            pending_cancel = row.pending_cancel if self._lives(row) else None
            row.pending_cancel = row.pending_cancel_expires_at = None
            self._put(
                row,
                self._accepted(new, None if pending_cancel else worker_id, pending_cancel),
            )
            if pending_cancel is not None:
                self._finish_unowned(row, pending_cancel)
            return Accepted(run_of(row), created=True)

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        async with transaction():
            row = self.rows.get(key, Row())
            stamped = replace(cancel_request, requested_at=self.now(), delivered_at=None)
            if row.run is None:
                return CancelStatus(key.run_id, None, self._keep_pending_cancel(key, row, stamped))
            if row.run.finished:
                return CancelStatus(
                    key.run_id, row.run, row.run.cancel_request, already_finished=True
                )
            first = row.run.cancel_request or stamped
            row.run = replace(row.run, cancel_request=first)
            ends = row.run.started_at is None
            if ends:
                self._finish_unowned(row, first)
            elif row.run.status in UNOWNED:
                row.not_before = None
                self._put(row, replace(row.run, status=RunStatus.QUEUED))
            run, snapshot = run_of(row), row.snapshots[-1] if ends else None
            return CancelStatus(key.run_id, run, run.cancel_request, snapshot=snapshot)

    async def started_calls(self, key: RunKey) -> Sequence[CallRecord]:
        async with transaction():
            return [record for record in journal_of(self.rows[key]) if has_begun(record)]

    async def get(self, key: RunKey) -> Run | None:
        async with transaction():
            row = self.rows.get(key)
            return row.run if row else None

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        if idempotency_key is None:
            return await self.get(key)
        async with transaction():
            return self._by_idempotency_key(key.tenant, idempotency_key)

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        async with transaction():
            row = next_row(self.rows, self.now(), excluding) if key is None else self.rows.get(key)
            if row is None or row.run is None or row.run.status is not RunStatus.QUEUED:
                return None
            if row.not_before is not None and row.not_before > self.now():
                return None
            run = row.run
            if waits_for_its_key(self.rows, run):
                return None
            return self._claimed(row, worker_id)

    async def claim_stopped(self, key: RunKey, worker_id: str) -> Run | None:
        async with transaction():
            row = self.rows.get(key)
            run = None if row is None else row.run
            if row is None or run is None or run.status is not RunStatus.QUEUED:
                return None
            if run.started_at is None:
                return None
            deadline = run.request.deadline
            overdue = deadline is not None and deadline <= self.now()
            if run.cancel_request is None and not overdue:
                return None
            return self._claimed(row, worker_id)

    def _claimed(self, row: Row, worker_id: str) -> Run:
        run = run_of(row)
        self._put(
            row,
            replace(
                run,
                status=RunStatus.RUNNING,
                worker_id=worker_id,
                fence=run.fence + 1,
                attempts=run.attempts + 1,
                started_at=run.started_at or self.now(),
            ),
        )
        return replace(
            run_of(row),
            last_seq=last_seq_of(row),
            stored_once=stored_once(row),
            streamed=streamed_in(row),
            open_starts=open_starts(row),
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
        async with transaction():
            row = self._owned(run.key, run.fence)
            if row is not None:
                row.given_back += not counted
                row.broken += counted
                row.not_before = None
                if pause_seconds:
                    row.not_before = self.now() + timedelta(seconds=pause_seconds)
                self._tell(row, events)
                status = RunStatus.QUEUED
                if waits_for and not goes_on(row, waits_for, self.now()):
                    status = RunStatus.WAITING
                back = replace(run_of(row), status=status, worker_id=None)
                attempts, losses = back.attempts - (not counted), back.losses + counted
                back = replace(back, attempts=attempts, losses=losses)
                if counted:
                    count = 1 if back.deaths is None else back.deaths.count + 1
                    back = replace(back, deaths=Deaths(count=count))
                if cleared:
                    back = replace(back, deaths=None)
                self._put(row, replace(back, active_seconds=active_seconds))
                write_calls(row, calls)

    async def late(self, result: LateResult) -> None:
        async with transaction():
            row = self.rows[result.key]
            if row.run is None or not row.run.finished or row.run.fence != result.fence:
                return
            row.run = replace(run_of(row), usage=as_json(result.usage))
            write_calls(row, result.calls)
            self._tell(row, late_result(result.usage, last_seq_of(row)))

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        async with transaction():
            row = self.rows.get(key)
            if row is None or row.run is None:
                return None
            behind = [row.events[seq] for seq in sorted(row.events) if seq > after]
            return EventPage(behind[:limit], row.run.finished)

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        return self._notifier.listening(key)

    async def write(self, write: JournalWrite) -> Permission:
        async with transaction():
            row = self._owned(write.key, write.fence)
            if row is None:
                return Permission(owned=False, cancel_request=None)
            self._tell(row, write.events, ended=False)
            write_calls(row, write.calls)
            return Permission(owned=True, cancel_request=run_of(row).cancel_request)

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        async with transaction():
            row = self._owned(finish_run.key, finish_run.fence)
            if row is None:
                return FinishResult(done=False)
            cancel_request = run_of(row).cancel_request
            if cancel_request is not None and finish_run.status is not RunStatus.CANCELLED:
                return FinishResult(done=False, cancel_request=cancel_request)
            self._finish(row, finish_run)
            return FinishResult(done=True, finished_at=run_of(row).finished_at)

    async def beat(self, worker_id: str) -> Beat:
        async with transaction():
            self.workers.add(worker_id)
            runs = [row.run for row in self.rows.values() if row.run is not None]
            owned = [run for run in runs if run.worker_id == worker_id and run.status in OWNED]
            cancelled = {
                run.key: run.cancel_request for run in owned if run.cancel_request is not None
            }
            return Beat(cancelled=cancelled, owned=frozenset(run.key for run in owned))

    async def stop_accepting(self, worker_id: str) -> None:
        async with transaction():
            pass  # the tests with this store have no external runs

    async def leave(self, worker_id: str) -> None:
        async with transaction():
            self.workers.discard(worker_id)

    def lose(self, worker_id: str) -> list[RunKey]:
        """Queue the runs of a worker without heartbeats again, as a recovery does."""
        self.workers.discard(worker_id)
        lost = [row for row in self.rows.values() if row.run and row.run.worker_id == worker_id]
        for row in lost:
            ended, before = ended_calls_of(row), row.ended_calls
            losses = 0 if ended > before else run_of(row).losses + 1
            lost_run = replace(run_of(row), status=RunStatus.QUEUED, worker_id=None)
            self._put(row, replace(lost_run, losses=losses))
            row.ended_calls = ended
        return [run_of(row).key for row in lost]

    def queued(self) -> list[RunKey]:
        """Return the queued runs, oldest first."""
        runs = [row.run for row in self.rows.values() if row.run is not None]
        waiting = [run for run in runs if run.status is RunStatus.QUEUED]
        return [
            run.key for run in sorted(waiting, key=lambda run: (run.created_at, run.key.run_id))
        ]

    def requeue(self, row: Row) -> None:
        """Queue a run that waits for an approval."""
        self._put(row, replace(run_of(row), status=RunStatus.QUEUED))

    def history(self, key: RunKey) -> list[RunStatus]:
        """Return every status that a run has had."""
        return self.rows[key].history

    def _earlier(self, new: NewRun) -> Run | None:
        """Return the run that the same request created before."""
        if new.idempotency_key is not None:
            by_key = self._by_idempotency_key(new.key.tenant, new.idempotency_key)
            if by_key is not None:
                if new.named and by_key.key != new.key:
                    raise RunConflictError
                if by_key.request_hash != new.request_hash:
                    raise IdempotencyMismatchError
                return by_key
        row = self.rows.get(new.key)
        if row is None or row.run is None:
            return None
        # a key that belonged to this run would have been found above
        if new.idempotency_key is not None or row.run.request_hash != new.request_hash:
            raise RunConflictError
        return row.run

    def _by_idempotency_key(self, tenant: str, key: str) -> Run | None:
        runs = (row.run for row in self.rows.values() if row.run is not None)
        return next(
            (run for run in runs if run.key.tenant == tenant and run.idempotency_key == key), None
        )

    def _accepted(
        self, new: NewRun, worker_id: str | None, pending_cancel: CancelRequest | None
    ) -> Run:
        now = self.now()
        queued = Run(
            key=new.key,
            kind=new.request.kind,
            status=RunStatus.QUEUED,
            created_at=now,
            request_hash=new.request_hash,
            request=new.request,
            metadata=as_json(new.metadata),
            idempotency_key=new.idempotency_key,
            cancel_request=pending_cancel,
            queueing=new.queueing,
        )
        if worker_id is None or waits_for_its_key(self.rows, queued):
            return queued
        claimed = replace(queued, status=RunStatus.RUNNING, worker_id=worker_id, started_at=now)
        return replace(claimed, fence=1, attempts=1)

    def _keep_pending_cancel(
        self, key: RunKey, row: Row, cancel_request: CancelRequest
    ) -> CancelRequest:
        """Store a pending cancel; the first unexpired one wins."""
        if not self._lives(row):
            living = sum(
                self._lives(other) for of, other in self.rows.items() if of.tenant == key.tenant
            )
            if living >= self._max_pending_cancels:
                raise TooManyPendingCancelsError
            row.pending_cancel = cancel_request
        self.rows[key] = row
        row.pending_cancel_expires_at = self.now() + self._pending_cancel_ttl
        assert row.pending_cancel is not None
        return row.pending_cancel

    def _lives(self, row: Row) -> bool:
        return (
            row.pending_cancel_expires_at is not None and row.pending_cancel_expires_at > self.now()
        )

    def _owned(self, key: RunKey, fence: int) -> Row | None:
        row = self.rows.get(key)
        if row is None or row.run is None:
            return None
        return row if row.run.fence == fence and row.run.status in OWNED else None

    def _finish_unowned(self, row: Row, cancel_request: CancelRequest) -> None:
        self._finish(row, cancelled_while_queued(run_of(row), cancel_request, journal_of(row)))

    def _finish(self, row: Row, end: FinishRun) -> None:
        run = run_of(row)
        self._tell(row, end.events, ended=True)
        cancel_request = run.cancel_request
        if cancel_request is not None and cancel_request.delivered_at is None:
            cancel_request = replace(cancel_request, delivered_at=end.delivered_at)
        self._put(
            row,
            replace(
                run,
                status=end.status,
                finish_reason=end.finish_reason,
                result=as_json(end.result),
                usage=as_json(end.usage),
                stop=as_json(end.stop),
                active_seconds=end.active_seconds,
                finished_at=self.now(),
                worker_id=None,
                cancel_request=cancel_request,
            ),
        )
        write_calls(row, end.calls)
        row.snapshots.append(as_json(end.snapshot))

    def _tell(self, row: Row, events: Sequence[EventRecord], *, ended: bool | None = None) -> None:
        """Write events before all other rows, so that a refused event stores nothing.

        Without ``ended``, listeners read the events from the store.
        """
        write_events(row, events)
        if events:
            known = () if ended is None else events
            self._notifier.notify(run_of(row).key, known, ended=bool(ended))

    def _put(self, row: Row, run: Run) -> None:
        """Store a run; reject it where the constraints of the database would."""
        if (before := row.run) is not None and before.status is not run.status:
            assert run.status in NEXT[before.status], f"{before.status} -> {run.status}"
        assert before is None or run.fence >= before.fence, "the fence fell"
        row.run = run
        row.history.append(run.status)
