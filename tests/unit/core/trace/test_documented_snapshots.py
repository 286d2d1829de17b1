"""The example snapshots of the document that specifies the ExecutionGraph."""

import json
from pathlib import Path
from typing import Any

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from tests.support.graph_invariants import assert_sound
from tests.support.manual_clock import ManualClock

NORMAL, HALTED = json.loads(
    Path(__file__).with_name("documented_snapshots.json").read_text("utf-8")
)
"""A chain of three successful nodes, and one that a cost limit halted."""


def replayed(example: dict[str, Any]) -> Any:
    """Make the calls that the document describes; return the snapshot."""
    clock = ManualClock()
    graph = ExecutionGraph(example["chain_id"], now_ms=clock)
    root, *calls = example["nodes"].values()
    clock.now = root["start_ts_ms"]
    assert graph.create_root(root["name"], root["metadata"]) == root["node_id"]
    graph.mark_running(root["node_id"])
    for call in calls:
        clock.now = call["start_ts_ms"]
        node_id = graph.begin_node(
            parent_id=call["parent_id"],
            kind=call["kind"],
            name=call["name"],
            model=call["model"],
            metadata=call["metadata"],
        )
        clock.now = call["end_ts_ms"]
        if call["status"] == "halt":
            graph.mark_halt(node_id, stop_reason=call["stop_reason"])
        else:
            graph.mark_running(node_id)
            usage = {name: call[name] for name in ("cost_usd", "tokens_in", "tokens_out")}
            graph.mark_success(node_id, **usage)
    clock.now = example["snapshot_ts_ms"]
    return graph.snapshot()


@pytest.mark.req("001/snapshot", "001/node", "001/aggregates", "001/mark")
@pytest.mark.parametrize(
    ("example", "tokens"),
    [
        # The document states 820 tokens where its nodes sum to 80; total_tokens_in is our addition.
        pytest.param(NORMAL, {"total_tokens_in": 120, "total_tokens_out": 80}, id="normal"),
        pytest.param(HALTED, {"total_tokens_in": 5000, "total_tokens_out": 3000}, id="halted"),
    ],
)
def test_the_calls_of_an_example_give_its_snapshot(
    example: dict[str, Any], tokens: dict[str, int]
) -> None:
    """The snapshot equals the documented one in every field of every node and in the totals."""
    snapshot = replayed(example)

    assert_sound(snapshot)
    assert snapshot == {**example, "aggregates": example["aggregates"] | tokens}
