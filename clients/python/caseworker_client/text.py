"""Texts that models write piece by piece, put together from the events of a run."""

from typing import Final, NamedTuple

from caseworker_client.models import Event

CONTENT: Final = "content_chunk"
THINKING: Final = "thinking"


class TextKey(NamedTuple):
    """Which text of a run."""

    step_id: str | None
    turn_number: int
    kind: str
    """``content_chunk`` or ``thinking``."""


class StreamedText:
    """The texts that the turns of a run's agents have brought so far.

    Every piece says where it begins in its text. One that begins before the end of what is there
    replaces everything behind that place: the call that wrote it was made again, after a failure
    or by another worker, and its reply need not be the same.
    """

    def __init__(self) -> None:
        self._texts: dict[TextKey, str] = {}

    def add(self, event: Event) -> bool:
        """Take an event in; return whether it holds a piece of a text.

        Raises:
            ValueError: the piece begins behind the end of its text; events before it are missing.
        """
        if event.type not in (CONTENT, THINKING):
            return False
        offset, content = int(event.data["offset"]), str(event.data["content"])
        key = TextKey(event.step_id, int(event.data["turn_number"]), event.type)
        text = self._texts.pop(key, "")  # put back behind all others: the latest one
        self._texts[key] = text[:offset] + content
        if offset > len(text):
            self._texts[key] = text
            raise ValueError(f"Event {event.seq} continues a text at {offset}, beyond {len(text)}.")
        return True

    @property
    def content(self) -> str:
        """The latest text that is not thinking; empty before there is any."""
        written = [text for key, text in self._texts.items() if key.kind == CONTENT]
        return written[-1] if written else ""

    def of(self, turn_number: int, *, step_id: str | None = None, kind: str = CONTENT) -> str:
        """Return the text of a turn; empty if there is none."""
        return self._texts.get(TextKey(step_id, turn_number, kind), "")

    @property
    def texts(self) -> dict[TextKey, str]:
        """All texts, the latest last."""
        return dict(self._texts)
