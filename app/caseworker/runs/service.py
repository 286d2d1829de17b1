"""What callers can ask of runs: accept one, stop one, look at one."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from caseworker.engine.supervision import set_within, shielded
from caseworker.observability.redaction import redact_text
from caseworker.observability.trace_context import current_traceparent
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.executor import RunExecutor
from caseworker.runs.notifying import Notification
from caseworker.runs.observing import RunObservers
from caseworker.runs.outcome import usage_so_far
from caseworker.runs.ports import (
    Accepted,
    CancelledRuns,
    CancelStatus,
    EventPage,
    Page,
    RunFilter,
    RunStore,
)
from caseworker.runs.put_back import whole_events, whole_run
from caseworker.runs.replay import graph_of
from caseworker.runs.run import CancelRequest, EventRecord, NewRun, Run, RunKey, RunStatus
from caseworker.trace.execution_graph import ExecutionGraph

log = structlog.get_logger(__name__)

ACCEPT_GRACE_SECONDS = 30.0
POLL_SECONDS = (0.02, 0.5)
"""How often a run that is executed elsewhere is looked at while a caller waits: first, at most."""

QUIET_SECONDS = 5.0
"""How often a follower of a run is told that there is nothing new."""

LOOK_SECONDS = 60.0
"""How often the events of a run are looked for although nothing was heard."""

AT_ONCE = 500

READ_GRACE_SECONDS = 5.0
"""How long a read may still take when its follower is gone: a statement is never cut off."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run did so far, call by call."""

    run: Run
    snapshot: Mapping[str, Any]


