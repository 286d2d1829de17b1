"""Ports for storing and dispatching runs."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from caseworker.core.budget.usage import Charge
from caseworker.runs.notifying import Notification
from caseworker.runs.quotas import RateState
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


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of accepting a request."""

    run: Run
    created: bool
    """False if the same request was accepted before."""
    rate: RateState | None = None
    """State of the tenant's rate limit, if there is one."""


@dataclass(frozen=True, slots=True)
class CancelStatus:
    """The result of a cancel request."""

    run_id: str
    run: Run | None
    """None while the run does not exist; the request is then pending."""
    cancel_request: CancelRequest | None
    """The first request, which is the effective one; None if the run ended without any."""
    already_finished: bool = False
    """True if the run had already ended, so nothing changed."""
    calls: Sequence[CallRecord] = ()
    """The LLM and tool calls that had started when the request was stored."""
    snapshot: Mapping[str, Any] | None = None
    """The ExecutionGraph of a run that the request ended because no process executed it."""

    @property
    def status(self) -> RunStatus | None:
        """The status of the run; None while the run does not exist."""
        return self.run.status if self.run else None

    @property
    def settled_at(self) -> datetime | None:
        """When the run ended; None while it has not."""
        return self.run.finished_at if self.run else None


@dataclass(frozen=True, slots=True)
class CancelledRuns:
    """The result of a request to cancel all runs that match a filter."""

    ended: int
    """Number of runs that no process executed; they ended immediately."""
    requested: int
    """Number of running runs whose workers were notified."""
    more: bool
    """True if more runs match; repeating the request cancels the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Criteria for listing runs."""

    status: RunStatus | None = None
    kind: RunKind | None = None
    agent: str | None = None
    """Name of a registered agent that the runs execute, or that answers in their thread."""
    thread_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Required values by key; numbers, booleans and null match their JSON notation."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    limit: int = 50
    cursor: str | None = None
    """Cursor from the previous page."""
    max_bytes: int | None = None
    """Maximum JSON size of a page; a run that would start beyond it goes to the next page."""


LISTED_INPUT_CHARS = 200
"""Number of characters of the input that a summary shows."""


def json_of_text(text: str) -> Sequence[Any]:
    """Return the JSON values that a text can mean: the text itself, a number, a boolean, null."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    plain = value is None or isinstance(value, bool | int)
    finite = isinstance(value, float) and math.isfinite(value)
    return (text, value) if plain or finite else (text,)


@dataclass(frozen=True, slots=True)
class Page:
    """Runs, newest first."""

    runs: Sequence[Run]
    """Runs without graphs and inputs; ``request.input`` is the beginning of the input text."""
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResult:
    """The cost that a run incurred after it was finished."""

    key: RunKey
    fence: int
    """Fencing token of the owner that finished the run; no other owner may add costs."""
    calls: tuple[CallRecord, ...]
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of a run, in order without gaps, and whether the run had ended at that time."""

    events: Sequence[EventRecord]
    finished: bool
    """If True, a page with fewer events than the limit is the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentSoFar:
    """The usage of an unfinished run according to its journal."""

    charge: Charge
    """Charges so far; calls in flight count at their estimate."""
    seconds: float
    """Execution time in seconds, on the database's clock."""


