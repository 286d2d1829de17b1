"""Assemble texts that models stream, from the events of a run."""

from typing import Final, NamedTuple

from caseworker_client.models import Event

CONTENT: Final = "content_chunk"
THINKING: Final = "thinking"


class TextKey(NamedTuple):
    """Identifies a text of a run."""

    step_id: str | None
    turn_number: int
    kind: str
    """``content_chunk`` or ``thinking``."""


class StreamedText:
    """The texts streamed so far by the turns of a run's agents.

    Each chunk has an offset in its text. A chunk that starts before the current end replaces
    everything after its offset: the call was retried, or another worker repeated it, and its reply
    may differ.
    """

    def __init__(self) -> None:
        self._texts: dict[TextKey, str] = {}

    def add(self, event: Event) -> bool:
        """Apply an event; return whether it contains a chunk of text.

        Raises:
            ValueError: the chunk starts after the end of its text: earlier events are missing.
        """
        if event.type not in (CONTENT, THINKING):
            return False
        offset, content = int(event.data["offset"]), str(event.data["content"])
        key = TextKey(event.step_id, int(event.data["turn_number"]), event.type)
        text = self._texts.pop(key, "")  # re-inserted last: it is the latest
        self._texts[key] = text[:offset] + content
        if offset > len(text):
            self._texts[key] = text
            raise ValueError(f"Event {event.seq} continues a text at {offset}, beyond {len(text)}.")
        return True

    @property
    def content(self) -> str:
        """The latest text other than thinking; empty if none has arrived."""
        written = [text for key, text in self._texts.items() if key.kind == CONTENT]
        return written[-1] if written else ""

    def of(self, turn_number: int, *, step_id: str | None = None, kind: str = CONTENT) -> str:
        """Return the text of a turn; empty if none has arrived."""
        return self._texts.get(TextKey(step_id, turn_number, kind), "")

    @property
    def texts(self) -> dict[TextKey, str]:
        """All texts, the most recently updated last."""
        return dict(self._texts)
