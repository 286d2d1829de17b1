"""Checks ``/metrics`` of a service after some load with the parser of the Prometheus client.

The service runs in the test process; the tests compare its documentation with its metrics.
"""

import asyncio
import dataclasses
import itertools
import json
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import httpx
import pytest
import pytest_asyncio
import yaml
from opentelemetry.sdk.metrics.export import AggregationTemporality
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.platform.http.application import build_health_api
from caseworker.settings.schema import LoggingSettings, Settings, TelemetrySettings
from tests.support.api import all_ready
from tests.support.collector import Collector
from tests.support.database import TestServer
from tests.support.stores import eventually

KEY = "metrics-key-of-at-least-32-characters"
PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"
OPERATIONS = PAGE.parent / "operations"

TRACE_ID, CALLER_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE_ID}-{CALLER_SPAN}-01"}

FAILING: dict[str, Any] = {
    "kind": "graph",
    "graph": {
        "steps": [
            {
                "id": "day",
                "type": "tool",
                "data": {
                    "tool": "calendar",
                    "args": {"operation": "weekday", "date": "2026-11-26"},
                },
            },
            {
                "id": "broken",
                "type": "llm",
                "data": {"prompt": "${default.nothing}"},
                "policy": {"retry_count": 1, "retry_delay_ms": 1},
            },
        ],
        "edges": [{"source": "day", "target": "broken", "data": {"channel": "flow"}}],
    },
}
GATEWAY = "/gateway/openai/v1/chat/completions"


