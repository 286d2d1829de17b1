"""The metrics of a finished run."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.features.telemetry.metrics import AT_ONCE, MAX_VALUES, OTHER, Bounded, RunMetrics
from caseworker.runs.run import DefinitionRef, Run, RunKey, RunKind, RunRequest, RunStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = Run(
    key=RunKey("acme", "r-1"),
    kind=RunKind.AGENT,
    status=RunStatus.COMPLETED,
    created_at=NOW,
    started_at=NOW + timedelta(seconds=3),
    finished_at=NOW + timedelta(seconds=9),
    request_hash="",
    request=RunRequest(kind=RunKind.AGENT, definition_ref=DefinitionRef("clerk")),
    attempts=1,
    active_seconds=2.0,
    usage={"steps": 4, "turns": 3},
)


def graph_with(calls: int = 1) -> dict[str, Any]:
    """Build a graph with model calls at 2 cents each, and one call imported from another run."""
    graph = ExecutionGraph("r-1")
    root = graph.create_root("agent", {})
    graph.mark_running(root)
    for _ in range(calls):
        node = graph.begin_node(root, "llm", "ask", "big-model", {}, running=True)
        graph.annotate(node, {"repairs": ["think_tags", "call_id_missing"], "overrun_usd": 0.01})
        graph.mark_success(node, 0.02, 100, 7)
    made = {"taken_over": {"run_id": "r-0", "node_id": "n000002"}}
    node = graph.begin_node(root, "llm", "ask", "big-model", made, running=True)
    graph.mark_success(node, 0, 1000)
    graph.mark_success(root, 0)
    return dict(graph.snapshot())


def test_a_run_is_counted_from_its_usage_and_its_graph() -> None:
    """Metrics come from a run's usage and graph, without calls imported from another run."""
    registry = CollectorRegistry()
    RunMetrics(registry).ended(RUN, graph_with(2))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"caseworker_{name}", labels)

    assert value("run_duration_seconds_sum", kind="agent", status="completed") == 2
    assert value("run_wait_seconds_sum", kind="agent") == 3
    assert value("tokens_total", model="big-model", direction="input") == 200
    assert value("tokens_total", model="big-model", direction="output") == 14
    assert value("cost_usd_total", model="big-model") == pytest.approx(0.04)
    assert value("overrun_cost_usd_total", model="big-model") == pytest.approx(0.02)
    assert value("model_reply_repairs_total", kind="think_tags") == 2
    assert value("model_reply_repairs_total", kind="call_id_missing") == 2
    assert value("model_call_duration_seconds_count", model="big-model", status="success") == 2
    assert (value("turns_total"), value("steps_total")) == (3, 4)


def test_tenants_and_agents_are_labels_only_where_that_is_wanted() -> None:
    """Tenants and agents become labels only if configured, because clients choose them."""
    silent, telling = CollectorRegistry(), CollectorRegistry()
    RunMetrics(silent).ended(RUN, graph_with())
    RunMetrics(telling, ("tenant", "agent")).ended(RUN, graph_with())

    shown = {"model": "big-model", "tenant": "acme", "agent": "clerk"}
    assert telling.get_sample_value("caseworker_cost_usd_total", shown) == pytest.approx(0.02)
    labels = {str(sample.labels) for family in silent.collect() for sample in family.samples}
    assert not any("acme" in each or "clerk" in each for each in labels)


def test_a_label_has_so_many_values_and_no_more() -> None:
    """A label has a bounded number of values, and a value that is not a name is hidden."""
    bounded = Bounded()
    shown = {bounded(f"model-{number}") for number in range(3 * MAX_VALUES)}

    assert len(shown) == MAX_VALUES + 1
    assert OTHER in shown
    assert bounded("model-1") == "model-1"
    assert Bounded()("a text, not a name") == OTHER
    assert Bounded()("x" * 200) == OTHER
    assert Bounded()(None) == ""


async def test_a_large_graph_is_counted_beside_the_event_loop() -> None:
    """A large graph is counted in a background task, with the same result."""
    registry = CollectorRegistry()
    RunMetrics(registry).ended(RUN, graph_with(AT_ONCE + 1))
    tokens = {"model": "big-model", "direction": "input"}

    assert registry.get_sample_value("caseworker_tokens_total", tokens) is None
    counting = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(counting)

    counted = registry.get_sample_value("caseworker_tokens_total", tokens)
    assert counted == 100 * (AT_ONCE + 1)


def test_a_takeover_is_counted() -> None:
    """A recovered run is counted by the process that resumes it."""
    registry = CollectorRegistry()
    metrics = RunMetrics(registry)
    metrics.started(RUN)
    metrics.started(replace(RUN, attempts=2))

    assert registry.get_sample_value("caseworker_run_takeovers_total") == 1
