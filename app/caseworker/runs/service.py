"""Run operations for callers: accept, cancel, read and follow runs.

Results and events of agents refer to calls instead of repeating their texts; see
:mod:`caseworker.nodes.agent.references`. The references are replaced before callers receive them.

See docs/internals.md, "One row decides".
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from caseworker.core.trace.execution_graph import snapshot_of
from caseworker.engine.context import RunContext
from caseworker.engine.ports import CallOutcome
from caseworker.engine.supervision import forget_failure, set_within, shielded
from caseworker.nodes.agent.references import key_in_event, whole_event_data
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.logs.trace_context import current_traceparent
from caseworker.runs.errors import ExecutesNothingError, ExternalRunsFullError, RunNotFoundError
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.execute.outcome import usage_so_far
from caseworker.runs.journal.replay import graph_of
from caseworker.runs.kinds import KINDS
from caseworker.runs.observers import RunObservers
from caseworker.runs.ports import (
    Accepted,
    CancelledRuns,
    CancelStatus,
    EventPage,
    RunFilter,
    RunStore,
)
from caseworker.runs.read.event_followers import AT_ONCE, Batch, Followers
from caseworker.runs.references import call_references_in, resolved
from caseworker.runs.run import CancelRequest, EventRecord, NewRun, Run, RunKey, RunStatus

log = structlog.get_logger(__name__)

ACCEPT_GRACE_SECONDS = 30.0
FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5
"""First and maximum poll interval, in seconds, while a caller waits for a run that another process
executes."""

MAX_RETRY_SECONDS = 5.0
"""Maximum interval, in seconds, between attempts to cancel an abandoned run."""

FORWARD_SECONDS = 5.0
"""Seconds, after the grace period of the process, for the responses of other processes to requests
that this one has forwarded. Such a request may have waited before its call started."""

EVERYTHING = 1 << 40
"""A size limit that is never reached: results and pages were limited when they were created."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A run with its calls so far."""

    run: Run
    snapshot: Mapping[str, Any]


