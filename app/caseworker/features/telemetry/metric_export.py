"""Exports the metrics of /metrics to an OpenTelemetry collector, by OTLP over HTTP.

This module is imported only if a collector is configured. It counts nothing itself: it reads the
same registry as /metrics, so both always agree. All values are cumulative since the start of the
process. The standard OpenTelemetry variables for temporality have no effect.
"""

import asyncio
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

LAST_SECONDS: Final = 2.0
"""Timeout, in seconds, for exporting the last values at shutdown."""

_UNITS: Final = {"seconds": "s", "bytes": "By", "usd": "{USD}"}
"""Units by the suffix of a metric's name."""

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_UNKNOWN: Final = cast("float", None)
"""Minimum and maximum of a histogram, which its buckets do not contain."""


class Times(NamedTuple):
    """The period that the exported values cover, in nanoseconds since 1970."""

    since_ns: int
    now_ns: int


class MetricExport:
    """Exports the metrics of a process at regular intervals."""

    def __init__(
        self,
        refresh: Callable[[], Awaitable[None]],
        collect: Callable[[], Iterable[Family]],
        resource: Mapping[str, str],
        endpoint: str | None = None,
        *,
        every_seconds: float,
    ) -> None:
        """Export the result of ``collect`` every ``every_seconds``, calling ``refresh`` first.

        For ``endpoint``, see ``SpanExport``.
        """
        self._refresh = refresh
        self._collect = collect
        self._every_seconds = every_seconds
        # Two processes must never send the same series; a standard variable may override this ID.
        instance = Resource({"service.instance.id": uuid.uuid4().hex})
        self._resource = instance.merge(Resource.create(dict(resource)))
        self._scope = InstrumentationScope("caseworker", resource["service.version"])
        self._url = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/metrics"
        self._exporter = OTLPMetricExporter(self._url)
        self._since_ns = time.time_ns()

    async def run(self) -> None:
        """Export at intervals until cancelled; after a failure, the next export covers the gap."""
        while True:
            await asyncio.sleep(self._every_seconds)
            await self._refresh()
            await asyncio.to_thread(self._send)

    async def aclose(self) -> None:
        """Export the last values in one attempt, without retries; ignore a failure."""
        self._exporter.shutdown()  # cancels the retry delays
        self._exporter = OTLPMetricExporter(self._url, timeout=LAST_SECONDS)
        with suppress(Exception):
            await asyncio.to_thread(self._send)

    def _send(self) -> None:
        times = Times(self._since_ns, time.time_ns())
        metrics = [
            metric for family in self._collect() for metric in otlp_metrics_of(family, times)
        ]
        scopes = [ScopeMetrics(self._scope, metrics, "")]
        self._exporter.export(MetricsData([ResourceMetrics(self._resource, scopes, "")]))


def otlp_metrics_of(family: Family, times: Times) -> Iterator[Metric]:
    """Convert a Prometheus metric to OpenTelemetry, with the same name; yield nothing if empty."""
    name, data = family.name, _data_of(family, times)
    if family.type == "counter":
        name = f"{name}_total"
    if data.data_points:
        unit = _UNITS.get(family.name.rpartition("_")[2], "")
        yield Metric(name, family.documentation, unit, data)


def _data_of(family: Family, times: Times) -> Sum | Gauge | Histogram:
    if family.type == "histogram":
        rows = defaultdict[tuple[tuple[str, str], ...], list[Sample]](list)
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            rows[tuple(labels.items())].append(sample)
        histograms = [_histogram(dict(labels), row, times) for labels, row in rows.items()]
        return Histogram(histograms, _CUMULATIVE)
    points = [
        NumberDataPoint(dict(sample.labels), times.since_ns, times.now_ns, sample.value)
        for sample in family.samples
        if not math.isnan(sample.value)  # the value is currently unknown
    ]
    return Sum(points, _CUMULATIVE, True) if family.type == "counter" else Gauge(points)


def _histogram(
    labels: Mapping[str, str], row: Iterable[Sample], times: Times
) -> HistogramDataPoint:
    """Convert a histogram: Prometheus buckets are cumulative, OpenTelemetry's are not."""
    bounds, counts, total, before = list[float](), list[int](), 0.0, 0
    for sample in row:
        if sample.name.endswith("_sum"):
            total = sample.value
        elif "le" in sample.labels:
            bounds.append(float(sample.labels["le"]))
            counts.append(int(sample.value) - before)
            before = int(sample.value)
    return HistogramDataPoint(
        dict(labels),
        times.since_ns,
        times.now_ns,
        count=before,
        sum=total,
        bucket_counts=counts,
        explicit_bounds=bounds[:-1],  # the last one is infinity
        min=_UNKNOWN,
        max=_UNKNOWN,
    )
