"""Usage of calls and the totals of a graph."""

from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.snapshot import Aggregates
from tests.support.graph_invariants import assert_sound

IMPOSSIBLE: list[dict[str, Any]] = [
    {"cost_usd": -0.01},
    {"cost_usd": Decimal("-0.01")},
    {"cost_usd": float("nan")},
    {"cost_usd": float("inf")},
    {"cost_usd": Decimal("NaN")},
    {"cost_usd": Decimal("sNaN")},
    {"cost_usd": Decimal("Infinity")},
    {"cost_usd": Decimal("1e400")},
    {"cost_usd": 1e16},
    {"cost_usd": 0, "tokens_in": -1},
    {"cost_usd": 0, "tokens_out": -1},
]


def aggregates(graph: ExecutionGraph) -> Aggregates:
    return graph.snapshot()["aggregates"]


@pytest.mark.req("001/aggregates")
def test_the_totals_follow_every_end(graph: ExecutionGraph, root: str) -> None:
    """Calls count only on success; cost, tokens and retries count for every end."""
    plan = graph.begin_node(root, "llm", "plan")
    search = graph.begin_node(plan, "tool", "search")
    refused = graph.begin_node(plan, "llm", "refused")
    broken = graph.begin_node(plan, "tool", "broken")
    graph.increment_retries(broken)
    graph.increment_retries(broken)
    graph.mark_success(plan, 0.0042, 120, 80)
    graph.mark_success(search, 0)
    graph.mark_halt(refused, "budget", cost_usd=0.1, tokens_in=7)
    graph.mark_failure(broken, "E", cost_usd=Decimal("0.01"), tokens_out=5)
    graph.mark_success(root, 0)

    assert aggregates(graph) == {
        "total_cost_usd": 0.1142,
        "total_llm_calls": 1,
        "total_tool_calls": 1,
        "total_retries": 2,
        "total_tokens_in": 127,
        "total_tokens_out": 85,
        "max_depth": 2,
    }


@pytest.mark.req("001/aggregates", "001/mark")
def test_retries_count_once_the_node_has_ended(graph: ExecutionGraph, root: str) -> None:
    """Retries enter the totals when their node ends."""
    node_id = graph.begin_node(root, "llm", "plan")
    graph.increment_retries(node_id)
    assert graph.node(node_id)["retries_used"] == 1
    assert aggregates(graph)["total_retries"] == 0

    graph.mark_halt(node_id)

    assert aggregates(graph)["total_retries"] == 1


@pytest.mark.req("001/inv4")
@pytest.mark.parametrize("usage", IMPOSSIBLE)
@pytest.mark.parametrize("method", ["mark_success", "mark_failure", "mark_halt", "add_late_usage"])
def test_impossible_usage_is_refused_and_changes_nothing(
    graph: ExecutionGraph, root: str, method: str, usage: dict[str, Any]
) -> None:
    """Invalid usage is rejected without a change, and the node can still end."""
    node_id = graph.begin_node(root, "llm", "plan")
    if method == "add_late_usage":
        graph.mark_success(node_id, 1)
    before, revision = graph.snapshot(), graph.revision
    more = {"error_class": "E"} if method == "mark_failure" else {}

    with pytest.raises(ValueError, match=r"from 0, not"):
        getattr(graph, method)(node_id, **more, **usage)

    assert graph.snapshot() == before
    assert graph.revision == revision


@pytest.mark.req("001/inv4")
def test_money_adds_up_exactly(graph: ExecutionGraph, root: str) -> None:
    """Three costs of 10 cents add up to exactly 30 cents, unlike floats."""
    for _ in range(3):
        graph.mark_success(graph.begin_node(root, "llm", "plan"), 0.1)

    assert 0.1 + 0.1 + 0.1 != 0.3
    assert aggregates(graph)["total_cost_usd"] == 0.3


@pytest.mark.req("001/inv4", "001/aggregates")
def test_a_failed_or_halted_call_keeps_what_it_cost(graph: ExecutionGraph, root: str) -> None:
    """A failed or halted call keeps its cost and tokens, and does not count as a call."""
    failed, halted = graph.begin_node(root, "llm", "a"), graph.begin_node(root, "llm", "b")
    graph.mark_failure(failed, "E", cost_usd=0.25, tokens_in=10, tokens_out=1)
    graph.mark_halt(halted, cost_usd=0.5, tokens_in=20, tokens_out=2)

    nodes = graph.snapshot()["nodes"]
    assert (nodes[failed]["cost_usd"], nodes[halted]["cost_usd"]) == (0.25, 0.5)
    assert aggregates(graph)["total_cost_usd"] == 0.75
    assert (aggregates(graph)["total_tokens_in"], aggregates(graph)["total_tokens_out"]) == (30, 3)
    assert aggregates(graph)["total_llm_calls"] == 0


@pytest.mark.parametrize("end", ["success", "fail", "halt"])
def test_late_usage_changes_cost_and_tokens_but_not_the_status(
    graph: ExecutionGraph, root: str, end: str
) -> None:
    """Late usage adds to cost and tokens of an ended node and to the totals."""
    node_id = graph.begin_node(root, "llm", "plan")
    if end == "success":
        graph.mark_success(node_id, 0.1, tokens_in=5)
    elif end == "fail":
        graph.mark_failure(node_id, "E", cost_usd=0.1, tokens_in=5)
    else:
        graph.mark_halt(node_id, "cancelled", cost_usd=0.1, tokens_in=5)
    before = graph.snapshot()

    graph.add_late_usage(node_id, cost_usd=Decimal("0.2"), tokens_in=7, tokens_out=3)
    graph.add_late_usage(node_id, tokens_out=1)

    after = graph.snapshot()
    late = {"cost_usd": 0.3, "tokens_in": 12, "tokens_out": 4}
    assert after["nodes"][node_id] == {**before["nodes"][node_id], **late}
    assert after["aggregates"] == {
        **before["aggregates"],
        "total_cost_usd": 0.3,
        "total_tokens_in": 12,
        "total_tokens_out": 4,
    }
    assert_sound(after)


def test_late_usage_of_unknown_cost_makes_the_cost_of_its_node_unknown(
    graph: ExecutionGraph, root: str
) -> None:
    """Late usage without a known cost adds tokens and makes the node's cost null."""
    node_id = graph.begin_node(root, "llm", "plan")
    graph.mark_halt(node_id, "cancelled")

    graph.add_late_usage(node_id, cost_usd=None, tokens_in=7)

    snapshot = graph.snapshot()
    node, totals = snapshot["nodes"][node_id], snapshot["aggregates"]
    assert (node["cost_usd"], node["tokens_in"]) == (None, 7)
    assert (totals["total_cost_usd"], totals["total_tokens_in"]) == (0, 7)
    assert_sound(snapshot)


def test_an_open_node_takes_no_late_usage(graph: ExecutionGraph, root: str) -> None:
    """Late usage of an open node is rejected; its usage is recorded at its end."""
    with pytest.raises(RuntimeError, match=root):
        graph.add_late_usage(root, cost_usd=1)

    assert aggregates(graph)["total_cost_usd"] == 0
