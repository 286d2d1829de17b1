"""Rebuilding a graph from stored nodes after a crash."""

import json
from typing import Any

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from tests.support.graph_invariants import assert_sound
from tests.support.manual_clock import ManualClock

Nodes = dict[str, dict[str, Any]]


@pytest.fixture
def stored(graph: ExecutionGraph, root: str) -> Nodes:
    """Nodes of an unfinished run as a database returns them."""
    graph.mark_running(root)
    plan = graph.begin_node(root, "llm", "plan", "gpt-5", {"tier": "big", "tags": ["x"]})
    graph.increment_retries(plan)
    graph.mark_success(plan, 0.25, 10, 5)
    graph.add_late_usage(plan, cost_usd=0.5)
    search = graph.begin_node(plan, "tool", "search")
    graph.increment_retries(search)
    graph.mark_running(search)
    nodes: Nodes = json.loads(json.dumps(graph.snapshot()["nodes"]))
    return nodes


def test_a_restored_graph_equals_the_lost_one(
    graph: ExecutionGraph, stored: Nodes, clock: ManualClock
) -> None:
    """A restored graph equals the original one, for any order of the rows."""
    restored = ExecutionGraph.restore("chain-1", reversed(stored.values()), now_ms=clock)

    assert restored.snapshot() == graph.snapshot()
    assert restored.root_id == "n000001"


@pytest.mark.req("001/inv1")
def test_a_restored_graph_goes_on_where_the_lost_one_stopped(stored: Nodes) -> None:
    """A restored graph continues the IDs, can end open nodes, and reports only new changes."""
    restored = ExecutionGraph.restore("chain-1", stored.values())
    revision = restored.revision
    assert [node["node_id"] for node in restored.changed_since(0).nodes] == list(stored)

    assert restored.begin_node("n000003", "llm", "again") == "n000004"
    assert restored.close_open("worker_lost") == ["n000004", "n000003"]

    assert {n["node_id"] for n in restored.changed_since(revision).nodes} == {"n000003", "n000004"}
    snapshot = restored.snapshot()
    assert snapshot["aggregates"]["total_retries"] == 2
    assert snapshot["aggregates"]["total_cost_usd"] == 0.75
    assert snapshot["aggregates"]["max_depth"] == 3
    assert_sound(snapshot)


def test_ids_continue_after_a_gap(stored: Nodes) -> None:
    """A gap in the stored IDs is kept, and no ID is used again."""
    stored["n000003"]["node_id"] = "n000009"

    restored = ExecutionGraph.restore("chain-1", stored.values())

    assert restored.begin_node("n000002", "llm", "next") == "n000010"
    assert restored.node("n000009")["name"] == "search"


def test_restoring_nothing_is_an_empty_graph() -> None:
    """Restoring no nodes, as after an early crash, gives an empty graph."""
    graph = ExecutionGraph.restore("chain-1", [])

    assert graph.create_root("run") == "n000001"


def test_a_restored_graph_shares_nothing_with_its_input(stored: Nodes) -> None:
    """Later changes of the rows do not change the restored graph."""
    restored = ExecutionGraph.restore("chain-1", stored.values())
    stored["n000002"]["metadata"]["tags"].append("y")
    stored["n000002"]["name"] = "spoilt"

    node = restored.node("n000002")
    assert (node["name"], node["metadata"]["tags"]) == ("plan", ["x"])


def test_a_closed_root_stays_closed(graph: ExecutionGraph, stored: Nodes) -> None:
    """A restored graph with an ended root accepts no new calls."""
    graph.mark_halt("n000001")

    restored = ExecutionGraph.restore("chain-1", graph.snapshot()["nodes"].values())

    with pytest.raises(RuntimeError, match="the root has ended"):
        restored.begin_node("n000001", "llm", "late")


def test_a_cost_is_a_float_again(stored: Nodes) -> None:
    """A cost that the database returns as an integer becomes a float again."""
    stored["n000003"]["cost_usd"] = 0

    restored = ExecutionGraph.restore("chain-1", stored.values())

    assert type(restored.node("n000003")["cost_usd"]) is float


@pytest.mark.parametrize(
    ("node_id", "change", "complaint"),
    [
        ("n000003", {"parent_id": "n000007"}, "no parent n000007"),
        ("n000002", {"parent_id": "n000003"}, "older than its parent"),
        ("n000002", {"parent_id": None, "kind": "system"}, "2 roots"),
        ("n000001", {"status": "paused"}, "paused"),
        ("n000003", {"end_ts_ms": 1}, "running with end_ts_ms"),
        ("n000002", {"cost_usd": -1.0}, "costs -1.0"),
        ("n000002", {"cost_usd": "0.1"}, "cost_usd is str"),
        ("n000002", {"node_id": "n000001"}, "two nodes have the ID n000001"),
        ("n000002", {"node_id": "x2"}, "not the id"),
        ("n000001", {"status": "halt", "end_ts_ms": 1740000000000}, "below a closed root"),
        ("n000002", {"colour": "red"}, "unknown field colour"),
    ],
)
def test_nodes_that_are_no_graph_are_refused(
    stored: Nodes, node_id: str, change: dict[str, Any], complaint: str
) -> None:
    """Invalid nodes are rejected with a message that names the violation."""
    stored[node_id] |= change

    with pytest.raises(ValueError, match=complaint):
        ExecutionGraph.restore("chain-1", stored.values())
