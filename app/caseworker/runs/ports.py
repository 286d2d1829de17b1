"""Interfaces for storing runs, journals and heartbeats.

See docs/internals.md, "The journal and its barrier".
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from caseworker.core.budget.accounts import Hold, HoldAnswer, HoldKey
from caseworker.core.budget.usage import Charge
from caseworker.models.ports import Message
from caseworker.nodes.chat import ChatInput
from caseworker.platform.paging import Page
from caseworker.runs.errors import RateState
from caseworker.runs.run import (
    CallRecord,
    CancelRequest,
    EventRecord,
    FinishRun,
    NewRun,
    Run,
    RunKey,
    RunKind,
    RunStatus,
)


class Branches(Protocol):
    """Reads the messages of threads for the runs that answer them."""

    async def chat_of(self, run: Run) -> ChatInput:
        """Return the chat of a run with its messages, the same for each execution of the run.

        Raises:
            BranchNotFoundError: the thread or the message to answer was deleted before the run was
                first executed.
        """
        ...

    async def shown_for(self, run: Run) -> Sequence[Message]:
        """Return the messages of a run's chat that still exist, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of accepting a run."""

    run: Run
    created: bool
    """Whether this request created the run; False if an identical earlier request did."""
    rate: RateState | None = None
    """State of the tenant's rate limit; None if it has none."""


@dataclass(frozen=True, slots=True)
class CancelStatus:
    """The response to a cancel request."""

    run_id: str
    run: Run | None
    """The run; None while it does not exist. The cancel request is then pending."""
    cancel_request: CancelRequest | None
    """The first cancel request, which takes effect; None if the run ended without any."""
    already_finished: bool = False
    """Whether the run had already ended, so that the request changed nothing."""
    snapshot: Mapping[str, Any] | None = None
    """ExecutionGraph of the run, if the request ended it at once because it never started;
    otherwise None."""

    @property
    def status(self) -> RunStatus | None:
        """Status of the run; None while the run does not exist."""
        return self.run.status if self.run else None

    @property
    def settled_at(self) -> datetime | None:
        """Time at which the run ended; None while it has not ended."""
        return self.run.finished_at if self.run else None


@dataclass(frozen=True, slots=True)
class RequiredActions:
    """Reads the calls of a run that wait for an answer from outside."""

    of_run: "Callable[[RunKey], Awaitable[Sequence[Mapping[str, Any]]]]"
    """Function that returns them as JSON objects."""


@dataclass(frozen=True, slots=True)
class CancelledRuns:
    """The response to a request to cancel all runs that match a filter."""

    ended: int
    """Number of runs that ended at once, because no process executed them."""
    requested: int
    """Number of runs that a process executes and whose worker was notified."""
    more: bool
    """Whether more runs match; repeating the request cancels the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Criteria that select runs to list or cancel."""

    status: RunStatus | None = None
    kind: RunKind | None = None
    agent: str | None = None
    """Name of a registered agent that the runs execute, or that answers in their thread; None
    selects all runs."""
    thread_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Required metadata values by key. Numbers, booleans and null are compared as they are written
    in JSON."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    limit: int = 50
    cursor: str | None = None
    """Cursor from the previous page; None starts with the newest run."""
    max_bytes: int | None = None
    """Maximum size of a page as JSON, in bytes; None means no limit. A run that would start beyond
    this limit is moved to the next page."""


LISTED_INPUT_CHARS = 200
"""Maximum number of characters of the input that lists of runs show."""


def json_of_text(text: str) -> Sequence[Any]:
    """Return the JSON values that a text may represent: text, number, boolean or null."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    plain = value is None or isinstance(value, bool | int)
    finite = isinstance(value, float) and math.isfinite(value)
    return (text, value) if plain or finite else (text,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResult:
    """The cost of a run that became known after the run was finished."""

    key: RunKey
    fence: int
    """Fencing token of the owner that finished the run; only that owner may add costs."""
    calls: tuple[CallRecord, ...]
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of a run's events, in order and without gaps."""

    events: Sequence[EventRecord]
    finished: bool
    """Whether the run had ended when the page was read. A page with fewer events than the limit is
    then the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentSoFar:
    """The usage of a run that has not ended, from its journal."""

    charge: Charge
    """Charges so far; calls in flight count with their estimate."""
    seconds: float
    """Execution time so far in seconds, on the database's clock."""


MAX_STORED_EVENTS = 500
"""Maximum number of events that wait in memory for a listener. Further ones are read again."""


