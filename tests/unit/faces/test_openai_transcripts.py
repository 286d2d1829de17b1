"""Texts of an agent, computed from events that may write them again."""

import tracemalloc
from datetime import UTC, datetime
from typing import Any

from caseworker.faces.openai_api.transcript import Transcript
from caseworker.runs.run import EventRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def chunk(turn: int, offset: int, content: str, step: str = "agent") -> EventRecord:
    data: dict[str, Any] = {"turn_number": turn, "offset": offset, "content": content}
    return EventRecord(seq=1, ts=NOW, type="content_chunk", step_id=step, data=data)


def read(*events: EventRecord) -> list[str]:
    """Return the messages that a client has built of the parts."""
    transcript, messages = Transcript(), list[str]()
    for delta in transcript.read(events):
        if delta.index == len(messages):
            messages.append("")
        messages[delta.index] += delta.text
    assert messages == transcript.texts
    return messages


def test_each_turn_has_a_message() -> None:
    """Parts of other steps are not part of the answer."""
    events = [chunk(1, 0, "Let me "), chunk(1, 7, "see."), chunk(1, 0, "no", "agent/x")]

    assert read(*events, chunk(2, 0, "42")) == ["Let me see.", "42"]


def test_a_repeated_answer_with_the_same_text_is_sent_once() -> None:
    """The repeated call of a model begins at offset 0."""
    events = [chunk(1, 0, "It is"), chunk(1, 0, "It"), chunk(1, 2, " is 42.")]

    assert read(*events) == ["It is 42."]


def test_a_repeated_answer_with_another_text_is_another_message() -> None:
    """A text that was sent cannot be taken back."""
    events = [chunk(1, 0, "It is"), chunk(1, 0, ""), chunk(1, 0, "It was"), chunk(1, 6, " 42.")]

    assert read(*events) == ["It is", "It was 42."]


def test_an_answer_that_is_written_again_in_larger_parts_is_continued() -> None:
    """A part that begins with text that was sent adds only the rest of it."""
    events = [chunk(1, 0, "It "), chunk(1, 3, "is"), chunk(1, 0, "It is 42"), chunk(1, 8, ".")]

    assert read(*events) == ["It is 42."]


def test_a_part_of_a_long_answer_copies_no_earlier_text() -> None:
    """An answer in many small parts would otherwise block the event loop."""
    transcript, size = Transcript(), 1_000_000
    assert list(transcript.read([chunk(1, 0, "x" * size)]))
    more = [chunk(1, size, "more"), chunk(1, size + 4, ".")]
    tracemalloc.start()
    try:
        deltas = list(transcript.read(more))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [each.text for each in deltas] == ["more", "."]
    assert transcript.texts[0].endswith("xmore.")
    assert peak_bytes < size / 10
