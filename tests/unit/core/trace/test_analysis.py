"""Critical path, time shares, costs and the cause of a stop."""

import pytest

from caseworker.core.budget.stops import Suspended
from caseworker.core.trace.analysis import (
    Segment,
    WorkTimes,
    costs_by_model,
    costs_by_tier,
    critical_path,
    first_halted,
    time_shares,
    waited_for_people_ms,
    waiting_nodes,
)
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.explain import explain
from caseworker.core.trace.node import WAITS, WORKER_LOST, NodeKind
from caseworker.core.trace.snapshot import Snapshot
from tests.support.manual_clock import ManualClock


class Script:
    """Builds a graph with times in milliseconds after the root's start."""

    def __init__(self, graph: ExecutionGraph, clock: ManualClock) -> None:
        self._graph, self._clock, self._zero = graph, clock, clock.now
        self.root = graph.create_root("run")

    def at(self, milliseconds: int) -> None:
        self._clock.now = self._zero + milliseconds

    def call(
        self, start: int, end: int | None, parent: str | None = None, kind: NodeKind = "tool",
        name: str = "",
    ) -> str:  # fmt: skip
        self.at(start)
        node_id = self._graph.begin_node(parent or self.root, kind, name or f"{start}-{end}")
        if end is not None:
            self.at(end)
            self._graph.mark_success(node_id, 0)
        return node_id

    def done(self, end: int) -> Snapshot:
        self.at(end)
        self._graph.mark_success(self.root, 0)
        return self._graph.snapshot()

    def path(self, snapshot: Snapshot) -> list[tuple[str, int, int]]:
        nodes = snapshot["nodes"]
        return [
            (nodes[s.node_id]["name"], s.start_ms - self._zero, s.end_ms - self._zero)
            for s in critical_path(WorkTimes.of(snapshot))
        ]


@pytest.mark.req("001/wiring")
def test_two_calls_of_one_agent_are_not_repetitions_of_each_other(graph: ExecutionGraph) -> None:
    """The path distinguishes them, because both nodes have the name of the agent."""
    root = graph.create_root("run")
    asked = graph.begin_node(root, "llm", "turn")
    graph.mark_success(asked, 0)
    lost, other = (
        graph.begin_node(asked, "system", "inner", metadata={"agent": "inner", "path": path})
        for path in ("a/turn/1/tool/1", "a/turn/1/tool/2")
    )
    graph.mark_halt(lost, WORKER_LOST)
    graph.mark_success(other, 0)

    assert first_halted(graph.snapshot()) == graph.node(lost)
    again = graph.begin_node(asked, "system", "inner", metadata=graph.node(lost)["metadata"])
    graph.mark_success(again, 0)
    assert first_halted(graph.snapshot()) is None


@pytest.fixture
def script(graph: ExecutionGraph, clock: ManualClock) -> Script:
    return Script(graph, clock)


def test_the_critical_path_of_a_sequence_is_every_call(script: Script) -> None:
    """The critical path of a sequence contains every call, and the run in the gaps."""
    script.call(10, 30)
    script.call(40, 90)

    assert script.path(script.done(100)) == [
        ("run", 0, 10),
        ("10-30", 10, 30),
        ("run", 30, 40),
        ("40-90", 40, 90),
        ("run", 90, 100),
    ]


def test_the_critical_path_follows_the_branch_that_ended_last(script: Script) -> None:
    """A parallel call that ended earlier is not on the critical path."""
    script.call(0, 40)
    slow = script.call(0, 100)
    script.call(20, 95, slow)

    assert script.path(script.done(100)) == [
        ("0-100", 0, 20),
        ("20-95", 20, 95),
        ("0-100", 95, 100),
    ]


def test_overlapping_calls_share_the_path(script: Script) -> None:
    """Before the last call began, the path follows the call that was still running."""
    script.call(0, 60)
    script.call(50, 100)

    assert script.path(script.done(100)) == [("0-60", 0, 50), ("50-100", 50, 100)]