class RunService:
    """Accepts, stops and shows runs, on any replica.

    Whatever shows a run raises ``RunNotFoundError`` if there is none, or only a pending cancel.
    """

    def __init__(
        self,
        store: RunStore,
        executor: RunExecutor | None,
        observers: RunObservers | None = None,
    ) -> None:
        """Use ``executor`` for runs that this process can take; None executes nothing here."""
        self._store = store
        self._executor = executor
        self._observers = observers or RunObservers()
        self._closing = asyncio.Event()
        self._waiting: set[asyncio.Timeout] = set()
        """Of callers that wait for runs of this process."""
        self._followed: set[Notification] = set()

    async def accept(self, new: NewRun) -> Accepted:
        """Store a run durably and, with a free slot here, begin it at once.

        Raises what :meth:`RunStore.accept` does.
        """
        if (above := current_traceparent()) is not None:
            new = replace(new, request=replace(new.request, traceparent=above))
        accepted = await shielded(self._accept(new), grace_seconds=ACCEPT_GRACE_SECONDS)
        if accepted.created:
            self._observers.accepted(accepted.run)
            if accepted.run.finished:
                self._observers.ended(accepted.run, None)
        whole = await whole_run(self._store, accepted.run)
        return accepted if whole is accepted.run else replace(accepted, run=whole)

    async def cancel(self, key: RunKey, *, by: str, reason: str | None = None) -> CancelStatus:
        """Store a cancel request; it is kept even if the run does not exist yet.

        Its ``reason`` is for people who read the trace, so it is kept without secrets and personal
        data.

        Raises:
            TooManyPendingCancelsError: too many requests wait for runs that do not exist.
        """
        redacted = None if reason is None else redact_text(reason)
        cancelled = await self._store.cancel(key, CancelRequest(requested_by=by, reason=redacted))
        self._deliver(key, cancelled)
        return cancelled

    async def cancel_matching(
        self, tenant: str, wanted: RunFilter, *, by: str, reason: str | None = None
    ) -> CancelledRuns:
        """Cancel the oldest runs that fit, each by itself and only if it still fits by then.

        ``wanted.limit`` bounds how many; those that were asked to stop before are left out.
        """
        redacted = None if reason is None else redact_text(reason)
        request = CancelRequest(requested_by=by, reason=redacted)
        found = await self._store.stoppable(tenant, replace(wanted, limit=wanted.limit + 1))
        stopped: list[CancelStatus] = []
        for key in found[: wanted.limit]:
            cancelled = await self._store.cancel_matching(key, request, wanted)
            if cancelled is not None:
                self._deliver(key, cancelled)
                stopped.append(cancelled)
        ended = sum(each.settled_at is not None for each in stopped)
        return CancelledRuns(ended, len(stopped) - ended, more=len(found) > wanted.limit)

    async def get(self, key: RunKey) -> Run:
        """Return a run."""
        run = await self._store.get(key)
        if run is None:
            raise RunNotFoundError(key.run_id)
        return await whole_run(self._store, run)

    async def erase(self, key: RunKey) -> None:
        """Erase a run that has ended, with everything that it stored; its id is free again.

        Raises:
            RunNotFoundError: there is no such run.
            RunNotEndedError: it has not ended.
        """
        await shielded(self._store.erase(key), grace_seconds=ACCEPT_GRACE_SECONDS)

    async def with_usage(self, run: Run) -> Run:
        """Return a run that is worked on with what it has spent so far.

        What is in flight counts as estimated. On another replica than the one that executes the
        run it is what the journal holds.
        """
        if run.finished or not run.fence:
            return run
        usage = None if self._executor is None else self._executor.usage_of(run.key)
        if usage is None:
            usage = usage_so_far(await self._store.spent(run.key))
        return replace(run, usage=usage)

    async def accepted_before(
        self, key: RunKey, idempotency_key: str | None, request_hash: str
    ) -> Accepted | None:
        """Return the run that the very same request made before; None if there is none.

        For a request that could not be accepted any more: its answer stays what it was.
        """
        run = await self._store.earlier(key, idempotency_key)
        same = run is not None and run.request_hash == request_hash
        if run is None or not same:
            return None
        return Accepted(await whole_run(self._store, run), created=False)

    @property
    def is_closing(self) -> bool:
        """Whether the process ends: nobody is kept waiting for a run any more."""
        return self._closing.is_set()

    def stop_waiting(self) -> None:
        """Answer callers that wait for a run with the run as it stands; end what is followed."""
        self._closing.set()
        for limit in tuple(self._waiting):
            if not limit.expired():
                limit.reschedule(0)
        for notification in self._followed:
            notification.set()

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs, newest first."""
        return await self._store.find(tenant, wanted)

    async def wait(self, key: RunKey, *, seconds: float) -> Run:
        """Return a run once it has ended, or as it stands after ``seconds``."""
        pause, longest = POLL_SECONDS
        until = time.monotonic() + seconds
        while True:
            run = await self._until_ended_here(key, until)
            run = await (self.get(key) if run is None else whole_run(self._store, run))
            left = until - time.monotonic()
            if run.finished or left <= 0 or self._closing.is_set():
                return run
            await set_within(self._closing, min(pause, left))
            pause = min(2 * pause, longest)

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage:
        """Return the events of a run behind number ``after``, at most ``limit``."""
        page = await self._store.events(key, after=after, limit=limit)
        if page is None:
            raise RunNotFoundError(key.run_id)
        return replace(page, events=await whole_events(self._store, key, page.events))

    async def follow(
        self, key: RunKey, *, after: int = 0
    ) -> AsyncGenerator[Sequence[EventRecord], None]:
        """Yield the events behind number ``after`` until the run has ended, in order.

        The store is read at once when it notifies of something new, and now and then besides. A
        batch is empty while there is nothing new, so that a caller can show that it lives. The end
        comes early if the process closes; a caller goes on with another replica.
        """
        look_at, clock = 0.0, asyncio.get_running_loop().time
        with self._store.listening(key) as notification:
            self._followed.add(notification)
            try:
                while not self._closing.is_set():
                    if not notification.is_set() and clock() < look_at:
                        yield ()
                        await set_within(notification, QUIET_SECONDS)
                        continue
                    notification.clear()
                    look_at = clock() + LOOK_SECONDS
                    read = self.events(key, after=after, limit=AT_ONCE)
                    page = await shielded(read, grace_seconds=READ_GRACE_SECONDS)
                    yield page.events
                    after = page.events[-1].seq if page.events else after
                    if len(page.events) == AT_ONCE:
                        look_at = 0.0
                    elif page.finished:
                        return
                    elif not self._closing.is_set():
                        await set_within(notification, QUIET_SECONDS)
            finally:
                self._followed.discard(notification)

    async def trace(self, key: RunKey) -> Trace:
        """Return what a run did so far."""
        run = await self.get(key)
        nodes = await self._store.nodes(key)
        # Ten thousand nodes take a tenth of a second: others are served meanwhile.
        return Trace(run, await asyncio.to_thread(_graph_of, run, nodes))

    def _deliver(self, key: RunKey, cancelled: CancelStatus) -> None:
        """Stop the run at once if it is executed here."""
        run, request = cancelled.run, cancelled.cancel_request
        if run is None or cancelled.already_finished:
            return
        if run.finished:
            self._observers.ended(run, cancelled.snapshot)
        elif request and self._executor is not None:
            self._executor.cancel(key, request)

    async def _accept(self, new: NewRun) -> Accepted:
        executor = self._executor
        delayed = new.request.start_at is not None and new.request.start_at > datetime.now(UTC)
        if executor is None or delayed or not executor.reserve(new.key.tenant):
            return await self._store.accept(new, worker_id=None)
        permitted_at = time.monotonic()
        try:
            accepted = await self._store.accept(new, worker_id=executor.worker_id)
        finally:
            executor.unreserve(new.key.tenant)
        if accepted.created and accepted.run.status is RunStatus.RUNNING:
            executor.start(accepted.run, permitted_at=permitted_at, prepared=new.prepared)
        return accepted

    async def _until_ended_here(self, key: RunKey, until: float) -> Run | None:
        """Wait for a run that this process executes; None if the store must be asked."""
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
    """Return an id for a run that its caller did not name: a UUIDv7, so that ids sort by age."""
    stamp_ms = time.time_ns() // 1_000_000
    value = (stamp_ms << 80) | (uuid.uuid4().int & ((1 << 80) - 1))
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    return str(uuid.UUID(int=(value & ~(0x3 << 62)) | (0x2 << 62)))


def _graph_of(run: Run, nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the ExecutionGraph as the journal holds it: as it ended, or with open calls open."""
    if not nodes:
        graph, _ = graph_of(run, ())
        return graph.snapshot()
    ended_at = run.finished_at
    clock = None if ended_at is None else partial(int, ended_at.timestamp() * 1000)
    restored = partial(ExecutionGraph.restore, run.key.run_id, now_ms=clock)
    try:
        return restored(map(dict, nodes)).snapshot()
    except ValueError:  # it is not the journal of one run, and the run has ended with that
        log.exception("trace.unreadable", run_id=run.key.run_id)
        return restored(dict(node) for node in nodes if node["parent_id"] is None).snapshot()
