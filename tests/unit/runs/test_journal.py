"""The journal of one run during its execution."""

import asyncio
from contextlib import suppress
from decimal import Decimal
from random import Random
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Dimension
from caseworker.engine.ports import CallOutcome
from caseworker.runs.journal.journal import ASKS, LostRunError
from caseworker.runs.ports import Permission
from caseworker.runs.run import CancelRequest
from tests.support.runs import loop, run_story
from tests.unit.runs.opened import KEY, YES, Open, Store


def test_an_external_call_begins_when_everything_before_it_is_stored() -> None:
    """The barrier writes the root and the call; later barriers write only changes."""

    async def story() -> None:
        run = Open()
        first = run.begin("first", charge={Dimension.COST_USD: Decimal("0.10")})
        await run.journal.barrier(external=True)
        assert run.store.names() == ["run", "first"]
        record = run.store.writes[0].calls[1]
        assert (record.call_key, record.charge) == ("first", {"cost_usd": "0.10"})
        assert (run.store.writes[0].key, run.store.writes[0].fence) == (KEY, 1)

        run.end(first, "first")
        run.begin("second")
        await run.journal.barrier(external=True)
        assert run.store.names() == ["first", "second"]
        assert run.store.writes[1].calls[0].value.value() == "value"

    run_story(story, after_seconds=10)


def test_a_call_inside_the_process_relies_on_a_permission_of_a_tenth_of_a_second() -> None:
    """A permission older than 0.1 s is requested again."""

    async def story() -> None:
        run = Open()
        await run.journal.barrier(external=False)
        await asyncio.sleep(0.1)
        await run.journal.barrier(external=False)
        assert run.store.writes == []

        await asyncio.sleep(0.001)
        await run.journal.barrier(external=False)
        await asyncio.sleep(0.09)
        await run.journal.barrier(external=False)
        assert len(run.store.writes) == 1

    run_story(story, after_seconds=10)


@pytest.mark.parametrize("round_trip", [0.005, 0.1, 0.3, 5.0])
def test_a_call_begins_with_the_first_answer_however_far_away_the_database_is(
    round_trip: float,
) -> None:
    """The permission's age counts from its answer, because the row was locked until then."""

    async def story() -> None:
        run = Open(Store(seconds=round_trip))
        await run.journal.barrier(external=True)
        assert loop().time() == round_trip
        await asyncio.sleep(0.09)
        await run.journal.barrier(external=False)
        assert len(run.store.writes) == 1

    run_story(story, after_seconds=10)


def test_an_answer_that_was_held_up_is_asked_for_again() -> None:
    """The network or a busy event loop delayed it; a cancel request may have been stored since."""
    cancel_request = CancelRequest(requested_by="ops", reason="too dear")

    async def story() -> None:
        run = Open(Store(late=[0.101]))
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_later(
            0.005,
            run.store.answers.extend,
            [YES, Permission(owned=True, cancel_request=cancel_request)],
        )
        with pytest.raises(stops.CancelledError, match="too dear"):
            await run.journal.barrier(external=True)
        assert run.store.arrived == [1, 1.01]

    run_story(story, after_seconds=10)


def test_answers_that_are_always_late_are_asked_for_twice_and_then_taken() -> None:
    """A busy event loop gets no extra work, and no run is handed over for it."""

    async def story() -> None:
        run = Open(Store(late=[1.0] * 10))
        await asyncio.sleep(1)
        await run.journal.barrier(external=True)
        assert len(run.store.writes) == ASKS == 2
        assert not run.token.is_cancelled

    run_story(story, after_seconds=10)


def test_all_lanes_of_a_run_go_on_with_one_answer() -> None:
    """All continue in one iteration of the event loop, so the last one does not start late."""
    turn = 0
    went_on: list[int] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def lane(run: Open, number: int) -> None:
        run.begin(f"call {number}")
        await run.journal.barrier(external=True)
        went_on.append(turn)

    async def main() -> None:
        run = Open(Store(seconds=0))
        counting = asyncio.create_task(count_turns())
        async with asyncio.TaskGroup() as lanes:
            for number in range(64):
                lanes.create_task(lane(run, number))
        counting.cancel()
        run.journal.close()
        assert len(run.store.writes) <= 3  # first lane, all other lanes, background write

    asyncio.run(main())
    assert len(went_on) == 64
    assert went_on[-1] - went_on[1] <= 2


@pytest.mark.req("000/C3")
def test_a_cancel_request_refuses_at_the_barrier() -> None:
    """The token is cancelled too, so all other work of the run stops."""
    cancel_request = CancelRequest(requested_by="ops", reason="too dear")

    async def story() -> None:
        run = Open(Store(answers=[Permission(owned=True, cancel_request=cancel_request)]))
        with pytest.raises(stops.CancelledError, match="too dear"):
            await run.journal.barrier(external=True)
        assert run.token.stop is not None
        assert run.token.stop.cause.requested_by == "ops"

    run_story(story, after_seconds=10)


def test_a_run_that_belongs_to_another_worker_is_lost() -> None:
    """A worker that has lost its run may store no more."""

    async def story() -> None:
        run = Open(Store(answers=[Permission(owned=False, cancel_request=None)]))
        with pytest.raises(LostRunError):
            await run.journal.barrier(external=True)
        assert isinstance(run.token.stop, LostRunError)

    run_story(story, after_seconds=10)


