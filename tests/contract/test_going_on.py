"""Contract for a run that resumes from another one, tested on every implementation."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import CONTINUES, IMPORTED_FROM, NodeKind
from caseworker.runs.errors import (
    InvalidRunError,
    QueueFullError,
    SourceNotEndedError,
    SourceNotFoundError,
)
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import CallRecord, NewRun, RunKey, RunSource, RunStatus
from tests.support.graph_invariants import violations
from tests.support.limits import store_limits
from tests.support.memory_rows import Row, journal_of, take_over
from tests.support.ports import KEY, Open, Ports, on_postgres
from tests.support.stores import (
    CANCEL_REQUEST,
    end_of,
    graph_with_calls,
    new_run,
    records_of,
    stored_graph,
)

NEW = RunKey("default", "case-2")


def from_run(until: str | None = None, *, run_id: str = "case-1", **settings: Any) -> NewRun:
    new = new_run("case-2", **settings)
    return replace(new, request=replace(new.request, source=RunSource(run_id, until)))


def random_journal(seed: int) -> list[CallRecord]:
    """Return nested steps and calls with every possible end, at random times."""
    draw = random.Random(seed)
    now = [1_000]

    def tick() -> int:
        now[0] += draw.choice([0, 0, 1, 5])
        return now[0]

    graph = ExecutionGraph("case-1", now_ms=tick)
    open_nodes = [graph.create_root("case", {"run_id": "case-1"})]
    graph.mark_running(open_nodes[0])
    for _ in range(draw.randint(3, 30)):
        parent = draw.choice(open_nodes)
        kind: NodeKind = draw.choice(["system", "system", "llm", "tool"])
        node = graph.begin_node(parent, kind, "work", metadata={"estimated": {"tokens_in": 1}})
        graph.mark_running(node)
        if kind == "system":
            open_nodes.append(node)
            continue
        if draw.random() < 0.7:
            graph.mark_success(node, 0.5)
        else:
            graph.mark_failure(node, "Error", "no")
        if draw.random() < 0.3 and len(open_nodes) > 1:
            _end(draw, graph, open_nodes.pop(draw.randrange(1, len(open_nodes))))
    for node in reversed(open_nodes):
        _end(draw, graph, node)
    nodes = graph.changed_since(0).nodes
    return [_record(draw, node, number) for number, node in enumerate(nodes)]


def _end(draw: random.Random, graph: ExecutionGraph, node: str) -> None:
    graph.close_open("It was stopped.", top=node)
    match draw.choice(["success", "fail", "halt"]):
        case "success":
            graph.mark_success(node, 0)
        case "fail":
            graph.mark_failure(node, "Error", "no")
        case _:
            graph.mark_halt(node, "enough")


def _record(draw: random.Random, node: Any, number: int) -> CallRecord:
    if node["parent_id"] is None or draw.random() < 0.1:
        return CallRecord(node=node)
    outcome = {"success": "result", "fail": "failure"}.get(node["status"])
    if node["status"] == "fail" and draw.random() < 0.3:
        outcome = None
    return CallRecord(
        node=node,
        call_key=f"case/{draw.choice([number, number, 1])}",
        request_hash="abc",
        charge={"tokens": 15, "cost_usd": "0.5"},
        outcome=outcome,
        value={"message": "no", "b": 1, "a": [number]},
        request={"messages": [{"content": "2+2?"}]},
    )


async def ended(ports: Ports, calls: list[CallRecord], status: Any = RunStatus.FAILED) -> None:
    """Store a finished run with these rows in its journal."""
    run = await ports.claimed()
    await ports.journal.write(JournalWrite(key=KEY, fence=1, calls=tuple(calls)))
    assert (await ports.journal.finish(end_of(run, status))).done


@pytest.mark.parametrize("seed", range(25))
async def test_what_is_taken_over_is_the_same_in_every_store(ports: Ports, seed: int) -> None:
    """Every imported row of a random journal, up to a random node, matches the model."""
    records = random_journal(seed)
    await ended(ports, records)
    draw = random.Random(seed)
    until = draw.choice([None, draw.choice(records).node_id])
    old = Row(run=await ports.stored(), calls={each.node_id: each for each in records})
    expected = Row()
    take_over(old, expected, NEW, until, at_ms=0)

    await ports.runs.accept(from_run(until), worker_id="w1")

    found = await ports.runs.calls(NEW)
    at_ms = found[0].node["start_ts_ms"]
    assert at_ms > 1_700_000_000_000
    assert [_without_times(each) for each in found] == [
        _without_times(each) for each in journal_of(expected)
    ]
    assert {each.node["end_ts_ms"] for each in found} <= {at_ms, None}
    shown = await ports.runs.payloads(NEW, max_bytes=1_000_000)
    with_key = [each for each in journal_of(expected) if each.call_key]
    assert [each.request for each in shown] == [each.request for each in with_key]
    left = [replace(each, request=None) for each in await ports.runs.calls(KEY)]
    assert left == [replace(each, request=None) for each in records]


def _without_times(record: CallRecord) -> CallRecord:
    node = {**record.node, "start_ts_ms": 0, "end_ts_ms": record.node["end_ts_ms"] and 0}
    if node["end_ts_ms"] is None and record.node["status"] != "created":
        raise AssertionError(record)
    return replace(record, node=node, request=None)


class TestAccepting:
    async def test_a_run_that_there_is_not_cannot_be_gone_on_from(self, ports: Ports) -> None:
        """A run of another tenant and a pending cancel are refused too, and nothing is stored."""
        await ended(ports, random_journal(1))
        await ports.runs.cancel(RunKey("default", "early"), CANCEL_REQUEST)
        for new in (
            from_run(run_id="nobody"),
            from_run(run_id="early"),
            from_run(tenant="other"),
        ):
            with pytest.raises(SourceNotFoundError):
                await ports.runs.accept(new, worker_id="w1")
            assert await ports.runs.get(new.key) is None

    @pytest.mark.parametrize("worker_id", ["w1", None])
    async def test_a_run_that_has_not_ended_cannot_be_gone_on_from(
        self, ports: Ports, worker_id: str | None
    ) -> None:
        """An unfinished run may still change."""
        await ports.claimed()
        with pytest.raises(SourceNotEndedError):
            await ports.runs.accept(from_run(), worker_id=worker_id)
        assert await ports.runs.get(NEW) is None

    async def test_a_node_that_there_is_not_is_named(self, ports: Ports) -> None:
        """The error names the field, and nothing is stored."""
        await ended(ports, random_journal(1))
        with pytest.raises(InvalidRunError) as refused:
            await ports.runs.accept(from_run("n999999"), worker_id="w1")
        assert refused.value.field == "from.until"
        assert await ports.runs.get(NEW) is None

    async def test_the_same_request_is_the_same_run(self, ports: Ports) -> None:
        """The run's rows are copied once."""
        await ended(ports, random_journal(1))
        first = await ports.runs.accept(from_run(), worker_id=None)
        again = await ports.runs.accept(from_run(), worker_id="w1")

        assert (first.created, again.created) == (True, False)
        assert first.run == again.run
        assert again.run.request.source == RunSource("case-1")

    async def test_a_full_queue_refuses_it_too(self, opened: Open) -> None:
        """The run is refused and nothing of the source run is imported."""
        async with opened(store_limits(max_queued=0)) as ports:
            await ended(ports, random_journal(1))
            with pytest.raises(QueueFullError):
                await ports.runs.accept(from_run(), worker_id=None)
            assert await ports.runs.get(NEW) is None

    async def test_an_early_cancel_wins_over_it(self, ports: Ports) -> None:
        """The run is cancelled, and its trace shows the imported calls."""
        await ended(ports, random_journal(1), RunStatus.COMPLETED)
        await ports.runs.cancel(NEW, CANCEL_REQUEST)
        accepted = await ports.runs.accept(from_run(), worker_id="w1")
        snapshot = await stored_graph(ports.runs, NEW)

        assert accepted.run.status is RunStatus.CANCELLED
        assert accepted.run.usage is not None
        assert snapshot is not None
        nodes = snapshot["nodes"].values()
        assert snapshot["aggregates"]["total_cost_usd"] == 0
        assert any(IMPORTED_FROM in node["metadata"] for node in nodes)
        assert '"run_id": "case-1"' in json.dumps(next(iter(nodes))["metadata"][CONTINUES])

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("early", [True, False])
    async def test_a_run_that_is_cancelled_before_it_starts_closes_what_it_imported(
        self, ports: Ports, early: bool, seed: int
    ) -> None:
        """Imported open nodes are halted, and no imported result is lost."""
        await ended(ports, random_journal(seed))
        if early:
            await ports.runs.cancel(NEW, CANCEL_REQUEST)
        await ports.runs.accept(from_run(), worker_id=None)
        if not early:
            await ports.runs.cancel(NEW, CANCEL_REQUEST)
        other = replace(from_run(), key=RunKey("default", "case-3"))
        await ports.runs.accept(other, worker_id=None)

        assert (await ports.stored(NEW)).status is RunStatus.CANCELLED
        snapshot = await stored_graph(ports.runs, NEW)
        assert snapshot is not None
        assert violations(snapshot) == []
        assert next(iter(snapshot["nodes"].values()))["metadata"][CONTINUES]
        results = [
            {each.node_id: each.value for each in await ports.runs.calls(key) if each.outcome}
            for key in (NEW, other.key)
        ]
        assert results[0] == results[1]

    @on_postgres
    async def test_a_run_that_is_overdue_when_it_is_accepted_closes_what_it_imported(
        self, ports: Ports
    ) -> None:
        """It is halted, and its trace shows the imported calls."""
        await ended(ports, random_journal(1))
        new = from_run()
        late = replace(new.request, deadline=datetime(2026, 1, 1, tzinfo=UTC))
        accepted = await ports.runs.accept(replace(new, request=late), worker_id="w1")
        snapshot = await stored_graph(ports.runs, NEW)

        assert accepted.run.status is RunStatus.HALTED
        assert snapshot is not None
        assert violations(snapshot) == []
        assert any(IMPORTED_FROM in node["metadata"] for node in snapshot["nodes"].values())

    async def test_a_run_that_is_cancelled_before_it_starts_shows_imported_results(
        self, ports: Ports
    ) -> None:
        """The result is that of the imported step, marked with the new end."""
        graph = graph_with_calls("case-1")
        step = graph.begin_node("n000001", "system", "case")
        graph.mark_running(step)
        graph.mark_success(step, 0)
        value = {"result": {"answer": "4"}}
        records = [
            replace(each, call_key="step:case", outcome="result", value=value)
            if each.node_id == step
            else each
            for each in records_of(graph)
        ]
        await ended(ports, records)
        await ports.runs.accept(from_run(), worker_id=None)
        await ports.runs.cancel(NEW, CANCEL_REQUEST)

        cancelled = await ports.stored(NEW)
        assert cancelled.result == {"answer": "4", "finish_reason": None}

    async def test_what_it_takes_over_is_not_spent(self, ports: Ports) -> None:
        """Imported calls cost the new run nothing, and the charge of the source run stays."""
        await ended(ports, random_journal(1))
        await ports.runs.accept(from_run(), worker_id="w1")

        assert (await ports.runs.spent(NEW)).charge == {}
        assert (await ports.runs.spent(KEY)).charge != {}
