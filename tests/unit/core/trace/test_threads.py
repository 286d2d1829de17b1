"""Concurrent changes of one graph by many threads."""

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import TERMINAL, TraceNode
from caseworker.core.trace.snapshot import GraphCapture, Snapshot
from tests.support.graph_invariants import assert_no_regression, assert_sound, violations

THREADS = 8


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Switch threads as often as possible to provoke races."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Worker:
    """Applies random operations to a graph, on its own nodes and shared ones."""

    def __init__(self, graph: ExecutionGraph, root: str, seed: int, operations: int) -> None:
        self._graph = graph
        self._random = random.Random(seed)
        self._operations = operations
        self._nodes = [root]
        self.begun: list[str] = []
        self.succeeded = 0
        self.seen: list[tuple[GraphCapture, Snapshot]] = []

    def work(self) -> None:
        every = self._operations // 2
        for number in range(self._operations):
            if number % every == every // 2:
                capture = self._graph.capture()
                self.seen.append((capture, capture.as_dict()))
            self._random.choices(
                (self._begin, self._run, self._succeed, self._break, self._retry, self._pay),
                weights=(30, 20, 25, 10, 10, 5),
            )[0]()

    def _any(self) -> str:
        return self._random.choice(self._nodes[-20:])

    def _begin(self) -> None:
        kind = self._random.choice(("llm", "tool"))
        node_id = self._graph.begin_node(self._any(), kind, "call")  # type: ignore[arg-type]
        self._nodes.append(node_id)
        self.begun.append(node_id)

    def _run(self) -> None:
        self._graph.mark_running(self._any())

    def _succeed(self) -> None:
        node_id = self._any()
        if node_id != self._graph.root_id:
            self.succeeded += self._graph.mark_success(node_id, 0.25, 2, 3)

    def _break(self) -> None:
        node_id = self._any()
        if node_id != self._graph.root_id:
            if self._random.random() < 0.5:
                self._graph.mark_failure(node_id, "E", cost_usd=0.5)
            else:
                self._graph.mark_halt(node_id, "budget", tokens_in=1)

    def _retry(self) -> None:
        self._graph.increment_retries(self._any())

    def _pay(self) -> None:
        node_id = self._any()
        if self._graph.node(node_id)["status"] in TERMINAL:
            self._graph.add_late_usage(node_id, cost_usd=0.125)


@pytest.mark.req("001/inv5", "001/snapshot", "001/inv1")
@pytest.mark.guarantee(6)
@pytest.mark.usefixtures("hasty_threads")
@pytest.mark.parametrize("operations", [1_000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_eight_threads_leave_every_snapshot_sound(operations: int) -> None:
    """Every snapshot and every journal view taken during concurrent changes is sound."""
    graph = ExecutionGraph()
    root = graph.create_root("run")
    workers = [Worker(graph, root, seed, operations) for seed in range(THREADS)]
    journal: dict[str, TraceNode] = {}
    revision = 0

    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(worker.work) for worker in workers]
        while wait(running, timeout=0.01).not_done:
            revision, nodes = graph.changed_since(revision)
            journal |= {node["node_id"]: node for node in nodes}
    for future in running:
        future.result()

    final = graph.snapshot()
    assert_sound(final)
    assert_nothing_lost(final, workers)
    journal |= {node["node_id"]: node for node in graph.changed_since(revision).nodes}
    assert journal == final["nodes"]
    assert_every_snapshot_sound([seen for worker in workers for seen in worker.seen])


def assert_nothing_lost(final: Snapshot, workers: list[Worker]) -> None:
    begun = [node_id for worker in workers for node_id in worker.begun]
    assert sorted([*begun, final["root_id"] or ""]) == sorted(final["nodes"])
    calls = final["aggregates"]["total_llm_calls"] + final["aggregates"]["total_tool_calls"]
    assert calls == sum(worker.succeeded for worker in workers) > 0


def assert_every_snapshot_sound(seen: list[tuple[GraphCapture, Snapshot]]) -> None:
    seen.sort(key=lambda pair: pair[0].revision)
    assert len(seen) == 2 * THREADS
    for capture, snapshot in seen:
        assert violations(snapshot) == []
        assert capture.as_dict() == snapshot
    for (_, earlier), (_, later) in pairwise(seen):
        assert_no_regression(earlier, later)
