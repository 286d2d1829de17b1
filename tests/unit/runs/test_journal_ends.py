"""The journal at the end of an execution, and at the start of the next one."""

import asyncio
from typing import Any

import pytest

from caseworker.core.budget.budget import Dimension
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.frozen_json import thawed
from caseworker.engine.events import Event
from caseworker.engine.ports import CallOutcome
from caseworker.runs.journal.journal import SOON_SECONDS, LostRunError
from caseworker.runs.ports import Permission
from caseworker.runs.run import CallRecord
from tests.support.runs import run_story
from tests.unit.runs.opened import Open, Store


def test_the_end_brings_what_may_not_be_stored_yet() -> None:
    """Writes in flight count as unconfirmed, because no code waits for their answers."""

    async def story() -> None:
        run = Open(Store(seconds=1))
        run.begin("first")
        await asyncio.sleep(0.2)
        run.begin("second")
        records = run.journal.close()
        assert [record.node["name"] for record in records] == ["run", "first", "second"]

        run.graph.mark_halt(run.root)
        run.journal.touch()
        await asyncio.sleep(5)
        assert len(run.store.writes) == 1

    run_story(story, after_seconds=10)


@pytest.mark.parametrize("other_write_first", [False, True], ids=["at once", "behind another"])
def test_a_write_that_was_due_at_the_end_stores_no_event_without_its_call(
    other_write_first: bool,
) -> None:
    """The end writes both. If the process is lost in between, the step did not end."""

    async def story() -> None:
        run = Open(Store(seconds=1))
        if other_write_first:
            run.begin("another")
            await asyncio.sleep(SOON_SECONDS + 0.01)
        asking = asyncio.create_task(run.journal.barrier(external=True))
        node = run.begin("first")
        run.end(node, "first")
        run.journal.emit(Event(type="first.ended", step_id="first", node_id=node))
        at_end = {record.node["name"] for record in run.journal.close()}
        await asking
        stored = {name for at in range(len(run.store.writes)) for name in run.store.names(at)}
        assert "first" in at_end - stored
        assert [event for write in run.store.writes for event in write.events] == []
        assert [event.type for event in run.journal.unstored_events()] == ["first.ended"]

    run_story(story, after_seconds=10)


def test_what_is_stored_is_not_brought_again() -> None:
    """The final write contains only unconfirmed data."""

    async def story() -> None:
        run = Open()
        run.begin("first")
        await run.journal.barrier(external=True)
        assert run.journal.close() == ()

    run_story(story, after_seconds=10)


def test_what_a_lost_barrier_tried_to_store_is_part_of_what_comes_late() -> None:
    """Abandoned work reaches a barrier after the end, and its costs are added."""

    async def story() -> None:
        run = Open()
        node = run.begin("first")
        run.journal.close()
        run.store.answers = [Permission(owned=False, cancel_request=None)]
        run.note(node, "first", charge={Dimension.TOKENS: 5})
        with pytest.raises(LostRunError):
            await run.journal.barrier(external=True)
        [record] = run.journal.close()
        assert record.charge == {"tokens": 5}

    run_story(story, after_seconds=10)


def test_another_graph_at_the_end_is_stored_as_a_whole() -> None:
    """The journal entries of its nodes are stored too."""

    async def story() -> None:
        run = Open()
        run.end(run.begin("first"), "first")
        await run.journal.barrier(external=True)
        nodes = run.graph.snapshot()["nodes"].values()
        again = ExecutionGraph.restore("r0", [dict(node) for node in nodes])
        again.mark_halt(again.root_id or "", "cancelled")
        records = run.journal.close(again)
        assert [(record.node["status"], thawed(record.value)) for record in records] == [
            ("halt", None),
            ("success", "value"),
        ]

    run_story(story, after_seconds=10)


def record(graph: ExecutionGraph, node: str, **noted: Any) -> CallRecord:
    return CallRecord(node=graph.node(node), **({"call_key": None} | noted))


def lost_run() -> tuple[ExecutionGraph, list[CallRecord]]:
    """Return a run with one finished call and one in flight."""
    graph = ExecutionGraph("r0")
    root = graph.create_root("run")
    graph.mark_running(root)
    ended = graph.begin_node(root, "tool", "ended")
    graph.mark_success(ended, 0)
    flying = graph.begin_node(root, "tool", "flying")
    graph.mark_running(flying)
    return graph, [
        record(graph, root),
        record(
            graph,
            ended,
            call_key="ended",
            request_hash="h",
            charge={"cost_usd": "0.10"},
            outcome="result",
            value={"rows": [1]},
        ),
        record(graph, flying, call_key="flying", request_hash="h", charge={"tokens": 7}),
    ]


def test_the_first_write_of_the_next_execution_wipes_nothing_out() -> None:
    """The first write of a resumed run keeps earlier results, or calls would be repeated."""

    async def story() -> None:
        graph, earlier = lost_run()
        graph.mark_halt("n000003", "worker_lost")
        run = Open(earlier=earlier, graph=graph)
        run.begin("new")
        await run.journal.barrier(external=True)

        written = {record.node["name"]: record for record in run.store.writes[0].calls}
        assert set(written) == {"run", "flying", "new"}
        flying = written["flying"]
        assert (flying.call_key, flying.request_hash, flying.charge) == (
            "flying",
            "h",
            {"tokens": 7},
        )
        assert flying.node["status"] == "halt"

    run_story(story, after_seconds=10)


def test_a_graph_that_takes_the_place_of_another_keeps_what_was_noted_long_ago() -> None:
    """A replaced graph keeps its journaled data, and every row is written again."""

    async def story() -> None:
        graph, earlier = lost_run()
        run = Open(earlier=earlier, graph=graph)
        again = ExecutionGraph.restore("r0", [dict(record.node) for record in earlier])
        records = {record.node["name"]: record for record in run.journal.close(again)}
        assert records["ended"].value == {"rows": [1]}
        assert records["ended"].outcome == "result"
        assert records["ended"].charge == {"cost_usd": "0.10"}

    run_story(story, after_seconds=10)


def test_the_last_try_that_began_is_what_is_known_of_a_call() -> None:
    """An attempt that was refused before it started leaves no entry."""

    async def story() -> None:
        graph, earlier = lost_run()
        refused = graph.begin_node("n000001", "tool", "flying")
        graph.mark_halt(refused, "enough")
        earlier.append(record(graph, refused, call_key="flying", outcome="not_made"))
        run = Open(earlier=earlier, graph=graph)

        flying, ended = run.journal.recorded("flying"), run.journal.recorded("ended")
        assert flying is not None
        assert ended is not None
        assert (flying.outcome, flying.node_id) == (CallOutcome.UNKNOWN, "n000003")
        assert (ended.outcome, ended.value) == (CallOutcome.RESULT, {"rows": [1]})
        assert run.journal.recorded("other") is None

    run_story(story, after_seconds=10)
