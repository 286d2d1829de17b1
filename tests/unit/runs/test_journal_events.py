"""Events in the journal: stored in order, and together with their entries."""

import asyncio

import pytest

from caseworker.engine.events import STEP_COMPLETED, STEP_STARTED, Event
from caseworker.engine.ports import CallOutcome
from caseworker.runs.journal.journal import LostRunError
from caseworker.runs.ports import JournalWrite, Permission
from tests.support.runs import run_story
from tests.unit.runs.opened import Open, Store


def events_of(write: JournalWrite) -> list[tuple[int, str]]:
    return [(event.seq, event.type) for event in write.events]


def start(run: Open, name: str) -> str:
    """Start a step as the engine does: its entry and its event, without an await in between."""
    node = run.begin(name)
    run.journal.emit(Event(type=STEP_STARTED, step_id=name, node_id=node))
    return node


@pytest.mark.req("004/lifecycle")
def test_an_event_is_stored_with_the_entry_that_it_tells_of() -> None:
    """One write holds an event and its entry, or neither."""

    async def story() -> None:
        run = Open()
        node = start(run, "first")
        await run.journal.barrier(external=True)
        run.end(node, "first")
        run.journal.emit(Event(type=STEP_COMPLETED, step_id="first", node_id=node))
        await asyncio.sleep(1)

        began, ended = run.store.writes
        assert run.store.names(0) == ["run", "first"]
        assert events_of(began) == [(1, STEP_STARTED)]
        assert [record.outcome for record in ended.calls] == [CallOutcome.RESULT]
        assert events_of(ended) == [(2, STEP_COMPLETED)]

    run_story(story, after_seconds=10)


def test_an_event_alone_is_stored_soon() -> None:
    """Followers of the run need not wait for its next call."""

    async def story() -> None:
        run = Open()
        await run.journal.barrier(external=True)
        run.journal.emit(Event(type="text.delta", data={"text": "a"}))
        await asyncio.sleep(1)
        assert [events_of(write) for write in run.store.writes] == [[], [(1, "text.delta")]]
        assert run.store.arrived == [0, pytest.approx(0.06)]

    run_story(story, after_seconds=10)


def test_an_event_while_others_are_being_stored_is_stored_soon_afterwards() -> None:
    """The event is stored even if nothing else has changed since."""

    async def story() -> None:
        run = Open(Store(seconds=0.5))
        run.journal.emit(Event(type="first"))
        await asyncio.sleep(0.2)
        run.journal.emit(Event(type="second"))
        await asyncio.sleep(2)
        assert [events_of(write) for write in run.store.writes] == [[(1, "first")], [(2, "second")]]

    run_story(story, after_seconds=10)


@pytest.mark.req("004/lifecycle")
def test_events_of_a_write_that_failed_are_sent_again_in_order() -> None:
    """The events keep their numbers and their entries."""

    async def story() -> None:
        run = Open(Store(answers=[RuntimeError("refused")]))
        start(run, "first")
        with pytest.raises(RuntimeError):
            await run.journal.barrier(external=True)
        start(run, "second")
        await run.journal.barrier(external=True)

        assert events_of(run.store.writes[1]) == [(1, STEP_STARTED), (2, STEP_STARTED)]
        assert run.store.names(1) == ["run", "first", "second"]
        assert run.journal.unstored_events() == ()

    run_story(story, after_seconds=10)


@pytest.mark.req("004/lifecycle")
def test_nothing_is_stored_before_what_led_to_it() -> None:
    """The next write includes a cancelled write's data, so no later event overtakes it."""

    async def story() -> None:
        run = Open(Store(seconds=1))
        start(run, "first")
        given_up = asyncio.create_task(run.journal.barrier(external=True))
        await asyncio.sleep(0.5)
        start(run, "second")
        other = asyncio.create_task(run.journal.barrier(external=True))
        await asyncio.sleep(0.1)
        assert len(run.store.writes) == 1
        given_up.cancel()
        await asyncio.wait({given_up})
        run.store.seconds = 0.01
        await other

        assert run.store.names(1) == ["run", "first", "second"]
        assert [seq for seq, _ in events_of(run.store.writes[1])] == [1, 2]

    run_story(story, after_seconds=10)


def test_barriers_that_wait_share_the_next_write() -> None:
    """A hundred parallel steps need two commits, and each has a fresh permission."""

    async def story() -> None:
        run = Open()
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                start(run, str(number))
                group.create_task(run.journal.barrier(external=True))
                await asyncio.sleep(0)
        assert len(run.store.writes) == 2

    run_story(story, after_seconds=10)


def test_a_barrier_does_not_share_a_write_that_began_before_it() -> None:
    """The earlier write does not contain the call's data."""

    async def story() -> None:
        run = Open(Store(seconds=0.05))
        run.begin("first")
        async with asyncio.TaskGroup() as group:
            group.create_task(run.journal.barrier(external=True))
            await asyncio.sleep(0.01)
            run.begin("second")
            group.create_task(run.journal.barrier(external=True))
        assert run.store.names(1) == ["second"]

    run_story(story, after_seconds=10)


def test_a_lost_owner_says_nothing_more() -> None:
    """A worker that has lost its run stores neither events nor entries."""

    async def story() -> None:
        run = Open(Store(answers=[Permission(owned=False, cancel_request=None)]))
        start(run, "first")
        with pytest.raises(LostRunError):
            await run.journal.barrier(external=True)
        assert [event.seq for event in run.journal.unstored_events()] == [1]

    run_story(story, after_seconds=10)


def test_what_is_emitted_after_the_end_is_dropped() -> None:
    """Abandoned work stores no events and starts no task."""

    async def story() -> None:
        run = Open()
        run.journal.emit(Event(type="text.delta"))
        run.journal.close()
        run.journal.emit(Event(type="text.delta"))
        ended = Event(type="run.completed")
        _, [last, end] = run.journal.end(run.graph, "The run has ended.", ended)
        assert (last.seq, end.seq, end.type) == (1, 2, "run.completed")
        await asyncio.sleep(1)
        assert run.store.writes == []

    run_story(story, after_seconds=10)
