"""Creation, changes and end of nodes."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.json_values import Metadata
from caseworker.core.trace.node import FIELDS, TraceNode
from tests.support.manual_clock import ManualClock

End = Callable[[ExecutionGraph, str], bool]

ENDS: dict[str, End] = {
    "success": lambda graph, node_id: graph.mark_success(node_id, 0.5, 3, 4),
    "fail": lambda graph, node_id: graph.mark_failure(node_id, "TimeoutError", "too slow"),
    "halt": lambda graph, node_id: graph.mark_halt(node_id, "cost ceiling exceeded"),
}


def node_of(graph: ExecutionGraph, node_id: str) -> TraceNode:
    return graph.snapshot()["nodes"][node_id]


@pytest.mark.req("001/inv1")
def test_node_ids_count_up_from_n000001(graph: ExecutionGraph, root: str) -> None:
    """Node IDs have six digits and count up in the order of creation."""
    first = graph.begin_node(root, "llm", "plan")
    graph.mark_halt(first)

    assert (root, first, graph.begin_node(first, "tool", "search")) == (
        "n000001",
        "n000002",
        "n000003",
    )


@pytest.mark.req("001/inv1")
def test_node_ids_grow_longer_after_six_digits() -> None:
    """After n999999, node IDs continue with seven digits."""
    graph = ExecutionGraph("long")
    root: dict[str, Any] = {**node_of_new_root(), "node_id": "n999998"}

    graph = ExecutionGraph.restore("long", [root])

    assert graph.begin_node("n999998", "llm", "a") == "n999999"
    assert graph.begin_node("n999998", "llm", "b") == "n1000000"
    assert list(graph.snapshot()["nodes"]) == ["n999998", "n999999", "n1000000"]


def node_of_new_root() -> TraceNode:
    graph = ExecutionGraph()
    return node_of(graph, graph.create_root("run"))


@pytest.mark.req("001/create_root")
def test_the_root_is_a_system_node_without_parent_at_depth_0(graph: ExecutionGraph) -> None:
    """The root is the snapshot's root_id and has depth 0."""
    root = graph.create_root("agent_run", {"request_id": "req-1"})

    node = node_of(graph, root)
    assert (node["kind"], node["parent_id"], node["status"]) == ("system", None, "created")
    assert node["metadata"] == {"request_id": "req-1"}
    assert graph.root_id == graph.snapshot()["root_id"] == root
    assert graph.snapshot()["aggregates"]["max_depth"] == 0


@pytest.mark.req("001/create_root")
def test_a_second_root_is_refused(graph: ExecutionGraph, root: str) -> None:
    """Creating a second root fails and leaves the first one."""
    with pytest.raises(RuntimeError, match=root):
        graph.create_root("another")

    assert list(graph.snapshot()["nodes"]) == [root]


@pytest.mark.req("001/begin_node", "001/inv2")
def test_a_node_needs_a_parent_that_exists(graph: ExecutionGraph, root: str) -> None:
    """An unknown parent raises KeyError, so every node descends from the root."""
    with pytest.raises(KeyError, match="n000099"):
        graph.begin_node("n000099", "llm", "plan")

    assert list(graph.snapshot()["nodes"]) == [root]
    assert graph.begin_node(root, "llm", "plan") == "n000002"


@pytest.mark.req("001/inv2")
def test_nothing_begins_in_a_graph_without_root(graph: ExecutionGraph) -> None:
    """Beginning a node before the root exists raises KeyError."""
    with pytest.raises(KeyError):
        graph.begin_node("n000001", "llm", "plan")


@pytest.mark.req("001/begin_node")
def test_a_child_stands_one_deeper_than_its_parent(graph: ExecutionGraph, root: str) -> None:
    """max_depth is the depth of the deepest node ever added."""
    plan = graph.begin_node(root, "llm", "plan")
    graph.begin_node(graph.begin_node(plan, "tool", "search"), "system", "fetch")
    graph.begin_node(root, "llm", "compose")

    assert graph.snapshot()["aggregates"]["max_depth"] == 3


@pytest.mark.req("001/begin_node")
def test_an_unknown_kind_is_refused(graph: ExecutionGraph, root: str) -> None:
    """A kind other than llm, tool or system is rejected, and no node is created."""
    with pytest.raises(ValueError, match="memory"):
        graph.begin_node(root, "memory", "read")  # type: ignore[arg-type]

    assert list(graph.snapshot()["nodes"]) == [root]


