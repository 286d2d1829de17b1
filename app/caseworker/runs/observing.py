"""Observers of runs: metrics and spans.

An observer is notified after a change is stored. It gets values, must not keep the data of a run,
and decides nothing. If it fails, the error is logged and the run continues.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from caseworker.core.trace.spans import SpanOf, context_of_run
from caseworker.runs.run import Run, RunStatus

log = structlog.get_logger(__name__)


def log_context(run: Run) -> dict[str, str]:
    """Return the log fields of a run; ``trace_id`` is the trace ID of its spans."""
    tenant, run_id = run.key.tenant, run.key.run_id
    context = context_of_run(tenant, run_id, run.request.traceparent)
    return {"tenant": tenant, "run_id": run_id, "trace_id": context.trace_id}


class RunObserver(Protocol):
    """Receives notifications about runs on the event loop; must return quickly."""

    def accepted(self, run: Run) -> None:
        """Handle a new run, after it was stored."""
        ...

    def begun(self, run: Run) -> None:
        """Handle the start of an execution here; ``run.attempts`` is its number."""
        ...

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """Handle the end of a run, with its final state in ``run``.

        ``graph`` is the snapshot of its ExecutionGraph; None if the run ended before it was stored.
        """
        ...


class RunObservers:
    """Notifies several observers in order."""

    def __init__(
        self,
        observers: Sequence[RunObserver] = (),
        span_of: Callable[[Run], SpanOf | None] = lambda run: None,
    ) -> None:
        """Notify ``observers``; ``span_of`` returns the spans of a run, by default None."""
        self._observers = tuple(observers)
        self.span_of = span_of
        """Returns the spans to propagate to services that a run calls; None propagates none."""

    def accepted(self, run: Run) -> None:
        """Notify observers; log a queued run with the context of its request."""
        if run.status is RunStatus.QUEUED:
            log.info("run.queued", tenant=run.key.tenant, run_id=run.key.run_id)
        self._tell("accepted", run)

    def begun(self, run: Run) -> None:
        """Notify observers; log a recovered run."""
        if run.attempts > 1:
            log.warning("run.taken_over", attempt=run.attempts, worker_id=run.worker_id)
        self._tell("begun", run)

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """Notify observers; write the one log line that every run gets."""
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
