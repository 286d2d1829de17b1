"""Preparing the records of an earlier execution for the next one."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Dimension
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.engine.ports import IF_LOST, CallOutcome
from caseworker.runs.journal.journal import stored_charge
from caseworker.runs.journal.replay import (
    charge_of,
    entries_of,
    graph_of,
    reopened,
    spent_before,
    spent_by_path,
    tries_of,
)
from caseworker.runs.run import CallRecord
from tests.support.graph_invariants import violations
from tests.support.runs import CLAIMED_RUN


def lost() -> list[CallRecord]:
    """Return a step with a finished call, and a call in flight with an attempt."""
    graph = ExecutionGraph("r0")
    root = graph.create_root("case")
    graph.mark_running(root)
    step = graph.begin_node(root, "system", "case")
    ended = graph.begin_node(step, "llm", "ended")
    graph.mark_success(ended, 0.1, 10, 5)
    flying = graph.begin_node(step, "tool", "flying")
    attempt = graph.begin_node(flying, "system", "attempt")

    def record(node: str, **noted: Any) -> CallRecord:
        return CallRecord(node=graph.node(node), **noted)

    return [
        record(root),
        record(step, call_key="step:case", charge={"steps": 1}),
        record(
            ended,
            call_key="ended",
            request_hash="h",
            charge={"tokens": 15, "cost_usd": "0.1"},
            outcome="result",
            value=[1],
        ),
        record(flying, call_key="flying", charge={"tokens": 30, "cost_usd": "0.25"}),
        record(attempt),
    ]


def test_a_new_run_begins_with_a_root_that_runs() -> None:
    """The graph of a new run holds only a running root."""
    graph, root = graph_of(CLAIMED_RUN, ())

    node = graph.node(root)
    assert (node["name"], node["status"], node["metadata"]) == ("case", "running", {"run_id": "r0"})
    assert len(graph.snapshot()["nodes"]) == 1


def test_what_was_open_when_the_worker_was_lost_is_closed() -> None:
    """A call in flight is closed at its estimate; the root and the node numbers continue."""
    graph, root = graph_of(CLAIMED_RUN, lost())

    shown = {
        node["name"]: (node["status"], node["stop_reason"], node["cost_usd"])
        for node in graph.snapshot()["nodes"].values()
        if node["node_id"] != root
    }
    assert shown == {
        "case": ("halt", "worker_lost", 0.0),
        "ended": ("success", None, 0.1),
        "flying": ("halt", "worker_lost", 0.25),
        "attempt": ("halt", "worker_lost", 0.0),
    }
    assert graph.node(root)["status"] == "running"
    assert graph.begin_node(root, "system", "case") == "n000006"
    assert violations(graph.snapshot()) == []


def test_everything_that_was_charged_is_counted_again() -> None:
    """All earlier charges are counted again, and money is exact."""
    assert spent_before(lost()) == {
        Dimension.STEPS: 1,
        Dimension.TOKENS: 45,
        Dimension.COST_USD: Decimal("0.35"),
    }


def test_what_was_noted_is_read_back_as_it_was() -> None:
    """Entries are found by node for the next write, and by call key for a replay."""
    entries, tries = entries_of(lost()), tries_of(lost())

    assert set(entries) == {"n000002", "n000003", "n000004"}
    assert entries["n000003"].charge == {Dimension.TOKENS: 15, Dimension.COST_USD: Decimal("0.1")}
    assert (entries["n000003"].outcome, entries["n000003"].value) == (CallOutcome.RESULT, [1])
    assert {key: known.outcome for key, known in tries.items()} == {
        "step:case": CallOutcome.UNKNOWN,
        "ended": CallOutcome.RESULT,
        "flying": CallOutcome.UNKNOWN,
    }


def test_an_end_that_was_not_accepted_is_taken_back() -> None:
    """An end that was not accepted is reverted for the root; its steps stay ended."""
    graph, root = graph_of(CLAIMED_RUN, lost())
    graph.mark_success(root, 0)

    again = reopened(graph, root)

    assert again.node(root)["status"] == "running"
    assert again.node(root)["end_ts_ms"] is None
    assert again.node("n000003") == graph.node("n000003")
    again.mark_halt(root, "cancelled")
    assert violations(again.snapshot()) == []


def test_what_was_spent_inside_a_step_is_all_that_its_attempts_have_charged() -> None:
    """Calls and nested steps count, but not the step itself or steps with a similar name."""

    def charged(call_key: str | None, tokens: int) -> CallRecord:
        return CallRecord(node={}, call_key=call_key, charge={"tokens": tokens})

    earlier = [
        charged(None, 1),
        charged("step:outer", 2),
        charged("outer/plan/1", 4),
        charged("step:outer/inner", 8),
        charged("outer/inner/act/1", 16),
        charged("outer~2/plan/1", 32),
        charged("outermost/plan/1", 64),
        charged("other/outer/plan", 128),
    ]

    spent = spent_by_path(earlier)
    assert spent["outer"] == {Dimension.TOKENS: 4 + 8 + 16 + 32}
    assert "nothing" not in spent


def test_a_call_that_was_lost_in_flight_shows_what_it_is_charged() -> None:
    """Tokens and cost are marked as estimates, and equal the usage."""
    *others, flying, attempt = lost()
    estimated = {"tokens_in": 20, "tokens_out": 10, "cost_usd": 0.25}
    value = {IF_LOST: {**estimated, "cost_usd": "0.25", "estimated": estimated}}
    charge = {**flying.charge, "tokens_estimated": 30, "cost_usd_estimated": "0.25"}

    earlier = [*others, replace(flying, value=value, charge=charge), attempt]
    graph, _ = graph_of(CLAIMED_RUN, earlier)

    node = graph.node(flying.node_id)
    assert (node["status"], node["stop_reason"]) == ("halt", "worker_lost")
    assert (node["tokens_in"], node["tokens_out"], node["cost_usd"]) == (20, 10, 0.25)
    assert node["metadata"]["estimated"] == estimated
    totals = graph.snapshot()["aggregates"]
    tokens = totals["total_tokens_in"] + totals["total_tokens_out"]
    assert tokens == spent_before(earlier)[Dimension.TOKENS]
    assert spent_before(earlier)[Dimension.TOKENS_ESTIMATED] == 30


@pytest.mark.req("cw/14.priced")
@pytest.mark.parametrize(
    ("charge", "stored"),
    [
        ({Dimension.LLM_CALLS: 1}, {"llm_calls_small": 0}),
        (
            {Dimension.LLM_CALLS: 1, Dimension.LLM_CALLS_SMALL: 0, Dimension.API_CALLS: 2},
            {"llm_calls_small": 0, "api_calls": 2},
        ),
        ({Dimension.LLM_CALLS: 1, Dimension.LLM_CALLS_BIG: 1}, {"llm_calls_big": 1}),
        ({Dimension.API_CALLS: 1, Dimension.COST_USD: Decimal("0.1")}, None),
    ],
)
def test_calls_of_all_models_are_counted_from_what_the_release_before_can_read(
    charge: dict[Dimension, Any], stored: dict[str, Any] | None
) -> None:
    """No key unknown to the earlier release is stored, and repeated calls of a kind add up."""
    written = stored_charge(charge)
    read = charge_of(written)

    assert written == (stored or {"api_calls": 1, "cost_usd": "0.1"})
    assert read.get(Dimension.LLM_CALLS, 0) == charge.get(Dimension.LLM_CALLS, 0)
    assert stored_charge(read) == written
