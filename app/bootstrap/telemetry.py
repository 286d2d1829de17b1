"""What tells others how a process works: its metrics, and the spans of its runs."""

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import CollectorRegistry

from app.adapters.postgres.engines import Engines
from app.adapters.telemetry.metrics import RunMetrics
from app.adapters.telemetry.process_metrics import MetricsPage
from app.api.services import MetricsAccess
from app.runs.executor import RunExecutor
from app.runs.heartbeat import Loops
from app.runs.observing import RunObserver, RunObservers
from app.settings.schema import TelemetrySettings


class Telemetry:
    """The telemetry of one process; what is not configured is not there and costs nothing."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self._registry = CollectorRegistry()
        self.requests: RunMetrics | None = None
        """Counts the requests of the API; None if nobody reads that."""
        observers: list[RunObserver] = []
        if settings.metrics != "off":
            self.requests = RunMetrics(self._registry, settings.metrics_labels)
            observers.append(self.requests)
        self.observers = RunObservers(observers)
        self.metrics: MetricsAccess | None = None
        """Who may read what was counted; None if nobody may."""
        self._page: MetricsPage | None = None

    def watch(
        self, engines: Engines, executor: RunExecutor | None, silent_seconds: Callable[[], float]
    ) -> None:
        """Make the metrics of a process that executes runs with ``executor``.

        ``silent_seconds`` returns how long ago its last heartbeat got through.
        """
        settings = self._settings
        if settings.metrics == "off":
            return
        self._page = MetricsPage(
            self._registry,
            engines,
            executor,
            version=version("caseworker"),
            silent_seconds=silent_seconds,
        )
        key = settings.metrics_key
        self.metrics = MetricsAccess(
            page=self._page,
            readable_from=settings.metrics,
            key=None if key is None else key.get_secret_value(),
        )

    def keep(self, loops: Loops) -> None:
        """Begin to watch the event loop."""
        if self._page is not None:
            loops.keep("event loop", self._page.watch_loop)
