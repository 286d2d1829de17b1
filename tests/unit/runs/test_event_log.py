"""How events are numbered and buffered until they are stored."""

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from caseworker.engine.events import LATE_RESULT, STEP_SKIPPED, STEP_STARTED, Event
from caseworker.runs.journal.journal import EventLog, run_ended
from caseworker.runs.run import EventRecord, RunStatus
from tests.support.work import counted_calls


def filled(*types: str, last_seq: int = 0) -> EventLog:
    log = EventLog(last_seq=last_seq, now=lambda: 1_800_000_000.25)
    for type_ in types:
        log.add(Event(type=type_))
    return log


def numbered(records: Iterable[EventRecord]) -> list[tuple[int, str]]:
    return [(record.seq, record.type) for record in records]


def test_events_are_numbered_on_behind_what_is_stored() -> None:
    """Numbers are consecutive in order of emission; each event has its time of emission."""
    records = filled("a", "b", last_seq=7).unconfirmed()

    assert numbered(records) == [(8, "a"), (9, "b")]
    assert records[0].ts == datetime(2027, 1, 15, 8, 0, 0, 250_000, tzinfo=UTC)


def test_what_is_not_confirmed_is_written_again_under_the_same_number() -> None:
    """The events are unchanged, and newer events follow them."""
    log = filled("a", "b")
    first = log.unconfirmed()
    log.add(Event(type="c"))
    again = log.unconfirmed()

    assert numbered(again) == [(1, "a"), (2, "b"), (3, "c")]
    assert again[:2] == first


def test_what_is_confirmed_is_forgotten() -> None:
    """Confirmed events are dropped, also by repeated and outdated confirmations."""
    log = filled("a", "b")
    first = log.unconfirmed()
    log.add(Event(type="c"))
    both = log.unconfirmed()
    log.confirm(first)
    assert numbered(log.unconfirmed()) == [(3, "c")]
    log.confirm(both)
    log.confirm(first)

    assert not log
    assert log.unconfirmed() == ()


@pytest.mark.req("003/resume")
def test_an_event_with_a_key_is_stored_once_over_all_owners() -> None:
    """The next owner skips the same path again, or replays the same turn."""
    log = EventLog(last_seq=3, stored_once={"a|step.skipped"})
    for step in ("a", "b"):
        log.add(Event(type=STEP_SKIPPED, step_id=step, once_key=f"{step}|{STEP_SKIPPED}"))

    assert [(event.seq, event.step_id) for event in log.unconfirmed()] == [(4, "b")]


@pytest.mark.parametrize(
    ("event", "stays"),
    [
        (Event(type="usage", step_id="a", once_key="a|1", answer_of="a/turn/1"), True),
        (Event(type="usage", step_id="a", once_key="a|2", answer_of="a/turn/2"), False),
        (Event(type="content_chunk", step_id="a", data={"offset": 0, "content": "A"}), False),
        (Event(type="usage", step_id="b", once_key="b|1", answer_of="b/turn/1"), True),
        (Event(type="thinking", step_id="a", data={"offset": 0, "content": "A"}), True),
    ],
)
def test_an_answer_that_ends_or_begins_anew_is_not_the_one_of_an_earlier_owner(
    event: Event, stays: bool
) -> None:
    """An event that is dropped because it was stored before does not reset the streamed text."""
    streamed: dict[tuple[str | None, str], object] = {("a", "content_chunk"): (2, "Half way")}
    log = EventLog(last_seq=3, stored_once={"a|1"}, streamed=streamed)

    log.add(event)

    assert bool(streamed) is stays


def test_the_end_of_an_answer_rewrites_only_its_long_parts() -> None:
    """A reference would not be shorter than the text of a short part."""
    log = EventLog(last_seq=0)
    for content in ("Short.", "word " * 20):
        data = {"offset": 0, "content": content}
        log.add(Event(type="content_chunk", step_id=content, data=data))
    log.confirm(log.unconfirmed())
    for step in ("Short.", "word " * 20):
        log.add(Event(type="usage", step_id=step, answer_of="a/turn/1"))

    assert numbered(log.unconfirmed()) == [(2, "content_chunk"), (3, "usage"), (4, "usage")]


def test_an_end_stands_behind_everything_and_may_be_another_one() -> None:
    """An end that was not accepted can be replaced and leaves no trace."""
    log = filled("a")
    completed = log.followed_by(run_ended(RunStatus.COMPLETED, "success", None))
    cancelled = log.followed_by(run_ended(RunStatus.CANCELLED, None, {"kind": "cancelled"}))

    assert numbered(completed) == [(1, "a"), (2, "run.completed")]
    assert numbered(cancelled) == [(1, "a"), (2, "run.cancelled")]
    assert cancelled[1].data == {"finish_reason": None, "stop": {"kind": "cancelled"}}


@pytest.mark.parametrize(
    "type_", ["run.completed", "run.anything", "", "a\nb", "a b", "\u00e4", "a" * 101, ".a"]
)
def test_a_type_that_is_not_for_nodes_is_refused(type_: str) -> None:
    """A node could otherwise end the log for its readers or break their stream."""
    with pytest.raises(ValueError, match="type"):
        EventLog(last_seq=0).add(Event(type=type_))


@pytest.mark.parametrize("what", [object(), float("nan"), {1, 2}, b"bytes"])
def test_data_that_is_not_json_is_refused_at_once(what: object) -> None:
    """Data that is not JSON is rejected, because the run's end could not be stored."""
    with pytest.raises(ValueError, match="JSON"):
        EventLog(last_seq=0).add(Event(type="text.delta", data={"deep": [what]}))


def test_data_is_as_it_was_when_it_was_emitted() -> None:
    """Later changes by the event's owner have no effect."""
    log, rows = EventLog(last_seq=0), [1]
    log.add(Event(type="text.delta", data={"rows": rows}))
    rows.append(2)

    assert log.unconfirmed()[0].data == {"rows": [1]}


@pytest.mark.parametrize("type_", [STEP_STARTED, LATE_RESULT])
def test_emitting_costs_next_to_nothing(type_: str) -> None:
    """The cost of emitting does not depend on the number of earlier events."""
    log, event = EventLog(last_seq=0), Event(type=type_, step_id="a", node_id="n000002")

    with counted_calls() as work:
        for _ in range(10_000):
            log.add(event)

    assert work.calls / 10_000 < 50, work