class RunStore(Protocol):
    """Stores runs; one row per run serializes all decisions about it.

    POST and DELETE both write that row, so an early cancel request and a late run cannot miss each
    other. Every method is one transaction.
    """

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id`` or queued for any worker.

        With a pending cancel the run is finished as cancelled instead. If it resumes another run,
        the selected part of that run's journal and files is imported.

        Raises:
            RunConflictError: the ID, or the pair of ID and key, belongs to another request.
            IdempotencyMismatchError: the key was used with a different body.
            QueueFullError: too many runs are queued.
            QuotaExceededError: a quota of the tenant is exhausted.
            SourceNotFoundError: the run to resume from does not exist.
            SourceNotEndedError: the run to resume from has not ended.
            InvalidRunError: the run to resume from has no such node.
            StoreUnavailableError: the database did not answer.
        """
        ...

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        """Store a cancel request and notify the workers; finish a queued run at once.

        Raises:
            TooManyPendingCancelsError: too many requests are pending for runs that do not exist.
        """
        ...

    async def stoppable(self, tenant: str, wanted: RunFilter) -> Sequence[RunKey]:
        """Return the oldest ``limit`` matching runs without an end or a cancel request."""
        ...

    async def cancel_matching(
        self, key: RunKey, cancel_request: CancelRequest, wanted: RunFilter
    ) -> CancelStatus | None:
        """Cancel a run as :meth:`cancel` does if :meth:`stoppable` would still return it.

        Otherwise return None and change nothing.
        """
        ...

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; None if it does not exist, even if a cancel is pending."""
        ...

    async def erase(self, key: RunKey) -> None:
        """Erase an ended run with all its data; its ID can be used again.

        Raises:
            RunNotFoundError: the run does not exist.
            RunNotEndedError: the run has not ended.
        """
        ...

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run of an idempotency key, or without a key the run of an ID."""
        ...

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs without results; graphs and inputs may be omitted.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        ...

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        """Claim the next queued run, or the run of ``key``; return None if none is claimable.

        Runs of the tenants in ``excluding`` are skipped.

        Tenants alternate. Within a tenant, runs are ordered by priority (highest first), then by
        age (oldest first). A run is skipped while its tenant or its concurrency key is at its limit
        of active runs.

        ``last_seq`` of the returned run is final for earlier owners: they cannot store more events.
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
    ) -> None:
        """Release a claimed run to the queue; ``counted`` is whether the attempt counts.

        The run can be claimed again after ``pause_seconds``. With ``waits_for`` (approval IDs) it
        becomes ``waiting`` without an owner, until one of them is decided or times out, its
        deadline passes or it is cancelled. If that has already happened it is queued at once.

        Raises:
            StoreUnavailableError: the database did not answer; the release may have succeeded.
        """
        ...

    async def late(self, result: LateResult) -> None:
        """Record costs that arrived after the end; status and result do not change.

        Requires the fencing token of the finishing owner. Also stores a ``late_result`` event.
        """
        ...

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return up to ``limit`` events after number ``after``; None if the run does not exist."""
        ...

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return a notification that is set when a run has new events.

        Set immediately for events stored by this process. Notifications from other processes can
        be lost while the store is unavailable.
        """
        ...

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        ...

    async def spent(self, key: RunKey) -> SpentSoFar:
        """Return the charges in the journal of a run; zero if it has none."""
        ...

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        """Return one call of a run with its request, its attempts and the run's root.

        Records are in the order of their CallNodes; the call is missing if it does not exist.
        """
        ...

    async def payloads(
        self, key: RunKey, *, max_bytes: int, call_keys: Sequence[str] | None = None
    ) -> Sequence[CallRecord]:
        """Return the first calls and steps of a run with their requests and replies.

        ``call_keys`` selects records; None selects all. Records are omitted once requests and
        replies together would exceed ``max_bytes``.
        """
        ...

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        """Return the calls of a conversation and the calls that they reference.

        ``call_key`` is the first call. Records are in order, up to ``until``; the oldest are
        omitted if the total exceeds ``max_bytes``.
        """
        ...

    async def nodes(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        """Return the stored CallNodes of a run, in the order of their IDs."""
        ...


@dataclass(frozen=True, slots=True)
class Permission:
    """The answer to a journal write."""

    owned: bool
    """False if another worker owns the run, or it has ended."""
    cancel_request: CancelRequest | None
    answered_at: float | None = field(default=None, compare=False)
    """Time on the monotonic clock from which the permission ages: its arrival, or the time of the
    request if the answer was slow. None means the time at which it is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWrite:
    """Journal changes of one run to store."""

    key: RunKey
    fence: int
    calls: tuple[CallRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    """Events that may not be stored yet; stored ones are left unchanged."""


@dataclass(frozen=True, slots=True)
class FinishResult:
    """The result of storing the end of a run."""

    done: bool
    finished_at: datetime | None = None
    """When the run ended, on the store's clock; None if it did not."""
    cancel_request: CancelRequest | None = None
    """A cancel request that won the race: finish the run again, as cancelled."""
    frees_place: bool = False
    """Whether this end may unblock another run of the tenant."""


class JournalStore(Protocol):
    """Stores journals; writes of all runs of a process share commits."""

    async def write(self, write: JournalWrite) -> Permission:
        """Store journal changes if the run is still owned; durable on return.

        Retries while the database is unavailable.

        Raises:
            WriteFailedError: the database is available but cannot store the write.
        """
        ...

    async def finish(self, finish: FinishRun) -> FinishResult:
        """Finish a run with one guarded update.

        Nothing is written if another worker owns the run, or if it has a cancel request and the
        status is not ``cancelled``. Retries while the database is unavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """The runs that the database assigns to a worker, and their cancel requests."""

    cancelled: Mapping[RunKey, CancelRequest]
    owned: frozenset[RunKey]
    draining: bool = False
    """True once an operator has asked the worker to accept no more runs."""


class WorkerStore(Protocol):
    """Stores heartbeats of the processes that execute runs."""

    async def beat(self, worker_id: str) -> Beat:
        """Record a heartbeat; return the runs that the worker owns."""
        ...

    async def leave(self, worker_id: str) -> None:
        """Record that this worker ends."""
        ...