@dataclass
class Watched:
    """A service and access to its metrics."""

    process: Process
    http: httpx.AsyncClient

    async def families(self) -> Mapping[str, Metric]:
        """Return the metrics by name."""
        answer = await self.http.get("/metrics")
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {family.name: family for family in text_string_to_metric_families(answer.text)}

    async def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples that have these labels."""
        found = [
            sample.value
            for family in (await self.families()).values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert found, name
        return sum(found)

    async def run(
        self, headers: Mapping[str, str] = MappingProxyType({}), **body: Any
    ) -> dict[str, Any]:
        """Execute a run to its end."""
        sent = {"Prefer": "wait=120", **headers}
        answer = await self.http.post("/runs", json=body, headers=sent)
        run: dict[str, Any] = answer.json()
        assert run.get("finished_at"), answer.text
        return run


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Run a collector of spans."""
    with Collector() as listening:
        yield listening


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(postgres: TestServer, collector: Collector) -> AsyncIterator[Watched]:
    """Run a service with completed, failed, halted and cancelled runs."""
    settings = Settings(
        telemetry=TelemetrySettings.model_validate(
            {
                "metrics_key": KEY,
                "metrics_labels": ("tenant", "agent"),
                "otlp_endpoint": collector.url,
                "otlp_metrics_seconds": 0.2,
            }
        ),
        logging=LoggingSettings(access=True),
    )
    with postgres.database() as url:
        process = Process(settings, url, executes=True)
        transport = httpx.ASGITransport(build_app(process), raise_app_exceptions=False)
        async with (
            process.opened(),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            service = Watched(process, http)
            await service.run(input="What is 6 * 7?")
            await service.run(input="What is 6 * 7?", budget={"max_tool_calls": 0})
            await service.run(**FAILING, run_id="traced", headers=CALLER)
            tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
            later = {"run_id": "later", "input": "1+1?", "start_at": tomorrow}
            assert (await http.post("/runs", json=later)).status_code == 202
            assert (await http.delete("/runs/later")).json()["status"] == "cancelled"
            yield service


@pytest.mark.asyncio(loop_scope="module")
async def test_ended_runs_are_counted_by_kind_and_status(watched: Watched) -> None:
    """Each counts once, also without any worker, and with the reason of its stop."""
    ended = "caseworker_run_duration_seconds_count"

    assert await watched.value(ended, kind="case", status="completed", tenant="default") == 1
    assert await watched.value(ended, kind="case", status="halted") == 1
    assert await watched.value(ended, kind="graph", status="failed") == 1
    assert await watched.value(ended, status="cancelled") == 1
    stops = "caseworker_run_stops_total"
    assert await watched.value(stops, stop="budget", dimension="tool_calls") == 1
    assert await watched.value(stops, stop="cancelled") == 1
    assert await watched.value(stops) == 3
    assert await watched.value("caseworker_runs_accepted_total") == 4
    assert await watched.value("caseworker_run_wait_seconds_count") == 4


@pytest.mark.asyncio(loop_scope="module")
async def test_what_runs_did_is_what_their_usage_says(watched: Watched) -> None:
    """The metrics count steps, calls and retries of finished runs."""
    listed = (await watched.http.get("/runs")).json()["runs"]
    usage = [(await watched.http.get(f"/runs/{run['run_id']}")).json()["usage"] for run in listed]
    small = sum(each.get("llm_calls_small", 0) + each.get("llm_calls_big", 0) for each in usage)

    assert small > 0
    assert await watched.value("caseworker_model_call_duration_seconds_count") == small
    assert await watched.value("caseworker_steps_total") == sum(each["steps"] for each in usage)
    calculated = {"tool": "calculator", "status": "success"}
    assert await watched.value("caseworker_tool_call_duration_seconds_count", **calculated) >= 1
    assert await watched.value("caseworker_retries_total", kind="step") == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_requests_are_counted_by_the_template_of_their_path(watched: Watched) -> None:
    """No label contains an ID from a caller."""
    counted = "caseworker_http_request_duration_seconds_count"

    assert await watched.value(counted, method="POST", route="/runs", status="202") == 1
    assert await watched.value(counted, method="DELETE", route="/runs/{run_id}") == 1
    await watched.http.post(GATEWAY, json={})
    assert await watched.value(counted, method="POST", route=GATEWAY, status="401") == 1
    assert "later" not in (await watched.http.get("/metrics")).text


@pytest.mark.asyncio(loop_scope="module")
async def test_the_process_is_told_of(watched: Watched) -> None:
    """Each poll takes a slot, and counts of the queue are cached for a while."""

    async def is_at_rest() -> bool:
        slots = await watched.value("caseworker_free_run_slots")
        return (
            slots == 1000 and await watched.value("caseworker_unended_runs", status="queued") == 0
        )

    await eventually(is_at_rest)
    assert await watched.value("caseworker_database_up") == 1
    assert await watched.value("caseworker_database_connections_max", pool="work") == 10
    assert await watched.value("process_resident_memory_bytes") > 10_000_000
    assert await watched.value("caseworker_event_loop_lag_seconds_count") >= 0


@pytest.mark.asyncio
async def test_a_run_that_nobody_takes_is_told_of(postgres: TestServer) -> None:
    """The count and the age of the queue show it after the next refresh."""
    with postgres.database() as url:
        process = Process(Settings(), url, executes=False)
        transport = httpx.ASGITransport(build_app(process), raise_app_exceptions=False)
        async with (
            process.opened(),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            service = Watched(process, http)
            assert await service.value("caseworker_queue_age_seconds") == 0
            accepted = await http.post("/runs", json={"input": "1+1?"})
            assert accepted.status_code == 202, accepted.text

            async def is_told() -> bool:
                return await service.value("caseworker_unended_runs", status="queued") == 1

            await eventually(is_told)
            assert await service.value("caseworker_queue_age_seconds") > 0
            assert await service.value("caseworker_free_run_slots") == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("peer", "shown", "status"),
    [
        ("127.0.0.1", None, 200),
        ("192.0.2.7", None, 403),
        ("192.0.2.7", f"Bearer {KEY}", 200),
        ("192.0.2.7", "Bearer guessed-key", 401),
        ("127.0.0.1", "Basic Og==", 401),
    ],
)
async def test_the_metrics_are_for_this_machine_and_for_the_key(
    watched: Watched, peer: str, shown: str | None, status: int
) -> None:
    """The rule is the same for the API and for the port of a worker."""
    metrics = watched.process.telemetry.metrics
    worker = build_health_api(all_ready, metrics=metrics, allowed_hosts=None)
    headers = {} if shown is None else {"Authorization": shown}
    for app in (build_app(watched.process), worker):
        transport = httpx.ASGITransport(app, client=(peer, 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get("/metrics", headers=headers)).status_code == status


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("readable_from", ["loopback", "anywhere"])
@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        ("192.0.2.7", {}),
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}),
        ("127.0.0.1", {"Origin": "https://page.example"}),
        ("127.0.0.1", {"Sec-Fetch-Site": "cross-site"}),
        ("192.0.2.7", {"Authorization": "Bearer guessed-key"}),
    ],
)
async def test_refused_metrics_name_only_settings_that_open_them(
    watched: Watched,
    peer: str,
    headers: Mapping[str, str],
    readable_from: Literal["loopback", "anywhere"],
) -> None:
    """`auth.anonymous` and `server.cors_origins` apply to the API alone."""
    metrics = watched.process.telemetry.metrics
    assert metrics is not None
    access = dataclasses.replace(metrics, readable_from=readable_from)
    worker = build_health_api(all_ready, metrics=access, allowed_hosts=None)
    transport = httpx.ASGITransport(worker, client=(peer, 50000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get("/metrics", headers=dict(headers))

    if readable_from == "anywhere" and not {"Origin", "Sec-Fetch-Site", "Authorization"} & {
        *headers
    }:
        assert answer.status_code == 200
        return
    assert answer.status_code == (401 if "Authorization" in headers else 403)
    named = set(re.findall(r"[a-z]+\.[a-z_]+", answer.json()["detail"]))
    assert named == {"telemetry.metrics", "telemetry.metrics_key"}


@pytest.mark.asyncio(loop_scope="module")
async def test_every_metric_stands_on_its_page(watched: Watched) -> None:
    """Each has its labels there, and the page lists no other metric."""
    rows = re.findall(r"^\| `(caseworker_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.M)
    families = (await watched.families()).values()
    told = {family.name: family for family in families if family.name.startswith("caseworker_")}

    assert {name.removesuffix("_total"): kind for name, kind, _ in rows} == {
        name: family.type for name, family in told.items()
    }
    for name, _, labels in rows:
        own = {
            label
            for sample in told[name.removesuffix("_total")].samples
            for label in sample.labels.keys() - {"le", "tenant", "agent"}
        }
        assert own <= set(re.findall(r"`(\w+)`", labels)), name


@pytest.mark.asyncio(loop_scope="module")
async def test_the_spans_of_a_run_reach_the_collector(
    watched: Watched, collector: Collector
) -> None:
    """Spans of a run are children of the request's span, whose parent is the caller's."""
    told = await watched.http.get("/runs/traced/trace", params={"format": "otlp"})
    [scope] = told.json()["resourceSpans"][0]["scopeSpans"]
    shown = {span["spanId"]: span for span in scope["spans"]}
    await asyncio.to_thread(collector.wait_for, TRACE_ID, 1 + len(shown))
    sent = {span.span_id.hex(): span for span in collector.spans if span.trace_id.hex() == TRACE_ID}

    [request] = [span for span in sent.values() if span.name == "POST /runs"]
    assert request.parent_span_id.hex() == CALLER_SPAN
    assert sent.keys() - {request.span_id.hex()} == shown.keys()
    assert {span["traceId"] for span in shown.values()} == {TRACE_ID}
    [root] = [span for span in shown.values() if span["parentSpanId"] not in shown]
    assert root["parentSpanId"] == request.span_id.hex()
    assert root["name"] == sent[root["spanId"]].name == "invoke_workflow graph"
    assert {span["name"] for span in shown.values()} >= {"execute_tool calendar", "attempt"}


@pytest.mark.asyncio(loop_scope="module")
async def test_spans_of_requests_hold_nothing_that_callers_wrote(
    watched: Watched, collector: Collector
) -> None:
    """Spans contain neither path, query nor host, and probes have no spans."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    await watched.http.get("/healthz", headers=headers)
    await watched.http.get("/runs/secret-id?secret=query", headers=headers)
    await asyncio.to_thread(collector.wait_for, trace, 1)

    [span] = [span for span in collector.spans if span.trace_id.hex() == trace]
    assert span.name == "GET /runs/{run_id}"
    assert "secret" not in str(span)


Point = tuple[str, frozenset[tuple[str, str]]]
"""The name of a sample and its labels."""


def _sent(metrics: Any) -> Mapping[Point, float]:
    """Return the samples that a collector received, in the form of a Prometheus page."""
    found: dict[Point, float] = {}
    for metric in metrics.scope_metrics[0].metrics:
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            labels = {(each.key, each.value.string_value) for each in point.attributes}
            if not metric.HasField("histogram"):
                found[metric.name, frozenset(labels)] = point.as_double
                continue
            found[f"{metric.name}_sum", frozenset(labels)] = point.sum
            found[f"{metric.name}_count", frozenset(labels)] = point.count
            below = itertools.accumulate(point.bucket_counts)
            for bound, count in zip((*point.explicit_bounds, math.inf), below, strict=True):
                at = labels | {("le", floatToGoString(bound))}  # type: ignore[no-untyped-call]
                found[f"{metric.name}_bucket", frozenset(at)] = count
    return found


@pytest.mark.asyncio(loop_scope="module")
async def test_the_collector_gets_the_numbers_of_the_page(
    watched: Watched, collector: Collector
) -> None:
    """Each process sends its own instance ID, and its counters and histograms are cumulative."""
    living = re.compile(
        "caseworker_(http|event_loop|heartbeat|database|queue|free_run)|process|python"
    )
    shown = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in (await watched.families()).values()
        for sample in family.samples
        if not living.match(sample.name)
    }
    assert len(shown) > 100
    metrics = await asyncio.to_thread(
        collector.wait_for_metrics, lambda metrics: shown.items() <= _sent(metrics).items()
    )
    sent = _sent(metrics)
    about = {each.key: each.value.string_value for each in metrics.resource.attributes}
    assert about["service.name"] == "caseworker"
    assert about["service.instance.id"]
    for metric in metrics.scope_metrics[0].metrics:
        if metric.HasField("sum"):
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == AggregationTemporality.CUMULATIVE
        assert metric.unit == ("s" if metric.name.endswith("_seconds") else metric.unit)
    assert any(name == "process_resident_memory_bytes" for name, _ in sent)


_NAME = re.compile(r"\b(?:caseworker|process)_\w+")


@pytest.mark.asyncio(loop_scope="module")
async def test_rules_and_dashboard_ask_for_metrics_that_there_are(watched: Watched) -> None:
    """Rules and dashboard use only metric names and labels that the service exports."""
    samples: dict[str, set[str]] = {}
    for family in (await watched.families()).values():
        names = {sample.name for sample in family.samples}
        if family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
        for name in names | {f"{family.name}_total" for _ in "c" if family.type == "counter"}:
            samples.setdefault(name, set()).update(*(each.labels for each in family.samples))
    rules = yaml.safe_load((OPERATIONS / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((OPERATIONS / "dashboard.json").read_text())["panels"]
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in panels for target in panel["targets"]]

    assert len(asked) > 35
    for expression in asked:
        found = _NAME.findall(expression)
        assert set(found) <= samples.keys(), expression
        known = set().union(*(samples[name] for name in found)) | {"job", "instance", "le"}
        matched = re.findall(r"(\w+)=~?\"", expression)
        grouped = [
            part for by in re.findall(r"by \(([^)]*)\)", expression) for part in by.split(", ")
        ]
        assert {*matched, *grouped} <= known | {"model", "direction", "kind"}, expression
    shown = {name for expression in asked for name in _NAME.findall(expression)}
    families = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in shown}
    told = {name for name in (await watched.families()) if name.startswith("caseworker_")}
    assert told - families <= set(), "a metric that no panel shows"
