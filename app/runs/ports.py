"""What runs need of whatever stores and dispatches them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from app.runs.notifier import Notification
from app.runs.run import (
    CallRecord,
    CancelRequest,
    EventRecord,
    FinishRun,
    NewRun,
    Run,
    RunKey,
    RunStatus,
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a request."""

    run: Run
    created: bool
    """False if the same request had been accepted before."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a wish to stop."""

    run: Run | None
    """None while the run does not exist; the wish then waits for it."""
    cancel_request: CancelRequest | None
    """The wish that counts: the first one. None if the run had ended without any."""
    already_finished: bool = False
    """True if the run had ended before, so that nothing was changed."""
    calls: Sequence[CallRecord] = ()
    """The LLM and tool calls that had begun when the wish was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list."""

    status: RunStatus | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    limit: int = 50
    cursor: str | None = None
    """Where the page before ended."""


@dataclass(frozen=True, slots=True)
class Page:
    """Runs, newest first."""

    runs: Sequence[Run]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResult:
    """What a run has cost after it was settled."""

    key: RunKey
    fence: int
    """Of the owner that settled it; nobody else adds to what it has spent."""
    calls: tuple[CallRecord, ...]
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of a run, in order and without a gap, and whether the run had ended by then."""

    events: Sequence[EventRecord]
    finished: bool
    """If True, and if there are fewer events than were asked for, there are no more."""


class RunStore(Protocol):
    """The one row that decides, for every run.

    POST and DELETE both write the row of the run, so that an early wish to stop and a late
    registration cannot miss each other. Every method is one transaction.
    """

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id`` or queued for any worker.

        A stored wish to stop settles it as cancelled instead.

        Raises:
            RunConflictError: the id, or the pair of id and key, belongs to another request.
            IdempotencyMismatchError: the key was used with another body.
            QueueFullError: too many runs are queued.
            StoreUnavailableError: the database did not answer.
        """
        ...

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> Cancelled:
        """Store a wish to stop and tell the workers; a queued run is settled at once.

        Raises:
            TooManyIntentsError: too many wishes wait for runs that do not exist.
        """
        ...

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; an early wish alone is not one."""
        ...

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run that was made under an idempotency key, or without one under an id."""
        ...

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs; what they are to execute may be left out of them.

        Raises:
            InvalidRunError: the cursor is not one of ours.
        """
        ...

    async def claim(self, key: RunKey, worker_id: str) -> Run | None:
        """Take a queued run; None if there is nothing to take.

        It knows the last event that its earlier owners have stored: none of them adds another.
        """
        ...

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
        ...

    async def late(self, result: LateResult) -> None:
        """Record a result that came after the end; status and result stay as they are.

        Only the owner that settled the run may; a ``late_result`` event tells of it.
        """
        ...

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return the events behind number ``after``, at most ``limit``; None if there is no run."""
        ...

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Have a bell rung whenever this process stores events of a run.

        What other processes store is not heard: whoever listens must look from time to time.
        """
        ...

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        ...

    async def snapshot(self, key: RunKey) -> Mapping[str, Any] | None:
        """Return the last stored snapshot of a run's ExecutionGraph."""
        ...


@dataclass(frozen=True, slots=True)
class Permission:
    """What the database said when it stored a piece of the journal."""

    owned: bool
    """False if the run belongs to another worker by now, or has ended."""
    cancel_request: CancelRequest | None
    """Somebody's wish to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWrite:
    """What one run wants to have stored."""

    key: RunKey
    fence: int
    calls: tuple[CallRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    """Those that may not be stored yet; what is stored of them already stays as it is."""
    snapshot: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FinishResult:
    """What became of an end that was written."""

    done: bool
    finished_at: datetime | None = None
    """When the run ended, on the store's clock; None if it did not."""
    cancel_request: CancelRequest | None = None
    """Somebody's wish to stop that came first: write the end again, as cancelled."""


class JournalStore(Protocol):
    """Stores what runs did; the writes of all runs of a process share commits."""

    async def write(self, write: JournalWrite) -> Permission:
        """Store a piece of a run's journal if the run is still owned; durable on return.

        Waits for a database that is away.
        """
        ...

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        """End a run with one guarded update.

        Nothing is written if the run is lost to somebody else, or if somebody has asked it to stop
        and the end is not ``cancelled``. Waits for a database that is away.
        """
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """What the database knows of the runs of this worker."""

    stopped: Mapping[RunKey, CancelRequest]
    """Runs that somebody asked to stop."""
    owned: frozenset[RunKey]
    """Runs that the database gives to this worker."""


class WorkerStore(Protocol):
    """The heartbeat of a process that executes runs."""

    async def beat(self, worker_id: str) -> Beat:
        """Say that this worker lives; learn what it must stop."""
        ...

    async def leave(self, worker_id: str) -> None:
        """Say that this worker ends."""
        ...
