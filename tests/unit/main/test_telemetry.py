"""Background telemetry tasks of a process, and their shutdown."""

import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry, Gauge

from caseworker.features.telemetry import metric_export
from caseworker.features.telemetry.metric_export import MetricExport
from caseworker.features.telemetry.process_metrics import MetricsPage
from caseworker.main.configuration import StartupError
from caseworker.main.telemetry import Telemetry
from caseworker.platform.postgres.engines import Engines
from caseworker.runs.recover.heartbeat import Loops
from caseworker.settings.schema import TelemetrySettings

NOWHERE = "http://127.0.0.1:9"
RESOURCE = {"service.name": "caseworker", "service.version": "1"}


class NotingLoops:
    """Records the names of background tasks without starting them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def keep(self, name: str, _: Callable[[], Any]) -> None:
        self.names.append(name)


@pytest.mark.parametrize(
    ("settings", "variable", "sends"),
    [
        ({}, None, False),
        ({}, "OTEL_EXPORTER_OTLP_ENDPOINT", True),
        ({}, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", True),
        ({}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", False),
        ({"otlp_endpoint": NOWHERE}, None, True),
        ({"otlp_endpoint": NOWHERE, "otlp_metrics_seconds": None}, None, False),
        ({"otlp_endpoint": NOWHERE, "metrics": "off"}, None, False),
    ],
)
async def test_metrics_are_sent_only_where_a_collector_of_them_is_configured(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], variable: str | None, sends: bool
) -> None:
    """The metric export task runs only if a metrics collector is configured."""
    for of in ("", "TRACES_", "METRICS_"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{of}ENDPOINT", raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, NOWHERE)
    loops, telemetry = NotingLoops(), Telemetry(TelemetrySettings.model_validate(settings))
    telemetry.watch(
        partial(
            MetricsPage,
            engines=cast("Engines", None),
            executor=None,
            silent_seconds=lambda: 0.0,
            nearly_full=AsyncMock(),
            unlimited=[],
        )
    )
    telemetry.keep(cast("Loops", loops))

    assert ("metrics" in loops.names) == sends


def test_a_collector_needs_the_extra_otel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry, a configured collector stops the start with the command to run."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "caseworker.features.telemetry.span_export", raising=False)

    with pytest.raises(StartupError, match=r"pip install 'caseworker\[otel\]'"):
        Telemetry(TelemetrySettings(otlp_endpoint=NOWHERE))


@pytest.mark.parametrize("connects", [False, True])
async def test_a_collector_that_is_away_or_silent_does_not_hold_the_end_of_a_process(
    monkeypatch: pytest.MonkeyPatch, *, connects: bool
) -> None:
    """An unreachable or silent collector does not delay shutdown, even with a long timeout."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1000000")
    monkeypatch.setattr(metric_export, "LAST_SECONDS", 0.1)
    registry = CollectorRegistry()
    Gauge("caseworker_active_runs", "Runs.", registry=registry).set(1)

    async def refresh() -> None:
        return

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}" if connects else NOWHERE
        export = MetricExport(refresh, registry.collect, RESOURCE, url, every_seconds=60)
        await export.aclose()
