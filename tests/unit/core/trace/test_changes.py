"""Incremental changes of a graph, for an append-only journal."""

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph


def test_every_change_is_told_once(graph: ExecutionGraph, root: str) -> None:
    """Each revision range returns a changed node once, in its final state."""
    revision, nodes = graph.changed_since(0)
    assert [node["node_id"] for node in nodes] == [root]

    node_id = graph.begin_node(root, "llm", "plan", metadata={"step": "a"})
    graph.mark_running(node_id)
    graph.increment_retries(node_id)
    revision, nodes = graph.changed_since(revision)
    assert nodes == [graph.node(node_id)]
    assert (nodes[0]["status"], nodes[0]["retries_used"]) == ("running", 1)

    graph.mark_success(node_id, 1)
    graph.add_late_usage(node_id, cost_usd=1)
    revision, nodes = graph.changed_since(revision)
    assert [(node["status"], node["cost_usd"]) for node in nodes] == [("success", 2)]

    assert graph.changed_since(revision) == (revision, [])


def test_a_parent_is_told_before_its_children(graph: ExecutionGraph, root: str) -> None:
    """Parents are returned before their children, so a journal row never lacks its parent."""
    child = graph.begin_node(root, "llm", "plan")
    grandchild = graph.begin_node(child, "tool", "search")
    graph.mark_running(grandchild)
    graph.mark_running(child)

    assert [n["node_id"] for n in graph.changed_since(0).nodes] == [root, child, grandchild]


def test_a_closed_branch_is_told_whole(graph: ExecutionGraph, root: str) -> None:
    """Nodes that ended with the root are returned as changes."""
    graph.begin_node(root, "llm", "plan")
    revision = graph.revision
    graph.mark_halt(root)

    assert {n["node_id"] for n in graph.changed_since(revision).nodes} == {root, "n000002"}


def test_a_small_change_of_a_large_graph_is_a_small_answer(
    graph: ExecutionGraph, root: str
) -> None:
    """A change of an old node returns only that node, even in a large graph."""
    for _ in range(3000):
        graph.mark_success(graph.begin_node(root, "llm", "plan"), 0)
    revision = graph.revision
    graph.mark_running(root)

    assert graph.changed_since(revision) == (revision + 1, [graph.node(root)])


@pytest.mark.parametrize("revision", [-1, 2])
def test_a_revision_that_never_was_is_refused(
    graph: ExecutionGraph, root: str, revision: int
) -> None:
    """An unknown revision is rejected instead of returning nothing."""
    with pytest.raises(ValueError, match="the graph is at 1"):
        graph.changed_since(revision)
