"""Texts of an agent, computed from events that may write them again."""

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