@pytest.mark.req("001/node")
def test_a_node_has_the_15_fields_of_the_document(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """A new node has the documented fields, order and initial values."""
    clock.now = 1_740_000_000_050
    node_id = graph.begin_node(root, "llm", "plan_step", "claude-sonnet-4-6", {"tier": "big"})

    expected = {
        "node_id": node_id,
        "parent_id": root,
        "kind": "llm",
        "name": "plan_step",
        "start_ts_ms": 1_740_000_000_050,
        "end_ts_ms": None,
        "status": "created",
        "model": "claude-sonnet-4-6",
        "retries_used": 0,
        "cost_usd": 0.0,
        "tokens_in": None,
        "tokens_out": None,
        "stop_reason": None,
        "error_class": None,
        "metadata": {"tier": "big"},
    }
    node = node_of(graph, node_id)
    assert node == expected
    assert tuple(node) == tuple(expected) == FIELDS


@pytest.mark.req("001/mark", "001/node")
def test_success_records_end_cost_and_tokens(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """The documented example yields its end time, cost and tokens."""
    node_id = graph.begin_node(root, "llm", "plan_step")
    clock.advance(50)
    assert graph.mark_running(node_id)
    clock.advance(1150)
    assert graph.mark_success(node_id, cost_usd=0.0042, tokens_in=120, tokens_out=80)

    node = node_of(graph, node_id)
    assert node["status"] == "success"
    assert node["end_ts_ms"] == node["start_ts_ms"] + 1200
    assert (node["cost_usd"], node["tokens_in"], node["tokens_out"]) == (0.0042, 120, 80)


@pytest.mark.req("001/mark", "001/inv3")
@pytest.mark.parametrize("running", [True, False])
def test_failure_and_halt_may_come_before_running(
    graph: ExecutionGraph, root: str, running: bool
) -> None:
    """A node may fail or halt before it ran, and keeps its reasons."""
    failed, halted = graph.begin_node(root, "tool", "a"), graph.begin_node(root, "tool", "b")
    if running:
        assert graph.mark_running(failed)
        assert graph.mark_running(halted)

    assert graph.mark_failure(failed, error_class="RateLimitError", stop_reason="429")
    assert graph.mark_halt(halted, stop_reason="cost ceiling exceeded")

    nodes = graph.snapshot()["nodes"]
    assert (nodes[failed]["status"], nodes[failed]["error_class"]) == ("fail", "RateLimitError")
    assert nodes[failed]["stop_reason"] == "429"
    assert (nodes[halted]["status"], nodes[halted]["error_class"]) == ("halt", None)
    assert nodes[halted]["stop_reason"] == "cost ceiling exceeded"


@pytest.mark.req("001/inv3", "001/mark")
@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("then", [*ENDS, "running", "retry"])
def test_a_terminal_node_stays_as_it_ended(
    graph: ExecutionGraph, root: str, clock: ManualClock, first: str, then: str
) -> None:
    """Later marks change neither the ended node nor the totals nor the revision."""
    node_id = graph.begin_node(root, "llm", "plan")
    ENDS[first](graph, node_id)
    before, revision = graph.snapshot(), graph.revision
    clock.advance(10)

    if then == "retry":
        graph.increment_retries(node_id)
    else:
        mark = ENDS.get(then) or (lambda graph, node_id: graph.mark_running(node_id))
        assert mark(graph, node_id) is False

    assert graph.snapshot() == {**before, "snapshot_ts_ms": clock.now}
    assert graph.revision == revision


@pytest.mark.req("001/mark")
def test_running_twice_is_running_once(graph: ExecutionGraph, root: str) -> None:
    """A second ``mark_running`` returns False and changes nothing."""
    assert graph.mark_running(root)
    assert not graph.mark_running(root)
    assert node_of(graph, root)["status"] == "running"


@pytest.mark.req("001/inv3")
def test_a_success_that_was_never_marked_running_passes_through_it(
    graph: ExecutionGraph, root: str
) -> None:
    """A success without ``mark_running`` is recorded, and the node cannot run afterwards."""
    node_id = graph.begin_node(root, "tool", "add")

    assert graph.mark_success(node_id, 0)
    assert not graph.mark_running(node_id)
    assert node_of(graph, node_id)["status"] == "success"


@pytest.mark.req("001/mark")
@pytest.mark.parametrize(
    "call",
    [
        lambda graph: graph.mark_running("n000042"),
        lambda graph: graph.mark_success("n000042", 0),
        lambda graph: graph.mark_failure("n000042", "E"),
        lambda graph: graph.mark_halt("n000042"),
        lambda graph: graph.increment_retries("n000042"),
        lambda graph: graph.add_late_usage("n000042", cost_usd=1),
        lambda graph: graph.annotate("n000042", {"waited_ms": 1}),
        lambda graph: graph.step_of("n000042"),
        lambda graph: graph.node("n000042"),
        lambda graph: graph.close_open("stop", top="n000042"),
    ],
)
def test_an_unknown_node_is_a_key_error(
    graph: ExecutionGraph, root: str, call: Callable[[ExecutionGraph], object]
) -> None:
    """Every method that takes a node ID raises KeyError with an unknown one."""
    with pytest.raises(KeyError, match="n000042"):
        call(graph)

    assert graph.revision == 1


def test_a_node_never_ends_before_it_starts(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """A node's end is never before its start, even if the clock goes backwards."""
    node_id = graph.begin_node(root, "llm", "plan")
    clock.advance(-5_000)
    graph.mark_success(node_id, 0)

    node = node_of(graph, node_id)
    assert node["end_ts_ms"] == node["start_ts_ms"]


def test_an_attempt_can_be_added_with_its_real_times(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """The first attempt is added with its own times when the second one begins."""
    call = graph.begin_node(root, "llm", "plan")
    start = clock.now
    clock.advance(900)

    attempt = graph.add_ended(
        call,
        "system",
        "attempt",
        status="fail",
        start_ts_ms=start,
        end_ts_ms=start + 300,
        error_class="RateLimitError",
        stop_reason="429",
    )

    node = node_of(graph, attempt)
    assert (node["start_ts_ms"], node["end_ts_ms"]) == (start, start + 300)
    assert (node["status"], node["error_class"]) == ("fail", "RateLimitError")
    assert node["parent_id"] == call
    assert graph.snapshot()["aggregates"]["max_depth"] == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"status": "running"},
        {"start_ts_ms": 9, "end_ts_ms": 8},
        {"kind": "memory"},
        {"status": "halt", "error_class": "E"},
        {"metadata": {"a": {1}}},
    ],
)
def test_an_added_node_must_have_ended(
    graph: ExecutionGraph, root: str, bad: dict[str, Any]
) -> None:
    """An added node needs a terminal status, ordered times and valid metadata."""
    good: dict[str, Any] = {"kind": "system", "status": "fail", "start_ts_ms": 1, "end_ts_ms": 2}
    with pytest.raises(ValueError, match=r"not|invalid end of a node"):
        graph.add_ended(root, name="attempt", **{**good, **bad})

    assert list(graph.snapshot()["nodes"]) == [root]


def test_a_chain_is_named_by_a_random_uuid_unless_told() -> None:
    """Chain IDs are random UUIDs by default, so two graphs do not collide."""
    first, second = ExecutionGraph(), ExecutionGraph()

    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first.chain_id)
    assert first.chain_id != second.chain_id
    assert ExecutionGraph("chain-7").snapshot()["chain_id"] == "chain-7"


