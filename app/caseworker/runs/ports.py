"""What runs need of whatever stores and dispatches them."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from caseworker.control.usage import Charge
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
    """What became of a request."""

    run: Run
    created: bool
    """False if the same request had been accepted before."""
    rate: RateState | None = None
    """How its tenant stands to its rate of runs, if that is limited."""


@dataclass(frozen=True, slots=True)
class CancelStatus:
    """What became of a cancel request."""

    run_id: str
    run: Run | None
    """None while the run does not exist; the request is then pending."""
    cancel_request: CancelRequest | None
    """The request that counts: the first one. None if the run had ended without any."""
    already_finished: bool = False
    """True if the run had ended before, so that nothing was changed."""
    calls: Sequence[CallRecord] = ()
    """The LLM and tool calls that had begun when the request was stored."""
    snapshot: Mapping[str, Any] | None = None
    """The ExecutionGraph of a run that the request has ended, because nobody was executing it."""

    @property
    def status(self) -> RunStatus | None:
        """The status of the run; None while it does not exist."""
        return self.run.status if self.run else None

    @property
    def settled_at(self) -> datetime | None:
        """When the run ended; None while it has not."""
        return self.run.finished_at if self.run else None


@dataclass(frozen=True, slots=True)
class CancelledRuns:
    """What became of a request to cancel all runs that fit a filter."""

    ended: int
    """Runs that nobody executed: they ended at once."""
    requested: int
    """Runs at work: whoever executes them has been asked to stop them."""
    more: bool
    """True if there are more runs that fit; the same request cancels the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list."""

    status: RunStatus | None = None
    kind: RunKind | None = None
    agent: str | None = None
    """The name of a registered agent that they execute, or that answers in their thread."""
    thread_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Texts by key; numbers, booleans and null count as they are written in JSON."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    limit: int = 50
    cursor: str | None = None
    """Where the page before ended."""
    max_bytes: int | None = None
    """Runs that would begin beyond so many bytes of JSON are left to the next page."""


LISTED_INPUT_CHARS = 200
"""How much of the input of a run its summary shows."""


def json_of_text(text: str) -> Sequence[Any]:
    """Return the JSON values that a text may mean: it itself, a number, a boolean, null."""
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
    """Without graphs and inputs; ``request.input`` is the beginning of the text that was asked."""
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResult:
    """What a run has cost after it was finished."""

    key: RunKey
    fence: int
    """Of the owner that finished it; nobody else adds to what it has spent."""
    calls: tuple[CallRecord, ...]
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of a run, in order and without a gap, and whether the run had ended by then."""

    events: Sequence[EventRecord]
    finished: bool
    """If True, and if there are fewer events than were asked for, there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentSoFar:
    """What a run that is worked on has spent, as its journal holds it."""

    charge: Charge
    """What is in flight counts at its estimate."""
    seconds: float
    """How long it has been worked on, on the database's clock."""