class Notification(asyncio.Event):
    """Event that is set when a run has changed, with the events that this process has stored.

    The listener calls :meth:`take` before it reads the store.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stored: Sequence[EventRecord] | None = ()
        """Stored events that are not taken yet; None if they are too many or not known."""
        self._ended = False

    def add(self, stored: Sequence[EventRecord], *, ended: bool) -> None:
        """Set the event. ``stored`` are the new events, in order; empty if they are not known."""
        if self._stored is not None:
            both = (*self._stored, *stored)
            self._stored = both if stored and len(both) <= MAX_STORED_EVENTS else None
        self._ended |= ended
        self.set()

    def take(self, after: int) -> EventPage | None:
        """Clear the event; return the events after a sequence number up to the last stored one.

        Returns None if they must be read from the store.
        """
        self.clear()
        stored, self._stored = self._stored, ()
        ended, self._ended = self._ended, False
        newer = list[EventRecord]()
        for event in stored or ():
            if event.seq == after + 1 + len(newer):  # writes may repeat earlier events
                newer.append(event)
        if not stored or max(event.seq for event in stored) > after + len(newer):
            return None
        return EventPage(newer, finished=ended)


class RunStore(Protocol):
    """Stores runs. Each run has one row, and all decisions about it are made by updating that row.

    Accepting and cancelling a run both write its row, so a cancel request takes effect even if it
    arrives before its run. Every method is one transaction.
    """

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id``; without a worker, queued for any worker.

        If a cancel request is already stored for the run, it ends as cancelled instead. If the run
        resumes another run, the selected part of that run's journal and files is imported.

        Raises:
            RunConflictError: the run ID, alone or with the idempotency key, was used for a
                different request.
            IdempotencyMismatchError: the idempotency key was used with a different body.
            QueueFullError: too many runs are queued.
            QuotaExceededError: a quota of the tenant is exhausted.
            SourceNotFoundError: the run to resume from does not exist.
            SourceNotEndedError: the run to resume from has not ended.
            InvalidRunError: the run to resume from has no node with the given ID.
            StoreUnavailableError: the database did not answer.
        """
        ...

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        """Store a cancel request and notify the workers; end a run that never started.

        A run that has started and that no worker owns is queued, so that a worker ends it.

        Raises:
            TooManyPendingCancelsError: too many cancel requests are stored for runs that do not
                exist.
        """
        ...

    async def stoppable(self, tenant: str, run_filter: RunFilter) -> Sequence[RunKey]:
        """Return the oldest matching runs that have not ended and have no cancel request.

        At most ``run_filter.limit`` keys are returned.
        """
        ...

    async def cancel_matching(
        self, key: RunKey, cancel_request: CancelRequest, run_filter: RunFilter
    ) -> CancelStatus | None:
        """Cancel a run like :meth:`cancel`, but only if :meth:`stoppable` would still return it.

        Otherwise change nothing and return None.
        """
        ...

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; None if it does not exist, even if a cancel request is stored for it."""
        ...

    async def erase(self, key: RunKey) -> None:
        """Erase an ended run with all its data; its ID can be used again.

        Raises:
            RunNotFoundError: the run does not exist.
            RunNotEndedError: the run has not ended.
        """
        ...

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run that has an idempotency key; without a key, return the run ``key``."""
        ...

    async def find(self, tenant: str, run_filter: RunFilter) -> Page[Run]:
        """Return a page of runs, newest first, without results, graphs and inputs.

        ``request.input`` is the start of the input as text.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        ...

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        """Claim the run ``key``, or the next queued run; return None if none can be claimed.

        The next run is chosen so that tenants alternate; tenants in ``excluding`` are skipped.
        Within a tenant, runs are ordered by priority (highest first), then by age (oldest first). A
        run is skipped while its tenant or its concurrency key has reached its limit of active runs.

        Earlier owners can store no more events after the claim, so ``last_seq`` of the returned
        run is final.
        """
        ...

    async def started_calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the last LLM and tool calls of a run that may have taken effect."""
        ...

    async def claim_stopped(self, key: RunKey, worker_id: str) -> Run | None:
        """Claim a run that has started and was stopped, unless a worker owns it.

        It has a cancel request, or its deadline has passed. Return None if it cannot be claimed.
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
        pause_seconds: float = 0.0,
        waits_for: Collection[str] = (),
        settled: Sequence[Hold] = (),
        cleared: bool = False,
    ) -> None:
        """Release a claimed run to the queue; if ``counted``, the execution counts as an attempt.

        ``counted`` also counts it as a death of its process. If ``cleared``, no death counts
        against the run any more.

        The run can be claimed again after ``pause_seconds``. ``waits_for`` holds IDs of approvals.
        If it is not empty, the run becomes ``waiting`` and has no owner. It is queued once an
        approval is decided or times out, the deadline of the run passes, or the run is cancelled.
        If that has already happened, the run is queued at once. ``settled`` are holds of the run
        with their actual amounts.

        Raises:
            StoreUnavailableError: the database did not answer; the release may have succeeded.
        """
        ...

    async def late(self, result: LateResult) -> None:
        """Record costs that arose after the end of a run; its status and result do not change.

        The fencing token must be that of the owner that finished the run. This also stores a
        ``late_result`` event.
        """
        ...

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return up to ``limit`` events after the sequence number ``after``.

        Returns None if the run does not exist.
        """
        ...

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return a context manager that yields an event, set whenever the run has new events.

        Leaving the context stops listening. Events that this process stores set it at once.
        Notifications from other processes can be lost while the store is unavailable.
        """
        ...

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        ...

    async def spent(self, key: RunKey) -> SpentSoFar:
        """Return the usage of a run according to its journal; zero if the journal is empty."""
        ...

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        """Return the records of one call, with its request and its attempts, and of the run's root.

        The records are in the order of their CallNodes. If the call does not exist, only the
        record of the root is returned.
        """
        ...

    async def payloads(
        self,
        key: RunKey,
        *,
        max_bytes: int,
        call_keys: Sequence[str] | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> Sequence[CallRecord]:
        """Return the first calls and steps of a run, with their requests and replies.

        ``call_keys`` and ``node_ids`` select records; None selects all. Once requests and replies
        together would exceed ``max_bytes``, further records are left out.
        """
        ...

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        """Return the calls of a conversation, and the calls that they reference, in order.

        ``call_key`` identifies the first call; ``until`` is the last call. The oldest records are
        left out if the total size would exceed ``max_bytes``.
        """
        ...

    async def nodes(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        """Return the stored CallNodes of a run, in the order of their IDs."""
        ...


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a run may continue, according to the response to a journal write."""

    owned: bool
    """Whether the writer still owns the run; False if another worker does or the run has ended."""
    cancel_request: CancelRequest | None
    answered_at: float | None = field(default=None, compare=False)
    """Time, on the monotonic clock, from which the age of this permission is measured: the arrival
    of the response or, if it was slow, the time of the request. None means the time of the
    check."""
    holds: Mapping[HoldKey, HoldAnswer] = field(default_factory=dict, compare=False)
    """Answers to the holds of the write, by :attr:`Hold.key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWrite:
    """The journal changes of one run that are to be stored together."""

    key: RunKey
    fence: int
    calls: tuple[CallRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    """Events that may not be stored yet; writing a stored event again does not change it."""
    accounts: tuple[str, ...] = ()
    """Accounts in which ``holds`` reserve."""
    holds: tuple[Hold, ...] = ()
    """Calls to reserve, each completely or not at all; a repeated hold reserves once."""
    settled: tuple[Hold, ...] = ()
    """Holds to settle, with their actual amounts. Settling a hold again changes nothing."""


@dataclass(frozen=True, slots=True)
class FinishResult:
    """The response to an update that ends a run."""

    done: bool
    finished_at: datetime | None = None
    """Time at which the run ended, on the database's clock; None if it did not end."""
    cancel_request: CancelRequest | None = None
    """Cancel request that was stored before the end. The run must then be finished as cancelled."""
    frees_capacity: bool = False
    """Whether another run of the tenant may be able to start now."""