def test_a_child_may_outlast_its_parent(script: Script) -> None:
    """A tool call below an LLM call may start after it; both are on the critical path."""
    plan = script.call(0, 30, kind="llm", name="plan")
    script.call(40, 100, plan)
    snapshot = script.done(100)

    assert script.path(snapshot) == [("plan", 0, 30), ("run", 30, 40), ("40-100", 40, 100)]
    assert [(s.name, s.own_ms) for s in time_shares(WorkTimes.of(snapshot))] == [
        ("40-100", 60),
        ("plan", 30),
        ("run", 10),
    ]


def test_a_call_of_a_replayed_answer_belongs_to_the_later_try_of_its_step(
    script: Script, graph: ExecutionGraph
) -> None:
    """A tool call of a replayed answer counts for the later attempt of its step.

    It is a child of the LLM call in the lost attempt. If a limit refuses such a call, that call is
    reported as the one that stopped the run.
    """
    lost = script.call(0, None, kind="system", name="a")
    plan = script.call(0, 30, lost, kind="llm", name="plan")
    script.at(40)
    graph.mark_halt(lost, WORKER_LOST)
    again = script.call(50, None, kind="system", name="a")
    script.call(60, 90, plan, name="search")
    refused = script.call(95, None, plan, name="search")
    graph.mark_halt(refused, "limit")
    script.at(100)
    graph.mark_halt(again, "limit")
    snapshot = script.done(100)

    halted = first_halted(snapshot)
    own = {share.name: share.own_ms for share in time_shares(WorkTimes.of(snapshot))}
    assert halted is not None
    assert halted["node_id"] == refused
    assert own == {"run": 10, "a": 10 + 20, "plan": 30, "search": 30}
    assert ("search", 60, 90) in script.path(snapshot)
    assert ("a", 50, 60) in script.path(snapshot)


def test_what_is_still_open_lasts_until_the_snapshot(script: Script, graph: ExecutionGraph) -> None:
    """An open call lasts until the snapshot, so a running run can be analysed."""
    script.call(10, None)
    script.at(50)

    assert script.path(graph.snapshot()) == [("run", 0, 10), ("10-None", 10, 50)]


def test_an_empty_graph_has_no_critical_path(graph: ExecutionGraph) -> None:
    """An empty graph and a run of no duration have no critical path."""
    assert critical_path(WorkTimes.of(graph.snapshot())) == []
    graph.mark_success(graph.create_root("run"), 0)
    assert critical_path(WorkTimes.of(graph.snapshot())) == []


def test_a_chain_of_thousands_is_no_problem(graph: ExecutionGraph, clock: ManualClock) -> None:
    """A chain of 3000 nodes is analysed without recursion."""
    node_id = graph.create_root("run")
    for _ in range(3000):
        clock.advance(1)
        node_id = graph.begin_node(node_id, "system", "deeper")

    assert len(critical_path(WorkTimes.of(graph.snapshot()))) == 3000
    assert sum(share.own_ms for share in time_shares(WorkTimes.of(graph.snapshot()))) == 3000


def test_attempts_are_part_of_their_call(
    script: Script, graph: ExecutionGraph, clock: ManualClock
) -> None:
    """Attempts are part of their call and appear in neither time shares nor critical path."""
    call = script.call(0, None, kind="llm", name="plan")
    graph.add_ended(
        call, "system", "attempt", status="fail", start_ts_ms=clock.now, end_ts_ms=clock.now + 40
    )
    script.at(100)
    graph.mark_success(call, 0)
    snapshot = script.done(100)

    assert [(s.kind, s.name, s.count, s.own_ms) for s in time_shares(WorkTimes.of(snapshot))] == [
        ("llm", "plan", 1, 100),
        ("system", "run", 1, 0),
    ]
    assert script.path(snapshot) == [("plan", 0, 100)]


def test_time_is_shared_between_calls_of_one_sort(script: Script) -> None:
    """Own time excludes children and counts overlaps once; the longest share is first."""
    outer = script.call(0, 100, kind="llm", name="plan")
    script.call(10, 60, outer, name="search")
    script.call(20, 40, outer, name="search")
    script.call(50, 80, outer, name="search")

    assert [(s.name, s.count, s.own_ms) for s in time_shares(WorkTimes.of(script.done(100)))] == [
        ("search", 3, 100),
        ("plan", 1, 30),
        ("run", 1, 0),
    ]


