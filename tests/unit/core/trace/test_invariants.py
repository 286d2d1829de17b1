"""The invariant checker finds every kind of broken snapshot."""

import copy
from typing import Any

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from tests.support.graph_invariants import regressions, violations


@pytest.fixture
def sound(graph: ExecutionGraph, root: str) -> dict[str, Any]:
    """A snapshot with one node of every status."""
    graph.mark_running(root)
    plan = graph.begin_node(root, "llm", "plan")
    graph.increment_retries(plan)
    graph.mark_success(plan, 0.5, 10, 20)
    graph.mark_failure(graph.begin_node(plan, "tool", "search"), "E", cost_usd=0.25)
    graph.mark_halt(graph.begin_node(root, "llm", "refused"))
    graph.begin_node(root, "tool", "next")
    return dict(graph.snapshot())


def test_a_sound_snapshot_has_no_violations(sound: dict[str, Any]) -> None:
    """A sound snapshot and an empty one have no violations."""
    assert violations(sound) == []
    assert violations(ExecutionGraph().snapshot()) == []


@pytest.mark.parametrize(
    ("node_id", "change", "sentence"),
    [
        ("n000002", {"parent_id": "n000099"}, "n000002 has no parent n000099 in the graph"),
        ("n000002", {"parent_id": "n000002"}, "n000002 is older than its parent n000002"),
        ("n000004", {"parent_id": None}, "n000004 is a root of kind llm"),
        ("n000002", {"node_id": "n000003"}, "n000002 is not the id of n000003"),
        ("n000002", {"kind": "memory"}, "n000002 is of kind memory"),
        ("n000002", {"status": "done"}, "n000002 has the status done"),
        ("n000002", {"status": []}, "n000002.status is list"),
        ("n000002", {"end_ts_ms": None}, "n000002 is success with end_ts_ms None"),
        ("n000002", {"end_ts_ms": 5}, "n000002 ends before it starts"),
        ("n000002", {"end_ts_ms": True}, "n000002.end_ts_ms is bool"),
        ("n000002", {"error_class": "E"}, "n000002 is success with an error_class"),
        ("n000002", {"cost_usd": float("inf")}, "n000002 costs inf"),
        ("n000002", {"cost_usd": -0.5}, "n000002 costs -0.5"),
        ("n000002", {"tokens_in": -1}, "n000002 has tokens_in -1"),
        ("n000002", {"retries_used": -1}, "n000002 has retries_used -1"),
        ("n000005", {"tokens_out": 7}, "n000005 is created and has usage already"),
        ("n000002", {"metadata": None}, "n000002.metadata is NoneType"),
        ("n000002", {"extra": 1}, "n000002 has the unknown field extra"),
        ("n000002", {"cost_usd": 1.5}, "total_cost_usd is 0.75, but the nodes add up to 1.75"),
        ("n000002", {"kind": "tool"}, "total_llm_calls is 1, but the nodes add up to 0"),
        ("n000002", {"retries_used": 3}, "total_retries is 1, but the nodes add up to 3"),
        ("n000002", {"tokens_in": 11}, "total_tokens_in is 10, but the nodes add up to 11"),
        ("n000003", {"parent_id": "n000001"}, "max_depth is 2, but the nodes add up to 1"),
        (
            "n000001",
            {"status": "halt", "end_ts_ms": 1_740_000_000_000},
            "n000005 is created below a closed root",
        ),
    ],
)
def test_a_broken_node_is_found(
    sound: dict[str, Any], node_id: str, change: dict[str, Any], sentence: str
) -> None:
    """Each violated rule is reported in a sentence that names the node."""
    sound["nodes"][node_id] |= change

    assert sentence in violations(sound)


def test_missing_parts_are_found(sound: dict[str, Any]) -> None:
    """Missing fields of a node, of the aggregates or of the snapshot are reported."""
    broken = copy.deepcopy(sound)
    del broken["nodes"]["n000002"]["model"]
    assert "n000002 lacks model" in violations(broken)

    broken = copy.deepcopy(sound)
    del broken["aggregates"]["total_retries"]
    assert violations(broken) == ["the aggregates lack total_retries"]

    del sound["aggregates"], sound["nodes"]["n000001"]
    assert violations(sound) == ["the snapshot has no aggregates"]


def test_a_wrong_root_is_found(sound: dict[str, Any]) -> None:
    """The root must exist and be the only node without a parent."""
    assert violations({**sound, "root_id": None}) == ["root_id is None, but the root is n000001"]
    sound["nodes"].pop("n000001")
    assert "there are 0 roots" in violations(sound)


@pytest.mark.req("001/inv3", "001/inv4")
@pytest.mark.parametrize(
    ("node_id", "change", "sentence"),
    [
        ("n000002", {"status": "fail"}, "n000002 had ended and its status changed"),
        ("n000002", {"end_ts_ms": 1}, "n000002 had ended and its end_ts_ms changed"),
        ("n000002", {"cost_usd": 0.1}, "n000002 has less cost_usd than before"),
        ("n000001", {"status": "created"}, "n000001 went from running back to created"),
        ("n000002", {"parent_id": "n000003"}, "n000002.parent_id changed"),
        ("n000002", {"metadata": {"a": 1}}, "n000002.metadata changed"),
    ],
)
def test_a_step_backwards_is_found(
    sound: dict[str, Any], node_id: str, change: dict[str, Any], sentence: str
) -> None:
    """A change that no later snapshot may have, such as a lower cost, is reported."""
    later = copy.deepcopy(sound)
    assert regressions(sound, later) == []
    later["nodes"][node_id] |= change

    assert regressions(sound, later) == [sentence]


def test_lost_nodes_and_shrinking_totals_are_found(sound: dict[str, Any]) -> None:
    """A missing node and a smaller total are reported as regressions."""
    later = copy.deepcopy(sound)
    del later["nodes"]["n000005"]
    later["aggregates"]["total_cost_usd"] = 0.5

    assert regressions(sound, later) == [
        "n000005 has vanished",
        "total_cost_usd fell from 0.75 to 0.5",
    ]