class JournalStore(Protocol):
    """Stores journals. The writes of all runs of a process share commits."""

    async def write(self, write: JournalWrite) -> Permission:
        """Store journal changes if the writer still owns the run; durable on return.

        Retries while the database is unavailable. Notifies the listeners of the run as its last
        action, and does not suspend between that and the return.

        Raises:
            WriteFailedError: the database is available but cannot store the write.
        """
        ...

    async def finish(self, finish: FinishRun) -> FinishResult:
        """Store the end of a run.

        Nothing is written if another worker owns the run, or if the run has a cancel request and
        the new status is not ``cancelled``. Retries while the database is unavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """The response to a heartbeat: the runs that the worker owns, with their cancel requests."""

    cancelled: Mapping[RunKey, CancelRequest]
    owned: frozenset[RunKey]
    draining: bool = False
    """Whether the worker accepts no more runs; an operator may have asked for it."""


class WorkerStore(Protocol):
    """Stores heartbeats of the processes that execute runs."""

    async def beat(self, worker_id: str) -> Beat:
        """Record a heartbeat, and return the runs that the database assigns to the worker."""
        ...

    async def stop_accepting(self, worker_id: str) -> None:
        """Record that this worker accepts no more runs."""
        ...

    async def leave(self, worker_id: str) -> None:
        """Record that this worker shuts down."""
        ...
