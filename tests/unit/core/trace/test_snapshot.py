"""The guarantees of ``snapshot`` and ``capture``."""

import json

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from tests.support.graph_invariants import assert_sound
from tests.support.manual_clock import ManualClock


@pytest.mark.req("001/snapshot")
def test_a_snapshot_has_the_form_of_the_document(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """A snapshot has chain, root, nodes by ID, aggregates and its timestamp."""
    graph.begin_node(root, "llm", "plan")
    clock.advance(200)

    snapshot = graph.snapshot()

    assert list(snapshot) == ["chain_id", "root_id", "nodes", "aggregates", "snapshot_ts_ms"]
    assert (snapshot["chain_id"], snapshot["root_id"]) == ("chain-1", root)
    assert list(snapshot["nodes"]) == [root, "n000002"]
    assert snapshot["snapshot_ts_ms"] == clock.now
    assert_sound(snapshot)


@pytest.mark.req("001/snapshot")
def test_an_empty_graph_has_a_snapshot_too(graph: ExecutionGraph) -> None:
    """An empty graph has a valid snapshot without root and nodes."""
    snapshot = graph.snapshot()

    assert (snapshot["root_id"], snapshot["nodes"]) == (None, {})
    assert_sound(snapshot)


@pytest.mark.req("001/snapshot")
def test_a_snapshot_shares_nothing_with_the_graph(graph: ExecutionGraph) -> None:
    """Changing the metadata passed in or the snapshot returned does not change the graph."""
    metadata = {"query": {"words": ["a", "b"]}}
    graph.create_root("run", metadata)
    graph.mark_running("n000001")
    metadata["query"]["words"].append("c")
    first = graph.snapshot()
    taken = json.dumps(first)

    first["nodes"]["n000001"]["metadata"]["query"] = "spoilt"
    first["nodes"]["n000001"]["status"] = "halt"
    first["aggregates"]["max_depth"] = 99
    graph.node("n000001")["metadata"].clear()
    del first["nodes"]["n000001"]

    assert json.dumps(graph.snapshot()) == taken
    assert '"words": ["a", "b"]' in taken


@pytest.mark.req("001/snapshot")
def test_a_capture_stays_as_it_was_taken(graph: ExecutionGraph, root: str) -> None:
    """Later changes of the graph do not change a capture."""
    ended, opened = graph.begin_node(root, "llm", "a"), graph.begin_node(root, "llm", "b")
    graph.mark_success(ended, 0.5)
    graph.add_late_usage(ended, cost_usd=0.25)
    capture = graph.capture()
    taken = graph.snapshot()

    graph.mark_running(opened)
    graph.mark_success(opened, 1)
    graph.add_late_usage(ended, cost_usd=1)
    graph.begin_node(root, "tool", "c", metadata={"late": True})
    graph.mark_halt(root)

    assert capture.as_dict() == taken
    assert json.loads("".join(capture.json_parts())) == taken
    assert graph.snapshot() != taken


@pytest.mark.req("001/snapshot")
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_the_parts_of_the_json_text_make_up_the_snapshot(graph: ExecutionGraph, count: int) -> None:
    """The JSON parts join to the snapshot at every size, and each part has a bounded length."""
    for number in range(count):
        if number == 0:
            graph.create_root('"quoted" \u2028 name', {"n": [1, {"x": None}]})
        else:
            graph.begin_node("n000001", "tool", "t")

    parts = list(graph.capture().json_parts())

    assert "".join(parts) == json.dumps(graph.snapshot())
    assert max(len(part) for part in parts) < 100 * 450


def test_a_capture_knows_the_revision_it_shows(graph: ExecutionGraph, root: str) -> None:
    """A capture holds its revision, from which later changes can be read."""
    capture = graph.capture()
    graph.mark_running(root)

    assert [node["status"] for node in graph.changed_since(capture.revision).nodes] == ["running"]
