"""What watches over runs from outside: metrics and spans.

An observer is told what has happened once it is stored. It gets values, keeps none of what a run
holds, and decides nothing: a failure of one is logged, and the run goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from caseworker.runs.run import Run, RunStatus
from caseworker.trace.spans import SpanOf, context_of_run

log = structlog.get_logger(__name__)


def log_context(run: Run) -> dict[str, str]:
    """Return the fields of every log line of a run; ``trace_id`` is that of its spans."""
    tenant, run_id = run.key.tenant, run.key.run_id
    context = context_of_run(tenant, run_id, run.request.traceparent)
    return {"tenant": tenant, "run_id": run_id, "trace_id": context.trace_id}


class RunObserver(Protocol):
    """Is told of runs, on the event loop, and must not keep it for long."""

    def accepted(self, run: Run) -> None:
        """A run was stored for the first time."""
        ...

    def begun(self, run: Run) -> None:
        """A run has begun to be executed here; ``run.attempts`` says for which time."""
        ...

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """A run has ended, as ``run`` says.

        ``graph`` is the snapshot of its ExecutionGraph; None if it has ended before it was stored.
        """
        ...


class RunObservers:
    """Several observers, told one after the other."""

    def __init__(
        self,
        observers: Sequence[RunObserver] = (),
        span_of: Callable[[Run], SpanOf | None] = lambda run: None,
    ) -> None:
        """Tell ``observers``; ``span_of`` returns what :meth:`span_of` does, by default None."""
        self._observers = tuple(observers)
        self.span_of = span_of
        """Returns the spans of a run that what it calls is told of; None if it is told of none."""

    def accepted(self, run: Run) -> None:
        """See :class:`RunObserver`; a run that others may execute is logged with its request."""
        if run.status is RunStatus.QUEUED:
            log.info("run.queued", tenant=run.key.tenant, run_id=run.key.run_id)
        self._tell("accepted", run)

    def begun(self, run: Run) -> None:
        """See :class:`RunObserver`."""
        if run.attempts > 1:
            log.warning("run.taken_over", attempt=run.attempts, worker_id=run.worker_id)
        self._tell("begun", run)

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """See :class:`RunObserver`; the one line that the log has of every run is written here."""
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