def test_a_step_begins_and_ends_as_any_running_system_node_that_used_nothing(
    graph: ExecutionGraph, root: str
) -> None:
    """``begin_step`` leaves the same node and totals as the general method."""
    details = Metadata({"step_type": "function"})
    before = graph.revision
    node = graph.begin_node(root, "system", "step", None, details, running=True)
    assert graph.mark_success(node, 0)
    changes = graph.revision - before
    step = graph.begin_step(root, "step", details)
    assert node_of(graph, step)["status"] == "running"

    assert graph.mark_success(step)
    assert not graph.mark_success(step)
    assert graph.revision - before == 2 * changes
    assert node_of(graph, step) == {**node_of(graph, node), "node_id": step}
    assert graph.snapshot()["aggregates"]["max_depth"] == 1


def test_the_retries_of_a_step_count_when_it_ends(graph: ExecutionGraph, root: str) -> None:
    """Retries of a step count when it ends."""
    step = graph.begin_step(root, "step", Metadata({}))
    graph.increment_retries(step)

    graph.mark_success(step)

    assert graph.snapshot()["aggregates"]["total_retries"] == 1


def test_a_step_is_refused_where_any_node_would_be(graph: ExecutionGraph, root: str) -> None:
    """A step is rejected below an unknown parent and below an ended root."""
    details = Metadata({"step_type": "function"})
    with pytest.raises(KeyError):
        graph.begin_step("n999999", "step", details)
    with pytest.raises(KeyError):
        graph.mark_success("n999999")
    graph.mark_success(root, 0)

    with pytest.raises(RuntimeError):
        graph.begin_step(root, "step", details)