class RunService:
    """Accepts, cancels and reads runs; works on any replica.

    Methods that return a run raise ``RunNotFoundError`` if it does not exist, even if a cancel
    request is stored for it.
    """

    def __init__(
        self,
        store: RunStore,
        executor: RunExecutor | None,
        observers: RunObservers | None = None,
        *,
        settle_seconds: float,
    ) -> None:
        """Execute accepted runs on ``executor`` if it has a free slot; None only queues them.

        A cancel request waits for the end of the run for at most ``settle_seconds``.
        """
        self._settle_seconds = settle_seconds
        self.store = store
        self._executor = executor
        self._observers = observers or RunObservers()
        self._closing = asyncio.Event()
        self._waiting: set[asyncio.Timeout] = set()
        """Timeouts of callers that wait for runs of this process."""
        self._answering: set[asyncio.Timeout] = set()
        self._grace_ends_at: float | None = None
        self._settling: set[asyncio.Task[Run]] = set()
        self._abandoning: set[asyncio.Task[None]] = set()
        stored_seq = executor.stored_seq if executor else lambda key: None
        self._followers = Followers(store.listening, self._events_after, stored_seq)

    async def accept(self, new: NewRun) -> Accepted:
        """Store a run durably and start it immediately if this process has a free slot.

        Raises the errors of :meth:`RunStore.accept`.
        """
        if (traceparent := current_traceparent()) is not None:
            new = replace(new, request=replace(new.request, traceparent=traceparent))
        accepted = await shielded(self._accept(new), grace_seconds=ACCEPT_GRACE_SECONDS)
        if accepted.created:
            self._observers.accepted(accepted.run)
            if accepted.run.finished:
                self._observers.ended(accepted.run, None)
        if accepted.run.result is None and accepted.run.cancel_request is None:
            return accepted
        return replace(accepted, run=await whole_run(self.store, accepted.run))

    def draft(self, new: NewRun) -> RunContext:
        """Return the context of a run as if it was accepted now; nothing is stored.

        Raises:
            ExecutesNothingError: this process executes no runs.
        """
        if self._executor is None:
            raise ExecutesNothingError
        return self._executor.draft(new)

    async def cancel(self, key: RunKey, *, by: str, reason: str | None = None) -> CancelStatus:
        """Store a cancel request, even if the run does not exist yet.

        ``reason`` is stored without secrets and personal data, because it appears in traces.

        Raises:
            TooManyPendingCancelsError: too many cancel requests are stored for runs that do not
                exist.
        """
        redacted = None if reason is None else redact_text(reason)
        cancelled = await self.store.cancel(key, CancelRequest(requested_by=by, reason=redacted))
        self._deliver(key, cancelled)
        return await self._settled(key, cancelled)

    def abandon(self, key: RunKey, *, by: str, reason: str) -> None:
        """Cancel a run in the background, because its client has disconnected.

        The request is retried while the database is unavailable. A run whose client was
        disconnected by the shutdown of this process continues.
        """
        abandoning = asyncio.create_task(self._abandon(key, by, reason), name="abandoning")
        self._abandoning.add(abandoning)
        abandoning.add_done_callback(self._abandoning.discard)

    async def cancel_matching(
        self, tenant: str, run_filter: RunFilter, *, by: str, reason: str | None = None
    ) -> CancelledRuns:
        """Cancel the oldest matching runs one by one, each only if it still matches.

        At most ``run_filter.limit`` runs are cancelled. Runs that already have a cancel request are
        skipped.
        """
        redacted = None if reason is None else redact_text(reason)
        request = CancelRequest(requested_by=by, reason=redacted)
        keys = await self.store.stoppable(tenant, replace(run_filter, limit=run_filter.limit + 1))
        stopped: list[CancelStatus] = []
        for key in keys[: run_filter.limit]:
            cancelled = await self.store.cancel_matching(key, request, run_filter)
            if cancelled is not None:
                self._deliver(key, cancelled)
                stopped.append(cancelled)
        ended = sum(each.settled_at is not None for each in stopped)
        return CancelledRuns(ended, len(stopped) - ended, more=len(keys) > run_filter.limit)

    async def get(self, key: RunKey) -> Run:
        """Return a run in its current state.

        Raises:
            RunNotFoundError: the run does not exist.
        """
        run = await self.store.get(key)
        if run is None:
            raise RunNotFoundError(key.run_id)
        return await whole_run(self.store, run)

    async def erase(self, key: RunKey) -> None:
        """Erase an ended run with all its data; its ID can be used again.

        Raises:
            RunNotFoundError: the run does not exist.
            RunNotEndedError: the run has not ended.
        """
        await shielded(self.store.erase(key), grace_seconds=ACCEPT_GRACE_SECONDS)

    async def with_usage(self, run: Run) -> Run:
        """Return the run, with its usage so far if its final usage is not stored yet.

        Calls in flight count with their estimate. If another replica executes the run, the usage is
        read from the journal.
        """
        if run.usage is not None or not run.fence:
            return run
        usage = None if self._executor is None else self._executor.usage_of(run.key)
        if usage is None:
            usage = usage_so_far(await self.store.spent(run.key))
        return replace(run, usage=usage)

    async def accepted_before(
        self, key: RunKey, idempotency_key: str | None, request_hash: str
    ) -> Accepted | None:
        """Return the run that an identical earlier request created, or None.

        Use this if the request would be rejected now, because repeating it must give the same
        response.
        """
        run = await self.store.earlier(key, idempotency_key)
        same = run is not None and run.request_hash == request_hash
        if run is None or not same:
            return None
        return Accepted(await whole_run(self.store, run), created=False)

    @property
    def is_closing(self) -> bool:
        """Whether the process is shutting down, so that requests must not wait for runs."""
        return self._closing.is_set()

    @property
    def accepts_runs(self) -> bool:
        """Whether this process executes runs, and neither shuts down nor drains."""
        return self._executor is not None and self._executor.accepts_runs

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Have another process answer a request in the block, as long as this process lives.

        Raises:
            TimeoutError: the grace period of the process is over, or ``FORWARD_SECONDS`` after it.
        """
        clock = asyncio.get_running_loop().time
        if self._grace_ends_at is not None and clock() >= self._grace_ends_at:
            raise TimeoutError
        async with asyncio.timeout_at(self._forwards_until) as limit:
            self._answering.add(limit)
            try:
                yield
            finally:
                self._answering.discard(limit)

    @property
    def _forwards_until(self) -> float | None:
        ends_at = self._grace_ends_at
        return None if ends_at is None else ends_at + FORWARD_SECONDS

    def stop_waiting(self, *, grace_seconds: float = 0.0) -> None:
        """End all waiting: callers get their unfinished runs immediately, and event streams end.

        ``grace_seconds`` is the grace period of the process for :meth:`answering`.
        """
        if self._closing.is_set():
            return
        self._grace_ends_at = asyncio.get_running_loop().time() + grace_seconds
        for limit in self._answering:
            limit.reschedule(self._forwards_until)
        self._closing.set()
        for limit in tuple(self._waiting):
            if not limit.expired():
                limit.reschedule(0)
        self._followers.close()

    async def wait(self, key: RunKey, *, seconds: float) -> Run:
        """Return a run once it has ended, or in its current state after ``seconds``.

        Returns early when the process shuts down.

        Raises:
            RunNotFoundError: the run does not exist.
        """
        delay_seconds = FIRST_POLL_SECONDS
        until = time.monotonic() + seconds
        while True:
            run = await self._until_ended_here(key, until)
            run = await self.get(key) if run is None else run
            remaining = until - time.monotonic()
            if run.finished or remaining <= 0 or self._closing.is_set():
                return run
            await set_within(self._closing, min(delay_seconds, remaining))
            delay_seconds = min(2 * delay_seconds, MAX_POLL_SECONDS)

    async def ended_here(self, key: RunKey, *, seconds: float) -> None:
        """Wait until this process does not execute a run any more, for at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._executor is not None:
                    await self._executor.ended(key)

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage:
        """Return up to ``limit`` events with sequence numbers greater than ``after``.

        Raises:
            RunNotFoundError: the run does not exist.
        """
        page = await self.store.events(key, after=after, limit=limit)
        if page is None:
            raise RunNotFoundError(key.run_id)
        return replace(page, events=await whole_events(self.store, key, page.events))

    def follow(self, key: RunKey, *, after: int = 0) -> AsyncGenerator[Batch, None]:
        """Yield batches of events after the sequence number ``after``, until the run has ended.

        Events that this process stores arrive with the notification. Otherwise the store is read on
        each notification, and occasionally without one. While there are no events, empty batches
        are yielded, so that the caller can send keep-alives. The stream ends early if the process
        shuts down; the caller can resume on another replica.
        """
        return self._followers.follow(key, after=after)

    async def _events_after(self, key: RunKey, after: int) -> EventPage:
        return await self.events(key, after=after, limit=AT_ONCE)

    async def trace(self, key: RunKey) -> Trace:
        """Return a run with its calls so far."""
        run = await self.get(key)
        nodes = await self.store.nodes(key)
        # Validating ten thousand nodes takes 0.04 s, so a thread keeps the event loop responsive.
        return Trace(run, await asyncio.to_thread(_graph_of, run, nodes))

    def _deliver(self, key: RunKey, cancelled: CancelStatus) -> None:
        """Stop the run immediately if it is executed here, or nowhere.

        Notify observers if it has ended.
        """
        run, request = cancelled.run, cancelled.cancel_request
        if run is None or cancelled.already_finished:
            return
        if run.finished:
            self._observers.ended(run, cancelled.snapshot)
        elif request and self._executor is not None:
            if run.status is RunStatus.RUNNING:
                self._executor.cancel(key, request)
            else:
                self._executor.replay_stopped_soon(key)

    async def _abandon(self, key: RunKey, by: str, reason: str) -> None:
        delay_seconds = FIRST_POLL_SECONDS
        while not self._closing.is_set():
            try:
                await self.cancel(key, by=by, reason=reason)
                return
            except StoreUnavailableError:
                log.warning("run.cancel_delayed", run_id=key.run_id)
            await set_within(self._closing, delay_seconds)
            delay_seconds = min(2 * delay_seconds, MAX_RETRY_SECONDS)

    async def _settled(self, key: RunKey, cancelled: CancelStatus) -> CancelStatus:
        """Wait a moment for the end of the run, and return its state and its calls."""
        if cancelled.run is None:
            return cancelled
        # In a task of its own: SQL statements are not interrupted, and may wait for a connection.
        settling = asyncio.create_task(
            self.wait(key, seconds=self._settle_seconds), name="settling"
        )
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)
        settling.add_done_callback(forget_failure)
        await asyncio.wait({settling}, timeout=2 * self._settle_seconds)
        if not settling.done() or settling.exception() is not None:
            return cancelled  # the request is stored in any case
        run = settling.result()
        return replace(cancelled, run=run, cancel_request=run.cancel_request)

    async def _accept(self, new: NewRun) -> Accepted:
        executor, external = self._executor, KINDS[new.request.kind].is_external
        delayed = new.request.start_at is not None and new.request.start_at > datetime.now(UTC)
        if executor is None or delayed or not executor.reserve(new.key.tenant, external=external):
            if not external:
                return await self.store.accept(new, worker_id=None)
            before = await self.accepted_before(new.key, new.idempotency_key, new.request_hash)
            if before is not None:
                return before
            raise ExternalRunsFullError if self.accepts_runs else ExecutesNothingError
        # Before the statement is sent: the permission must not look fresher than it is.
        permitted_at = time.monotonic()
        try:
            accepted = await self.store.accept(new, worker_id=executor.worker_id)
        finally:
            executor.unreserve(new.key.tenant, external=external)
        if accepted.created and accepted.run.status is RunStatus.RUNNING:
            run = accepted.run
            is_same = run.request.graph is new.request.graph  # not read again, nor stored before
            prepared = new.prepared if is_same else None
            executor.start(run, permitted_at=permitted_at, prepared=prepared)
        return accepted

    async def take(self, key: RunKey) -> None:
        """Claim and start a queued external run, if it is due and this process may own it."""
        executor = self._executor
        if executor is None or not executor.reserve(key.tenant, external=True):
            return
        permitted_at = time.monotonic()
        try:
            run = await self.store.claim(key, executor.worker_id)
        finally:
            executor.unreserve(key.tenant, external=True)
        if run is not None:
            executor.start(run, permitted_at=permitted_at)

    async def _until_ended_here(self, key: RunKey, until: float) -> Run | None:
        """Wait for a run executed here; return None if the store must be queried."""
        if self._executor is None or self._closing.is_set():
            return None
        limit = asyncio.timeout(max(0.0, until - time.monotonic()))
        with suppress(TimeoutError):
            try:
                async with limit:
                    self._waiting.add(limit)
                    return await self._executor.ended(key)
            finally:
                self._waiting.discard(limit)
        return None


