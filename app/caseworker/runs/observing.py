"""Observers of runs, such as metrics and traces.

An observer is notified after a change was stored. It must not keep a run's data and cannot
influence the run. If it fails, the error is logged and the run continues.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from caseworker.core.trace.spans import SpanOf, context_of_run
from caseworker.runs.run import Run, RunStatus

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

    def begun(self, run: Run) -> None:
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
        span_of: Callable[[Run], SpanOf | None] = lambda run: None,
    ) -> None:
        """Notify ``observers``; ``span_of`` becomes the attribute of the same name."""
        self._observers = tuple(observers)
        self.span_of = span_of
        """Function that returns a run's span contexts, to propagate to the services that it calls.
        It returns None if none are propagated."""

    def accepted(self, run: Run) -> None:
        """Log the run if it is queued, and notify the observers."""
        if run.status is RunStatus.QUEUED:
            log.info("run.queued", tenant=run.key.tenant, run_id=run.key.run_id)
        self._tell("accepted", run)

    def begun(self, run: Run) -> None:
        """Log the run if this is not its first execution, and notify the observers."""
        if run.attempts > 1:
            log.warning("run.taken_over", attempt=run.attempts, worker_id=run.worker_id)
        self._tell("begun", run)

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