def test_the_items_of_a_map_are_one_sort(graph: ExecutionGraph, root: str) -> None:
    """All items of a map, including nested steps and retries, share one row."""

    def step(parent: str, name: str, kind: str) -> str:
        return graph.begin_node(parent, "system", name, metadata={"step_type": kind})

    each = step(root, "each", "map")
    for attempt in ("each", "each~2"):
        below = each if attempt == "each" else graph.begin_node(each, "system", "attempt")
        for item in range(3):
            step(step(below, f"{attempt}/{item}", "subgraph"), f"{attempt}/{item}/say", "llm")
    step(step(root, "inner", "subgraph"), "inner/7", "llm")

    counts = {share.name: share.count for share in time_shares(WorkTimes.of(graph.snapshot()))}

    assert counts.items() >= {"each": 1, "each/*": 6, "each/*/say": 6, "inner/7": 1}.items()
    assert len(counts) == 6


def test_cost_is_grouped_by_model_and_tier(graph: ExecutionGraph, root: str) -> None:
    """Costs per model and tier include failed calls, with the most expensive first."""
    for model, tier, cost in [("nano", "small", 0.25), ("gpt", "big", 2), ("nano", "small", 0.5)]:
        node_id = graph.begin_node(root, "llm", "plan", model, {"tier": tier})
        graph.mark_success(node_id, cost, 10, 5)
    lost = graph.begin_node(root, "llm", "plan", "nano")
    graph.mark_failure(lost, "E", cost_usd=0.125)

    costs = costs_by_model(graph.snapshot())

    assert [(c.model, c.tier, c.count, c.cost_usd, c.tokens_in, c.tokens_out) for c in costs] == [
        ("gpt", "big", 1, 2.0, 10, 5),
        ("nano", "small", 2, 0.75, 20, 10),
        ("nano", None, 1, 0.125, 0, 0),
    ]


def test_a_tier_costs_what_its_models_cost(graph: ExecutionGraph, root: str) -> None:
    """Costs per tier are exact, with the most expensive first; calls without a tier are kept."""
    calls = [("nano", "small", 0.1), ("mini", "small", 0.2), ("gpt", "big", 2), ("old", None, 0.5)]
    for model, tier, cost in calls:
        node_id = graph.begin_node(root, "llm", "plan", model, {"tier": tier} if tier else None)
        graph.mark_success(node_id, cost, 10, 5)
    graph.mark_success(graph.begin_node(root, "tool", "search"), 1)

    costs = costs_by_tier(graph.snapshot())

    assert [(c.tier, c.count, c.cost_usd, c.tokens_in, c.tokens_out) for c in costs] == [
        ("big", 1, 2.0, 10, 5),
        (None, 1, 0.5, 10, 5),
        ("small", 2, 0.3, 20, 10),
    ]


