"""Observers of runs, such as metrics and traces, and the listeners that wait for a run to change.

An observer is notified after a change was stored. It must not keep a run's data and cannot
influence the run. If it fails, the error is logged and the run continues.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Protocol

import structlog

from caseworker.core.trace.spans import SpanOf, context_of_run, spans_of_nodes
from caseworker.runs.ports import Notification
from caseworker.runs.references import known_whole
from caseworker.runs.run import EventRecord, Run, RunKey, RunStatus

log = structlog.get_logger(__name__)


def log_context(run: Run) -> dict[str, str]:
    """Return the fields that identify a run in logs; ``trace_id`` is the ID of its trace."""
    tenant, run_id = run.key.tenant, run.key.run_id
    context = context_of_run(tenant, run_id, run.request.traceparent)
    return {"tenant": tenant, "run_id": run_id, "trace_id": context.trace_id}


class RunObserver(Protocol):
    """Receives notifications about runs on the event loop; its methods must return quickly."""

    def accepted(self, run: Run) -> None:
        """React to a run that was accepted and stored."""
        ...

    def started(self, run: Run) -> None:
        """React to the start of an execution by this process, number ``run.attempts`` (from 1)."""
        ...

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """React to the end of a run; ``run`` is its final state.

        ``graph`` is the snapshot of its ExecutionGraph; None if the run ended without one.
        """
        ...


class RunObservers:
    """Notifies several observers in order, and logs the life cycle of runs."""

    def __init__(
        self,
        observers: Sequence[RunObserver] = (),
        *,
        propagates: bool | None = None,
        exports_spans: bool = False,
    ) -> None:
        """Notify ``observers``.

        ``propagates`` is whether the services that a run calls receive its span contexts: those of
        a run within a caller's trace, and with ``exports_spans`` those of all runs.
        """
        self._observers = tuple(observers)
        self._propagates = propagates
        self._exports_spans = exports_spans

    def span_of(self, run: Run) -> SpanOf | None:
        """Return the factory for the span contexts of a run's calls; None to propagate none."""
        traceparent = run.request.traceparent
        if not self._propagates or (traceparent is None and not self._exports_spans):
            return None
        return spans_of_nodes(run.key.tenant, run.key.run_id, traceparent)

    def accepted(self, run: Run) -> None:
        """Log the run if it is queued, and notify the observers."""
        if run.status is RunStatus.QUEUED:
            log.info("run.queued", tenant=run.key.tenant, run_id=run.key.run_id)
        self._tell("accepted", run)

    def started(self, run: Run) -> None:
        """Log the run if this is not its first execution, and notify the observers."""
        if run.attempts > 1:
            log.warning("run.taken_over", attempt=run.attempts, worker_id=run.worker_id)
        self._tell("started", run)

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """Log the end of the run and notify the observers."""
        usage = run.usage or {}
        log.info(
            "run.finished",
            tenant=run.key.tenant,
            run_id=run.key.run_id,
            kind=run.kind.value,
            status=run.status.value,
            seconds=round(run.active_seconds, 3),
            cost_usd=usage.get("cost_usd"),
            tokens=usage.get("tokens"),
        )
        self._tell("ended", run, graph)

    def _tell(self, what: str, *about: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, what)(*about)
            except Exception:
                log.exception("telemetry.failed")


class RunNotifier:
    """Wakes the listeners of a run in this process. A run without listeners uses no resources.

    Code that stores a change, or detects a change by another process, calls :meth:`notify`.
    """

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[Notification]] = {}
        self._listened = asyncio.Event()
        self.changes = 0
        """Counter that increases whenever a run gets its first listener or loses its last one."""

    @property
    def listened_to(self) -> Set[RunKey]:
        """Keys of the runs that have listeners."""
        return self._listeners.keys()

    async def listened(self) -> None:
        """Wait until any run has a listener."""
        await self._listened.wait()

    def notify(
        self, key: RunKey, stored: Sequence[EventRecord] = (), *, ended: bool = False
    ) -> None:
        """Wake all listeners of a run.

        ``stored`` are the events that this process has just stored; without them, the listeners
        read the store. ``ended`` is whether the run has ended with them.
        """
        if listeners := self._listeners.get(key):
            events = known_whole(stored)
            for notification in listeners:
                notification.add(events, ended=ended)

    @contextmanager
    def listening(self, key: RunKey) -> Iterator[Notification]:
        """Yield an event that :meth:`notify` sets, until the block ends."""
        notification = Notification()
        listeners = self._listeners.setdefault(key, set())
        self.changes += not listeners
        listeners.add(notification)
        self._listened.set()
        try:
            yield notification
        finally:
            listeners.discard(notification)
            if not listeners:
                self._listeners.pop(key, None)
                self.changes += 1
            if not self._listeners:
                self._listened.clear()
