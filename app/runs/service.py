"""What callers can ask of runs: accept one, stop one, look at one."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from app.engine.supervision import shielded
from app.observability.redaction import redact_text
from app.runs.errors import RunNotFoundError
from app.runs.executor import RunExecutor
from app.runs.following import Following, wait_for_event
from app.runs.ports import Accepted, CancelStatus, EventPage, Page, RunFilter, RunStore
from app.runs.replay import graph_of
from app.runs.run import CallRecord, CancelRequest, EventRecord, NewRun, Run, RunKey, RunStatus
from app.trace.execution_graph import ExecutionGraph

ACCEPT_GRACE_SECONDS = 30.0
POLL_SECONDS = (0.02, 0.5)
"""How often a run that is executed elsewhere is looked at while a caller waits: first, at most."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run did so far, call by call."""

    run: Run
    snapshot: Mapping[str, Any]


class RunService:
    """Accepts, stops and shows runs, on any replica.

    Whatever shows a run raises ``RunNotFoundError`` if there is none, or only a pending cancel.
    """

    def __init__(self, store: RunStore, executor: RunExecutor | None) -> None:
        """Use ``executor`` for runs that this process can take; None executes nothing here."""
        self._store = store
        self._executor = executor
        self._closing = asyncio.Event()
        self._waiting: set[asyncio.Timeout] = set()
        """Of callers that wait for runs of this process."""
        self._following = Following(store)

    async def accept(self, new: NewRun) -> Accepted:
        """Store a run durably and, with a free slot here, begin it at once.

        Raises what :meth:`RunStore.accept` does.
        """
        return await shielded(self._accept(new), grace_seconds=ACCEPT_GRACE_SECONDS)

    async def cancel(self, key: RunKey, *, by: str, reason: str | None = None) -> CancelStatus:
        """Store a cancel request; it is kept even if the run does not exist yet.

        Its ``reason`` is for people who read the trace, so it is kept without secrets and personal
        data.

        Raises:
            TooManyPendingCancelsError: too many requests wait for runs that do not exist.
        """
        redacted = None if reason is None else redact_text(reason)
        cancelled = await self._store.cancel(key, CancelRequest(requested_by=by, reason=redacted))
        run, request = cancelled.run, cancelled.cancel_request
        if run and not run.finished and request and self._executor is not None:
            self._executor.cancel(key, request)
        return cancelled

    async def get(self, key: RunKey) -> Run:
        """Return a run."""
        run = await self._store.get(key)
        if run is None:
            raise RunNotFoundError(key.run_id)
        return run

    async def accepted_before(
        self, key: RunKey, idempotency_key: str | None, request_hash: str
    ) -> Accepted | None:
        """Return the run that the very same request made before; None if there is none.

        For a request that could not be accepted any more: its answer stays what it was.
        """
        run = await self._store.earlier(key, idempotency_key)
        same = run is not None and run.request_hash == request_hash
        return Accepted(run, created=False) if run is not None and same else None

    def stop_waiting(self) -> None:
        """Answer callers that wait for a run with the run as it stands; end what is followed."""
        self._closing.set()
        for limit in tuple(self._waiting):
            if not limit.expired():
                limit.reschedule(0)
        self._following.stop()

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        """Return a page of runs, newest first."""
        return await self._store.find(tenant, wanted)

    async def wait(self, key: RunKey, *, seconds: float) -> Run:
        """Return a run once it has ended, or as it stands after ``seconds``."""
        pause, longest = POLL_SECONDS
        until = time.monotonic() + seconds
        while True:
            run = await self._until_ended_here(key, until) or await self.get(key)
            left = until - time.monotonic()
            if run.finished or left <= 0 or self._closing.is_set():
                return run
            await wait_for_event(self._closing, seconds=min(pause, left))
            pause = min(2 * pause, longest)

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage:
        """Return the events of a run behind number ``after``, at most ``limit``."""
        page = await self._store.events(key, after=after, limit=limit)
        if page is None:
            raise RunNotFoundError(key.run_id)
        return page

    def follow(self, key: RunKey, *, after: int = 0) -> AsyncGenerator[Sequence[EventRecord], None]:
        """Yield the events of a run until it has ended, see :meth:`Following.batches`."""
        return self._following.batches(key, after=after)

    async def trace(self, key: RunKey) -> Trace:
        """Return what a run did so far."""
        run = await self.get(key)
        stored = await self._store.snapshot(key) if run.finished else None
        if stored is not None:
            return Trace(run, stored)
        return Trace(run, _rebuilt(run, await self._store.calls(key)))

    async def _accept(self, new: NewRun) -> Accepted:
        executor = self._executor
        if executor is None or not executor.reserve():
            return await self._store.accept(new, worker_id=None)
        permitted_at = time.monotonic()
        try:
            accepted = await self._store.accept(new, worker_id=executor.worker_id)
        finally:
            executor.unreserve()
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


def _rebuilt(run: Run, calls: Sequence[CallRecord]) -> Mapping[str, Any]:
    """Return the graph as the journal holds it, open calls left open."""
    if not calls:
        graph, _ = graph_of(run, ())
        return graph.snapshot()
    nodes = [dict(record.node) for record in calls]
    return ExecutionGraph.restore(run.key.run_id, nodes).snapshot()