class RunStore(Protocol):
    """The one row that decides, for every run.

    POST and DELETE both write the row of the run, so that a cancel request that comes early and a
    run that comes late cannot miss each other. Every method is one transaction.
    """

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        """Store a run durably, claimed for ``worker_id`` or queued for any worker.

        With a pending cancel it is finished as cancelled instead. If it goes on from another run,
        it begins with what it takes over of that one's journal and files.

        Raises:
            RunConflictError: the id, or the pair of id and key, belongs to another request.
            IdempotencyMismatchError: the key was used with another body.
            QueueFullError: too many runs are queued.
            QuotaExceededError: the tenant may have no further run now.
            SourceNotFoundError: there is no run to go on from.
            SourceNotEndedError: the run to go on from has not ended.
            InvalidRunError: the run to go on from has no such node.
            StoreUnavailableError: the database did not answer.
        """
        ...

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        """Store a cancel request and notify the workers; a queued run is finished at once.

        Raises:
            TooManyPendingCancelsError: too many requests wait for runs that do not exist.
        """
        ...

    async def stoppable(self, tenant: str, wanted: RunFilter) -> Sequence[RunKey]:
        """Return the oldest ``limit`` runs that fit, have not ended and were not asked to stop."""
        ...

    async def cancel_matching(
        self, key: RunKey, cancel_request: CancelRequest, wanted: RunFilter
    ) -> CancelStatus | None:
        """Cancel a run as :meth:`cancel` does, if it is still one that :meth:`stoppable` returns.

        None, and nothing changed, if it is not.
        """
        ...

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; a pending cancel is none."""
        ...

    async def erase(self, key: RunKey) -> None:
        """Erase a run that has ended, with everything that it stored; its id is free again.

        Raises:
            RunNotFoundError: there is no such run.
            RunNotEndedError: it has not ended.
        """
        ...

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run that was made under an idempotency key, or without one under an id."""
        ...

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs without results; graphs and inputs may be left out of them too.

        Raises:
            InvalidRunError: the cursor is not one of ours.
        """
        ...

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        """Take the queued run that is next, or the one of a key; None if there is none to take.

        Runs of the tenants ``excluding`` are passed over.

        Tenants take turns; of the runs of one, the one with the highest priority is next, and of
        those the oldest. A run is passed over while its tenant, or its concurrency key, has as many
        under way as it may.

        The run knows the last event that its earlier owners have stored: none of them adds another.
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
        """Give a claimed run back to the queue; ``counted`` says whether the attempt counts.

        Nobody may claim it before ``pause_seconds`` have passed. With ``waits_for``, the ids of
        approvals, it waits instead, as nobody's, until one of them is decided or out of time, its
        deadline has passed or it is cancelled; if that is so already it is queued at once.

        Raises:
            StoreUnavailableError: the database did not answer; it may have been given back.
        """
        ...

    async def late(self, result: LateResult) -> None:
        """Record a result that came after the end; status and result stay as they are.

        Only the owner that finished the run may; a ``late_result`` event is stored with it.
        """
        ...

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return the events behind number ``after``, at most ``limit``; None if there is no run."""
        ...

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return a notification that is set whenever there are new events of a run.

        At once if this process stores them; those of others it may miss while the store is away.
        """
        ...

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        ...

    async def spent(self, key: RunKey) -> SpentSoFar:
        """Return what the journal of a run has charged; nothing if there is none."""
        ...

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        """Return one call of a run with what it asked, its attempts and the root of the run.

        They come in the order of their CallNodes; without the call, if there is none.
        """
        ...

    async def payloads(
        self, key: RunKey, *, max_bytes: int, call_keys: Sequence[str] | None = None
    ) -> Sequence[CallRecord]:
        """Return the first calls and steps of a run, with what they asked and what they got.

        ``call_keys`` are those that are wanted; None: all. Left out are those with which requests
        and replies would come to more than ``max_bytes``.
        """
        ...

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        """Return the calls of the conversation that a call began, and those that they name.

        They come in their order, up to ``until``; the oldest are left out where they come to more
        than ``max_bytes``.
        """
        ...

    async def nodes(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        """Return the CallNodes that a run has stored, in the order of their ids."""
        ...


@dataclass(frozen=True, slots=True)
class Permission:
    """The answer to a write of the journal."""

    owned: bool
    """False if the run belongs to another worker by now, or has ended."""
    cancel_request: CancelRequest | None
    answered_at: float | None = field(default=None, compare=False)
    """From when on the answer ages, on the monotonic clock: when it arrived, or when it was asked
    for if it took longer than usual. None counts as the moment at which it is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWrite:
    """What one run wants to have stored."""

    key: RunKey
    fence: int
    calls: tuple[CallRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    """Those that may not be stored yet; what is stored of them already stays as it is."""


@dataclass(frozen=True, slots=True)
class FinishResult:
    """What became of an end that was written."""

    done: bool
    finished_at: datetime | None = None
    """When the run ended, on the store's clock; None if it did not."""
    cancel_request: CancelRequest | None = None
    """A cancel request that came first: write the end again, as cancelled."""
    frees_place: bool = False
    """Whether another run of the tenant may have waited for this end."""


class JournalStore(Protocol):
    """Stores what runs did; the writes of all runs of a process share commits."""

    async def write(self, write: JournalWrite) -> Permission:
        """Store a piece of a run's journal if the run is still owned; durable on return.

        Waits for a database that is away.

        Raises:
            WriteFailedError: the database is there, and cannot carry it out.
        """
        ...

    async def finish(self, finish: FinishRun) -> FinishResult:
        """Finish a run with one guarded update.

        Nothing is written if another worker owns the run, or if it has a cancel request and the
        end is not ``cancelled``. Waits for a database that is away.
        """
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """The runs of a worker as the database has them, and their cancel requests."""

    cancelled: Mapping[RunKey, CancelRequest]
    owned: frozenset[RunKey]
    draining: bool = False
    """True once somebody has asked the worker to take no more runs."""


class WorkerStore(Protocol):
    """The heartbeat of a process that executes runs."""

    async def beat(self, worker_id: str) -> Beat:
        """Record that this worker lives; return the runs that are its own."""
        ...

    async def leave(self, worker_id: str) -> None:
        """Record that this worker ends."""
        ...