def new_run_id() -> str:
    """Generate a run ID: a UUIDv7, so IDs sort by creation time."""
    stamp_ms = time.time_ns() // 1_000_000
    value = (stamp_ms << 80) | (uuid.uuid4().int & ((1 << 80) - 1))
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    return str(uuid.UUID(int=(value & ~(0x3 << 62)) | (0x2 << 62)))


def _graph_of(run: Run, nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the ExecutionGraph from the journal; open calls stay open."""
    if not nodes:
        graph, _ = graph_of(run, ())
        return graph.snapshot()
    at_ms = int((run.finished_at or datetime.now(UTC)).timestamp() * 1000)
    try:
        return snapshot_of(run.key.run_id, nodes, at_ms=at_ms)
    except ValueError:  # not a valid journal; the run failed because of that
        log.exception("trace.unreadable", run_id=run.key.run_id)
        root = [node for node in nodes if node["parent_id"] is None]
        return snapshot_of(run.key.run_id, root, at_ms=at_ms)


async def whole_run(store: RunStore, run: Run) -> Run:
    """Return the run with the call references in its result replaced by the texts.

    If it has a cancel request, its calls are read as well.
    """
    if (request := run.cancel_request) is not None:
        calls = await store.started_calls(run.key)
        run = replace(run, cancel_request=replace(request, calls=calls))
    references = call_references_in(run)
    return resolved(run, await _values(store, run.key, references)) if references else run


async def whole_events(
    store: RunStore, key: RunKey, events: Sequence[EventRecord]
) -> Sequence[EventRecord]:
    """Return the events with call references replaced by the texts."""
    keys = [key_in_event(event.type, event.data) for event in events]
    call_keys = {each for each in keys if each is not None}
    if not call_keys:
        return events
    values = await _values(store, key, call_keys)
    return [
        event
        if name is None or name not in values
        else replace(event, data=whole_event_data(event.type, event.data, values[name]))
        for event, name in zip(events, keys, strict=True)
    ]


async def _values(store: RunStore, key: RunKey, call_keys: Set[str]) -> Mapping[str, Any]:
    records = await store.payloads(key, max_bytes=EVERYTHING, call_keys=sorted(call_keys))
    return {
        record.call_key: record.value
        for record in records
        if record.call_key is not None and record.outcome == CallOutcome.RESULT
    }
