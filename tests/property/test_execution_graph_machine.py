"""Every sequence of calls leaves the graph equal to a plain model of document 001."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.snapshot import Snapshot
from tests.support.graph_invariants import assert_no_regression, assert_sound
from tests.support.manual_clock import ManualClock

COSTS = st.decimals(0, 1000, places=6) | st.integers(0, 3) | st.sampled_from([0.1, 0.0042])
TOKENS = st.none() | st.integers(0, 10_000)
USAGE = st.fixed_dictionaries({"cost_usd": COSTS, "tokens_in": TOKENS, "tokens_out": TOKENS})
METADATA = st.none() | st.dictionaries(st.text(max_size=3), st.integers() | st.lists(st.text()))
IMPOSSIBLE = st.sampled_from(
    [{"cost_usd": -1}, {"cost_usd": float("nan")}, {"cost_usd": 1, "tokens_in": -1}]
)
ENDED = ("success", "fail", "halt")


class GraphMachine(RuleBasedStateMachine):
    """Compares the graph with a list of plain dicts that follows the document's rules."""

    nodes = Bundle("nodes")
    calls = Bundle("calls")
    """All nodes but the root, whose end would end the sequence too early."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.graph = ExecutionGraph("chain", now_ms=self.clock)
        self.model: dict[str, dict[str, Any]] = {}
        self.cost = Decimal(0)
        self.last: Snapshot = self.graph.snapshot()
        self.journal: dict[str, Any] = {}
        self.revision = 0

    @initialize(target=nodes, metadata=METADATA)
    def create_root(self, metadata: dict[str, Any] | None) -> str:
        return self._expect(self.graph.create_root("run", metadata), None, "system", metadata)

    @rule()
    def create_a_second_root(self) -> None:
        with pytest.raises(RuntimeError):
            self.graph.create_root("again")

    @rule(
        targets=(nodes, calls),
        parent=nodes,
        kind=st.sampled_from(["llm", "tool", "system"]),
        m=METADATA,
    )
    def begin(self, parent: str, kind: Any, m: dict[str, Any] | None) -> Any:
        if self._root_ended:
            with pytest.raises(RuntimeError):
                self.graph.begin_node(parent, kind, "late")
            return multiple()
        return self._expect(self.graph.begin_node(parent, kind, "call", "m", m), parent, kind, m)

    @rule(parent=st.sampled_from(["n000000", "n999999", "x"]))
    def begin_below_nothing(self, parent: str) -> None:
        if not self._root_ended:
            with pytest.raises(KeyError):
                self.graph.begin_node(parent, "llm", "call")

    @rule(node=nodes)
    def run(self, node: str) -> None:
        assert self.graph.mark_running(node) == (self.model[node]["status"] == "created")
        if self.model[node]["status"] == "created":
            self.model[node]["status"] = "running"

    @rule(node=calls, usage=USAGE)
    def succeed(self, node: str, usage: dict[str, Any]) -> None:
        self._ended(node, self.graph.mark_success(node, **usage), "success", None, None, usage)

    @rule(node=calls, usage=USAGE)
    def fail(self, node: str, usage: dict[str, Any]) -> None:
        done = self.graph.mark_failure(node, "E", "why", **usage)
        self._ended(node, done, "fail", "why", "E", usage)

    @rule(node=calls, usage=USAGE)
    def halt(self, node: str, usage: dict[str, Any]) -> None:
        done = self.graph.mark_halt(node, "limit", **usage)
        self._ended(node, done, "halt", "limit", None, usage)

    @rule(node=calls, usage=IMPOSSIBLE)
    def use_the_impossible(self, node: str, usage: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="from 0"):
            self.graph.mark_success(node, **usage)
        with pytest.raises(ValueError, match="from 0"):
            self.graph.add_late_usage(node, **usage)

    @precondition(lambda self: len(self.model) > 12)
    @rule(mark=st.sampled_from(["succeed", "fail", "halt"]), usage=USAGE)
    def end_the_root(self, mark: str, usage: dict[str, Any]) -> None:
        getattr(self, mark)("n000001", usage)

    @rule(node=nodes)
    def retry(self, node: str) -> None:
        self.graph.increment_retries(node)
        self.model[node]["retries_used"] += self.model[node]["status"] not in ENDED

    @rule(node=calls, usage=USAGE)
    def use_late(self, node: str, usage: dict[str, Any]) -> None:
        known = self.model[node]
        if known["status"] not in ENDED:
            with pytest.raises(RuntimeError):
                self.graph.add_late_usage(node, **usage)
            return
        self.graph.add_late_usage(node, **usage)
        self._pay(known, usage)

    @rule(parent=nodes, start=st.integers(0, 10**12), lasted=st.integers(0, 10**6))
    def add_ended(self, parent: str, start: int, lasted: int) -> None:
        if self._root_ended:
            return
        end = start + lasted
        node = self.graph.add_ended(
            parent, "system", "attempt", status="fail", start_ts_ms=start, end_ts_ms=end
        )
        self._expect(node, parent, "system", None)
        changes = {"name": "attempt", "model": None, "status": "fail"}
        self.model[node] |= {**changes, "start_ts_ms": start, "end_ts_ms": end}

    @rule(top=nodes)
    def close_branch(self, top: str) -> None:
        closed = self.graph.close_open("stop", top=top)
        assert closed == self._close_below(top, "stop")

    @rule(milliseconds=st.integers(-1000, 1000))
    def let_time_pass(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def crash_and_restore(self) -> None:
        self.write_journal()
        rows = reversed(self.journal.values())
        self.graph = ExecutionGraph.restore("chain", rows, now_ms=self.clock)
        self.revision = self.graph.revision

    @rule()
    def write_journal(self) -> None:
        self.revision, changed = self.graph.changed_since(self.revision)
        self.journal |= {node["node_id"]: node for node in changed}
        assert self.journal == self.model

    @invariant()
    def the_graph_is_as_the_model_says(self) -> None:
        snapshot = self.graph.snapshot()
        assert snapshot["nodes"] == self.model
        assert list(snapshot["nodes"]) == list(self.model)
        assert snapshot["aggregates"]["total_cost_usd"] == pytest.approx(float(self.cost))

    @invariant()
    def every_snapshot_is_sound_and_nothing_goes_back(self) -> None:
        snapshot = self.graph.snapshot()
        assert_sound(snapshot)
        assert_no_regression(self.last, snapshot)
        self.last = snapshot

    @property
    def _root_ended(self) -> bool:
        return bool(self.model["n000001"]["status"] in ENDED)

    def _expect(self, node: str, parent: str | None, kind: str, m: dict[str, Any] | None) -> str:
        assert node == f"n{len(self.model) + 1:06d}"
        self.model[node] = {
            "node_id": node,
            "parent_id": parent,
            "kind": kind,
            "name": "call" if parent else "run",
            "start_ts_ms": self.clock.now,
            "end_ts_ms": None,
            "status": "created",
            "model": "m" if parent else None,
            "retries_used": 0,
            "cost_usd": 0.0,
            "tokens_in": None,
            "tokens_out": None,
            "stop_reason": None,
            "error_class": None,
            "metadata": m or {},
        }
        return node

    def _ended(
        self,
        node: str,
        done: bool,
        status: str,
        stop_reason: str | None,
        error_class: str | None,
        usage: dict[str, Any],
    ) -> None:
        known = self.model[node]
        assert done == (known["status"] not in ENDED)
        if not done:
            return
        if node == "n000001":
            self._close_below(node, "the run ended")
        known |= {"status": status, "stop_reason": stop_reason, "error_class": error_class}
        known["end_ts_ms"] = max(self.clock.now, known["start_ts_ms"])
        self._pay(known, usage)

    def _pay(self, known: dict[str, Any], usage: dict[str, Any]) -> None:
        cost = Decimal(str(usage["cost_usd"]))
        self.cost += cost
        known["cost_usd"] = float(Decimal(str(known["cost_usd"])) + cost)
        for field in ("tokens_in", "tokens_out"):
            if usage[field] is not None:
                known[field] = (known[field] or 0) + usage[field]

    def _close_below(self, top: str, reason: str) -> list[str]:
        closed = [n for n in self.model if top in self._ancestors(n)]
        closed = [n for n in closed if self.model[n]["status"] not in ENDED]
        for node in closed:
            end = max(self.clock.now, self.model[node]["start_ts_ms"])
            self.model[node] |= {"status": "halt", "stop_reason": reason, "end_ts_ms": end}
        return sorted(closed, key=lambda node: -len(self._ancestors(node)))

    def _ancestors(self, node: str) -> list[str]:
        parent = self.model[node]["parent_id"]
        return [] if parent is None else [parent, *self._ancestors(parent)]


TestExecutionGraph = pytest.mark.req(
    "001/inv1", "001/inv2", "001/inv3", "001/inv4", "001/aggregates", "001/node", "001/mark"
)(GraphMachine.TestCase)
TestExecutionGraph.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
