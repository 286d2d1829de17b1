"""Metrics and spans of a process, and their export."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from fastapi.telemetry import TelemetryConfig
from prometheus_client import CollectorRegistry, disable_created_metrics

from caseworker.core.trace.spans import resource_of
from caseworker.features.telemetry.metrics import RunMetrics
from caseworker.features.telemetry.process_metrics import MetricsPage
from caseworker.main.configuration import StartupError
from caseworker.main.loop_watch import LoopWatch
from caseworker.platform.http.health import MetricsAccess
from caseworker.runs.observers import RunObserver, RunObservers
from caseworker.runs.recover.heartbeat import Loops
from caseworker.settings.schema import TelemetrySettings

_STANDARD = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_{}_ENDPOINT"
"""Standard OpenTelemetry variables for the collector: one for all signals, one per signal."""


class Telemetry:
    """The metrics and spans of one process; disabled parts are not created."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        # The `_created` timestamps would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._loop_watch = LoopWatch(self._registry)
        self.requests: RunMetrics | None = None
        """Counts API requests; None if metrics are off."""
        observers: list[RunObserver] = []
        if settings.metrics != "off":
            self.requests = RunMetrics(self._registry, settings.metrics_labels)
            observers.append(self.requests)
        self._export = _export_to(settings.otlp_endpoint)
        if self._export is not None:
            observers.append(self._export)
        self.observers = RunObservers(
            observers, propagates=settings.propagate, exports_spans=self._export is not None
        )
        self.metrics: MetricsAccess | None = None
        """Access rules and content of /metrics; None if metrics are off."""
        self._page: MetricsPage | None = None
        self._sending: Any = None

    def watch(self, page: Callable[[CollectorRegistry], MetricsPage]) -> None:
        """Register the metrics of the process.

        ``page`` is called once, unless metrics are off. It creates the metrics in the given
        registry and returns the page served at /metrics.
        """
        settings = self._settings
        if settings.metrics == "off":
            return
        self._page = page(self._registry)
        self._sending = _metrics_to(settings, self._page, self._registry)
        key = settings.metrics_key
        self.metrics = MetricsAccess(
            text=self._page.text,
            readable_from=settings.metrics,
            key=None if key is None else key.get_secret_value(),
        )

    @property
    def of_requests(self) -> TelemetryConfig:
        """Tracing configuration for the web framework.

        Tracing is disabled without a span collector.
        """
        nothing: TelemetryConfig = {"tracing": False, "metrics": False}
        return nothing if self._export is None else self._export.of_requests

    async def aclose(self) -> None:
        """Export pending spans and metrics, and stop exporting."""
        if self._export is not None:
            await self._export.aclose()
        if self._sending is not None:
            await self._sending.aclose()

    def keep(self, loops: Loops) -> None:
        """Start the loops that watch the event loop and export metrics."""
        loops.keep("loop watch", self._loop_watch.run)
        if self._page is not None:
            loops.keep("event loop", self._page.watch_loop)
        if self._sending is not None:
            loops.keep("metrics", self._sending.run)


def _export_to(endpoint: str | None) -> Any:
    """Return the span exporter, or None without a collector; its libraries load only if needed.

    Raises:
        StartupError: the extra ``otel`` is not installed.
    """
    if not _has_collector(endpoint, "TRACES"):
        return None
    with _otel_required():
        from caseworker.features.telemetry.span_export import SpanExport
    return SpanExport(resource_of(version("caseworker")), endpoint)


def _metrics_to(settings: TelemetrySettings, page: MetricsPage, registry: CollectorRegistry) -> Any:
    """Return the metric exporter, or None without a collector; see :func:`_export_to`."""
    every_seconds, endpoint = settings.otlp_metrics_seconds, settings.otlp_endpoint
    if every_seconds is None or not _has_collector(endpoint, "METRICS"):
        return None
    with _otel_required():
        from caseworker.features.telemetry.metric_export import MetricExport
    about = resource_of(version("caseworker"))
    return MetricExport(
        page.refresh, registry.collect, about, endpoint, every_seconds=every_seconds
    )


@contextmanager
def _otel_required() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry."):
            raise
        raise StartupError(
            "A collector is configured (telemetry.otlp_endpoint or OTEL_EXPORTER_OTLP_ENDPOINT), "
            "but OpenTelemetry is not installed: pip install 'caseworker[otel]'."
        ) from error


def _has_collector(endpoint: str | None, of: str) -> bool:
    return endpoint is not None or any(os.environ.get(name.format(of)) for name in _STANDARD)