def test_a_change_is_stored_soon() -> None:
    """Changes are batched for a moment; other processes can follow the trace."""

    async def story() -> None:
        run = Open()
        run.begin("first")
        await asyncio.sleep(0.03)
        run.begin("second")
        await asyncio.sleep(0.2)
        assert run.store.arrived == [0.05]
        assert run.store.names() == ["run", "first", "second"]

    run_story(story, after_seconds=10)


def test_a_change_while_others_are_being_stored_is_stored_soon_afterwards() -> None:
    """A change of the graph alone is stored too."""

    async def story() -> None:
        run = Open(Store(seconds=0.5))
        node = run.begin("first")
        await asyncio.sleep(0.2)
        run.graph.mark_failure(node, "Broken")
        run.journal.touch()
        await asyncio.sleep(2)
        assert run.store.arrived == [0.05, pytest.approx(0.6)]
        assert run.store.writes[1].calls[0].node["status"] == "fail"

    run_story(story, after_seconds=10)


@pytest.mark.parametrize(
    "answer",
    [
        Permission(owned=True, cancel_request=CancelRequest(requested_by="ops")),
        Permission(False, None),
    ],
)
def test_what_is_stored_soon_may_bring_a_stop_as_well(answer: Permission) -> None:
    """A background write can deliver a stop before the next barrier."""

    async def story() -> None:
        run = Open(Store(answers=[answer]))
        run.begin("first")
        await asyncio.sleep(1)
        assert run.token.is_cancelled
        assert len(run.store.writes) == 1

    run_story(story, after_seconds=10)


def test_a_store_that_refuses_is_not_asked_for_ever() -> None:
    """The next barrier writes the data again and gets the error."""

    async def story() -> None:
        run = Open(Store(answers=[RuntimeError("refused"), RuntimeError("again")]))
        with structlog.testing.capture_logs() as logs:
            run.begin("first")
            await asyncio.sleep(5)
        assert [line["event"] for line in logs] == ["journal.refused"]
        with pytest.raises(RuntimeError, match="again"):
            await run.journal.barrier(external=True)
        await run.journal.barrier(external=True)
        assert [run.store.names(index) for index in range(3)] == [["run", "first"]] * 3

    run_story(story, after_seconds=10)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_whatever_writes_fail_the_store_holds_every_node_as_it_is_at_the_end(seed: int) -> None:
    """Nodes with and without an entry change while writes fail, are cancelled or in flight.

    The end stores the missing nodes; storing a node twice does no harm.
    """
    chance = Random(seed)

    def change(run: Open, nodes: dict[str, CallOutcome | None]) -> None:
        """Change one node of the graph; ``nodes`` maps every node to its journaled outcome."""
        node, name, graph = chance.choice(list(nodes)), f"{len(nodes)}", run.graph
        match chance.choice(["begin", "call", "run", "annotate", "end", "fail", "note"]):
            case "begin":
                nodes[graph.begin_node(node, "system", name)] = None
            case "call":
                nodes[run.begin(name)] = None
            case "run":
                graph.mark_running(node)
            case "annotate":
                graph.annotate(node, {name: 1})
            case "end" if node != run.root:
                graph.mark_success(node, 0)
            case "fail" if node != run.root:
                graph.mark_failure(node, "Broken")
            case "note" if node != run.root:
                run.note(node, node, outcome=CallOutcome.NOT_MADE)
                nodes[node] = CallOutcome.NOT_MADE
        run.journal.touch()

    async def story() -> None:
        answers: list[Permission | BaseException] = [YES, RuntimeError("refused")]
        run = Open(Store(answers=chance.choices(answers, k=20)))
        nodes: dict[str, CallOutcome | None] = {run.root: None}
        for _ in range(12):
            barrier = asyncio.create_task(run.journal.barrier(external=chance.random() < 0.3))
            for _ in range(chance.randint(1, 4)):
                change(run, nodes)
                await asyncio.sleep(chance.choice([0, 0, 0.002, 0.01, 0.06]))
            barrier.cancel()
            with suppress(asyncio.CancelledError, RuntimeError):
                await barrier
        at_end = {record.node_id: record for record in run.journal.close()}
        stored = run.store.rows | at_end
        assert {id_: each.node for id_, each in stored.items()} == run.graph.snapshot()["nodes"]
        assert {id_: each.outcome for id_, each in stored.items()} == nodes

    with structlog.testing.capture_logs():
        run_story(story, after_seconds=10)


@pytest.mark.parametrize(
    "what",
    [object(), float("nan"), {"deep": {1, 2}}, b"bytes"],
    ids=["an object", "no number", "a set", "bytes"],
)
def test_a_value_that_cannot_be_stored_is_refused_when_it_is_noted(what: Any) -> None:
    """The error is raised early enough for the step to handle it."""

    async def story() -> None:
        run = Open()
        node = run.begin("first")
        with pytest.raises(ValueError, match=r"JSON"):
            run.note(node, "first", outcome=CallOutcome.RESULT, value=[what])
        run.journal.close()

    run_story(story, after_seconds=10)


def test_what_was_noted_does_not_change_with_what_its_owner_does() -> None:
    """The node may modify its answer without changing the journal."""

    async def story() -> None:
        run = Open()
        node, answer = run.begin("first"), {"rows": [1]}
        run.end(node, "first", answer)
        answer["rows"].append(2)
        assert run.journal.close()[1].value.value() == {"rows": [1]}

    run_story(story, after_seconds=10)
