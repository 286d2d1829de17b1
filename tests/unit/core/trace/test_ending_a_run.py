"""A closed root has no open nodes below it."""

from collections.abc import Callable

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from tests.support.graph_invariants import assert_sound
from tests.support.manual_clock import ManualClock


@pytest.fixture
def deep(graph: ExecutionGraph, root: str) -> ExecutionGraph:
    """Two branches: n2 > n3 (ended) > n4, and n5 > n6."""
    graph.begin_node(root, "system", "left")
    graph.begin_node("n000002", "llm", "plan")
    graph.mark_success("n000003", 0.5)
    graph.begin_node("n000003", "tool", "search")
    graph.begin_node(root, "system", "right")
    graph.begin_node("n000005", "llm", "compose")
    return graph


def statuses(graph: ExecutionGraph) -> list[str]:
    return [node["status"] for node in graph.snapshot()["nodes"].values()]


def test_closing_halts_what_is_open_deepest_first(deep: ExecutionGraph, clock: ManualClock) -> None:
    """Open nodes are halted deepest first; the root stays open and ended nodes stay unchanged."""
    clock.advance(70)

    assert deep.close_open("cancelled") == ["n000004", "n000006", "n000002", "n000005"]

    assert statuses(deep) == ["created", "halt", "success", "halt", "halt", "halt"]
    left = deep.node("n000002")
    assert (left["stop_reason"], left["end_ts_ms"]) == ("cancelled", clock.now)
    assert deep.close_open("again") == []


def test_one_branch_can_be_closed(deep: ExecutionGraph) -> None:
    """Closing one branch, even below an ended node, leaves the other branch open."""
    assert deep.close_open("timeout", top="n000002") == ["n000004"]
    assert statuses(deep) == ["created", "created", "success", "halt", "created", "created"]
    assert deep.close_open("timeout", top="n000005") == ["n000006"]
    assert deep.close_open("cancelled", top="n000001") == ["n000002", "n000005"]


def test_an_empty_graph_has_nothing_to_close() -> None:
    """Closing an empty graph halts nothing."""
    assert ExecutionGraph().close_open("cancelled") == []


@pytest.mark.parametrize(
    "end",
    [
        lambda graph: graph.mark_success("n000001", 0),
        lambda graph: graph.mark_failure("n000001", "E"),
        lambda graph: graph.mark_halt("n000001", "budget"),
    ],
)
def test_ending_the_root_ends_all_below_it(
    deep: ExecutionGraph, end: Callable[[ExecutionGraph], bool]
) -> None:
    """Ending the root ends all nodes below it atomically, so no snapshot shows an open one."""
    assert end(deep)

    snapshot = deep.snapshot()
    assert_sound(snapshot)
    assert [node["stop_reason"] for node in snapshot["nodes"].values()].count("the run ended") == 4
    assert snapshot["aggregates"]["total_cost_usd"] == 0.5


def test_nothing_begins_below_a_closed_root(deep: ExecutionGraph) -> None:
    """After the root ended, neither a call nor an ended attempt can be added."""
    deep.mark_halt("n000001")
    before = deep.snapshot()

    with pytest.raises(RuntimeError, match="the root has ended"):
        deep.begin_node("n000002", "llm", "late")
    with pytest.raises(RuntimeError, match="the root has ended"):
        deep.add_ended("n000002", "system", "attempt", status="fail", start_ts_ms=1, end_ts_ms=2)

    assert deep.snapshot() == before


def test_late_usage_still_reaches_a_closed_run(deep: ExecutionGraph) -> None:
    """Late usage of an abandoned call is added after the root ended."""
    deep.mark_halt("n000001")

    deep.add_late_usage("n000006", cost_usd=0.25)

    assert deep.snapshot()["aggregates"]["total_cost_usd"] == 0.75
    assert_sound(deep.snapshot())
