"""Values that an ExecutionGraph rejects without changing."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph

Change = Callable[[ExecutionGraph, str], object]
NO_TEXT: Any = object()


@pytest.mark.req("001/begin_node")
@pytest.mark.parametrize(
    "change",
    [
        lambda graph, node: graph.begin_node(cast("str", None), "tool", "second root"),
        lambda graph, node: graph.begin_node(node, "tool", NO_TEXT),
        lambda graph, node: graph.begin_node(node, "tool", cast("str", None)),
        lambda graph, node: graph.begin_node(node, "llm", "plan", cast("str", 5)),
        lambda graph, node: graph.begin_node(node, "tool", "t", metadata={"x": math.nan}),
        lambda graph, node: graph.begin_node(node, "tool", "t", metadata={"x": NO_TEXT}),
        lambda graph, node: graph.mark_success(node, math.nan),
        lambda graph, node: graph.mark_success(node, math.inf),
        lambda graph, node: graph.mark_success(node, cast("float", "1")),
        lambda graph, node: graph.mark_success(node, True),
        lambda graph, node: graph.mark_success(node, 0, cast("int", math.nan)),
        lambda graph, node: graph.mark_success(node, 0, 1, cast("int", 1.5)),
        lambda graph, node: graph.mark_success(node, 0, cast("int", "7")),
        lambda graph, node: graph.mark_failure(node, NO_TEXT),
        lambda graph, node: graph.mark_failure(node, cast("str", None)),
        lambda graph, node: graph.mark_failure(node, "E", NO_TEXT),
        lambda graph, node: graph.mark_halt(node, cast("str", math.inf)),
        lambda graph, node: graph.add_late_usage(node, tokens_in=cast("int", math.inf)),
    ],
)
def test_what_no_snapshot_could_hold_is_refused(change: Change) -> None:
    """A second root, a name other than text or a number outside JSON is rejected."""
    graph = ExecutionGraph("chain")
    root = graph.create_root("run")
    node = graph.begin_node(root, "tool", "search")
    before = graph.snapshot()["nodes"]

    with pytest.raises(ValueError, match=r"strings|cost|token|JSON|number|root"):
        change(graph, node)

    assert graph.snapshot()["nodes"] == before
    assert [each["parent_id"] for each in before.values()].count(None) == 1


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))],  # noqa: S301
)
def test_a_graph_can_be_copied(copied: Callable[[ExecutionGraph], ExecutionGraph]) -> None:
    """A copy has the same nodes and totals, and changes independently."""
    graph = ExecutionGraph("chain")
    root = graph.create_root("run")
    graph.mark_success(graph.begin_node(root, "llm", "plan", "nano", {"tier": "small"}), 0.5, 3, 4)

    other = copied(graph)
    other.begin_node(root, "tool", "only in the copy")

    assert other.snapshot()["aggregates"] == graph.snapshot()["aggregates"]
    assert other.node("n000002") == graph.node("n000002")
    assert (len(other.snapshot()["nodes"]), len(graph.snapshot()["nodes"])) == (3, 2)
