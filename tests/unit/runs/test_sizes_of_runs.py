"""Limits on the data that a run stores, per value and in total."""

from dataclasses import replace

import pytest

from caseworker.core.budget.stops import StopKind
from caseworker.core.trace.frozen_json import ValueLimits, ValueTooLargeError, thawed
from caseworker.engine.events import Event
from caseworker.runs.journal.journal import RunTooLargeError
from tests.support.runs import run_story
from tests.unit.runs.opened import Open

SMALL = ValueLimits(
    max_value_bytes=1000, max_outputs_bytes=2000, max_event_bytes=500, max_run_bytes=5000
)


def test_a_run_that_has_stored_as_much_as_it_may_is_halted() -> None:
    """No further step or call starts, and stored data stays."""

    async def story() -> None:
        run = Open(limits=SMALL)
        for number in range(4):
            run.end(run.begin(f"c{number}"), f"c{number}", "x" * 900)
        with pytest.raises(RunTooLargeError) as stopped:
            await run.journal.barrier(external=False)
        assert stopped.value.cause.kind is StopKind.BUDGET
        assert "limits.max_run_mb" in str(stopped.value)

    run_story(story, after_seconds=10)


def test_a_run_below_its_limit_passes_its_barriers() -> None:
    """The same run with less data is not halted."""

    async def story() -> None:
        run = Open(limits=SMALL)
        run.end(run.begin("one"), "one", "x" * 900)
        await run.journal.barrier(external=True)
        assert run.store.names() == ["run", "one"]

    run_story(story, after_seconds=10)


def test_a_call_and_an_event_that_are_too_large_are_refused() -> None:
    """The error states the limit, and neither is stored."""

    async def story() -> None:
        run = Open(limits=SMALL)
        node = run.begin("large")
        with pytest.raises(ValueTooLargeError, match=r"limits\.max_value_kb"):
            run.end(node, "large", "x" * 2000)
        with pytest.raises(ValueTooLargeError, match=r"event note .* \(limits\.max_event_kb"):
            run.journal.emit(Event(type="note", data={"text": "x" * 600}))
        assert run.journal.unstored_events() == ()

    run_story(story, after_seconds=10)


def test_what_calls_ask_counts_too() -> None:
    """Requests are stored next to the results."""

    async def story() -> None:
        run = Open(limits=SMALL)
        run.journal.note_request(run.begin("asking"), {"prompt": "x" * 5000})
        with pytest.raises(RunTooLargeError):
            await run.journal.barrier(external=False)

    run_story(story, after_seconds=10)


def test_what_an_earlier_execution_has_stored_counts_too() -> None:
    """A recovered run has the same limit as any other run."""

    async def story() -> None:
        first = Open(limits=SMALL)
        for number in range(4):
            first.end(first.begin(f"c{number}"), f"c{number}", "x" * 900)
        closed = first.journal.close()
        records = [replace(record, value=thawed(record.value)) for record in closed]
        with pytest.raises(RunTooLargeError):
            await Open(limits=SMALL, earlier=records).journal.barrier(external=False)

    run_story(story, after_seconds=10)