def test_the_refused_call_is_the_one_that_hit_the_limit(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """The refused call is reported, not its neighbours that were halted in the same millisecond."""
    graph.begin_node(root, "llm", "parallel")
    clock.advance(100)
    refused = graph.begin_node(root, "llm", "one too many")
    graph.close_open("budget")
    graph.mark_halt(root, "budget")

    assert first_halted(graph.snapshot()) == graph.node(refused)


def test_of_halts_within_one_millisecond_the_youngest_node_is_the_refused_call(
    graph: ExecutionGraph, root: str
) -> None:
    """Of several halts in one millisecond, the youngest node is the refused call."""
    step = graph.begin_node(root, "system", "step")
    refused = graph.begin_node(step, "tool", "refused")
    graph.mark_halt(refused, "budget")
    graph.mark_halt(step, "budget")
    graph.mark_halt(root, "budget")

    assert first_halted(graph.snapshot()) == graph.node(refused)


def test_a_node_that_ended_with_its_run_did_not_stop_it(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """A node that was halted because its run ended did not stop it, even if it began last."""
    limit = graph.begin_node(root, "llm", "plan")
    clock.advance(5)
    graph.begin_node(root, "tool", "bystander")
    clock.advance(5)
    graph.mark_halt(limit, "budget")
    graph.mark_halt(root, "budget")

    assert first_halted(graph.snapshot()) == graph.node(limit)


def test_a_call_that_was_lost_with_its_worker_and_made_again_stopped_nothing(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """A call that was lost and retried did not stop the run; parallel calls are not retries."""
    lost = graph.begin_node(root, "system", "slow")
    graph.begin_node(lost, "tool", "calculator")
    clock.advance(5)
    graph.mark_halt(lost, "worker_lost")
    assert first_halted(graph.snapshot()) == graph.node(lost)

    again = graph.begin_node(root, "system", "slow")
    assert first_halted(graph.snapshot()) is None

    calls = [graph.begin_node(again, "llm", "answer") for _ in range(2)]
    clock.advance(5)
    graph.mark_halt(calls[0], "cancelled")
    graph.mark_halt(calls[1], "cancelled")
    assert first_halted(graph.snapshot()) in [graph.node(call) for call in calls]


def test_what_waits_for_a_person_is_what_was_given_up_last(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """Only nodes of the current question wait; nodes of an answered question are halted."""
    assert str(Suspended(frozenset())) == WAITS
    before = graph.begin_node(root, "system", "first")
    graph.begin_node(before, "system", "approval of note")
    clock.advance(5)
    graph.close_open(WAITS)
    asked = waiting_nodes(graph.snapshot())
    assert len(asked) == 3
    assert {root, before} < asked

    graph.mark_success(graph.begin_node(root, "system", "first", running=True), 0)
    second = graph.begin_node(root, "system", "second")
    approval = graph.begin_node(second, "system", "approval of note")
    clock.advance(5)
    graph.close_open(WAITS)
    snapshot = graph.snapshot()
    assert waiting_nodes(snapshot) == {root, second, approval}
    assert first_halted(snapshot) is None

    text = explain(snapshot, waiting=True)
    assert text.splitlines()[0] == "Run chain-1 is waiting after 10 ms."
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("n0")}
    assert "waiting" in rows[second]
    assert "waiting" in rows[approval]
    assert "halted" in rows[before]


def test_a_halted_root_alone_stopped_by_itself(graph: ExecutionGraph, root: str) -> None:
    """A run that was cancelled before its first call has its root as the first halted node."""
    assert first_halted(graph.snapshot()) is None
    graph.mark_halt(root, "cancelled")

    assert first_halted(graph.snapshot()) == graph.node(root)


def test_segments_name_nodes(script: Script) -> None:
    """A segment holds the node ID and UTC times in milliseconds."""
    snapshot = script.done(5)
    start = snapshot["nodes"][script.root]["start_ts_ms"]

    assert critical_path(WorkTimes.of(snapshot)) == [
        Segment(node_id=script.root, start_ms=start, end_ms=start + 5)
    ]


def test_the_time_of_a_person_belongs_to_the_question(
    script: Script, graph: ExecutionGraph
) -> None:
    """Time in which a run is suspended counts for its approval, not for run or agent."""
    question = {"approval_id": "q"}

    def asks(start: int) -> tuple[str, str]:
        script.at(start)
        agent = graph.begin_node(script.root, "system", "agent")
        return agent, graph.begin_node(agent, "system", "approval of pay", metadata=question)

    first = asks(100)
    script.at(300)
    for node_id in first[::-1]:
        graph.mark_halt(node_id, WAITS)
    agent, node_id = asks(10_300)
    graph.mark_success(node_id, 0)
    script.call(10_300, 10_500, agent)
    graph.mark_success(agent, 0)
    snapshot = script.done(10_600)

    shares = {share.name: share.own_ms for share in time_shares(WorkTimes.of(snapshot))}
    assert shares["approval of pay"] == 10_200
    assert shares["agent"] == 0
    assert shares["run"] == 200
    assert ("approval of pay", 100, 10_300) in script.path(snapshot)
    assert waited_for_people_ms(snapshot) == 10_200
    assert "Waited 10.20 s for approvals." in explain(snapshot)
