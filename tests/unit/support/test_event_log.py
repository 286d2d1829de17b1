"""Tests of the event log checker."""

from datetime import UTC, datetime

import pytest

from caseworker.runs.run import EventRecord
from tests.support.event_log import event_problems

AT = datetime(2026, 1, 1, tzinfo=UTC)


def log(*types: str, first: int = 1) -> list[EventRecord]:
    """Return events given in the form ``a started``, ``run.completed``."""
    events = []
    for seq, words in enumerate(types, first):
        step, _, what = words.rpartition(" ")
        type_ = f"step.{what}" if step else what
        events.append(EventRecord(seq=seq, ts=AT, type=type_, step_id=step or None))
    return events


@pytest.mark.parametrize(
    ("status", "types"),
    [
        ("queued", []),
        ("running", ["a started"]),
        ("completed", ["a started", "b started", "a completed", "b error", "run.completed"]),
        ("completed", ["a started", "a resumed", "a resumed", "a completed", "run.completed"]),
        ("completed", ["a skipped", "text.delta", "run.completed", "late_result"]),
        ("cancelled", ["a started", "run.cancelled"]),
    ],
)
def test_a_sound_log_has_no_problem(status: str, types: list[str]) -> None:
    """Resumed, skipped and cancelled steps are valid."""
    assert event_problems(log(*types), status) == []


@pytest.mark.parametrize(
    ("status", "types", "wrong"),
    [
        ("running", ["a started", "a started"], "not started once"),
        ("running", ["a completed"], "not started once"),
        ("running", ["a resumed", "a started"], "not started once"),
        ("running", ["a started", "a completed", "a error"], "its end is not one"),
        ("running", ["a started", "a completed", "a resumed"], "its end is not one"),
        ("running", ["a skipped", "a started"], "skipped, and more"),
        ("completed", ["a started", "run.completed"], "it has no end"),
        ("completed", [], "no end"),
        ("completed", ["run.failed"], "its log tells of"),
        ("running", ["run.completed"], "its log tells of"),
        ("completed", ["run.completed", "run.completed"], "its log tells of"),
        ("completed", ["run.completed", "text.delta"], "behind the run's end"),
    ],
)
def test_whatever_may_not_be_is_named(status: str, types: list[str], wrong: str) -> None:
    """Each rule of the checker is violated once and reported."""
    assert any(wrong in problem for problem in event_problems(log(*types), status))


def test_numbers_are_dense_and_begin_at_one() -> None:
    """A gap would be an event that clients miss."""
    assert event_problems(log("x.y", first=2), "running") == ["the numbers are [2]"]
