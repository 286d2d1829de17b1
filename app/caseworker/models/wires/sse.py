"""Parses server-sent events as in the HTML standard, from bytes split at any point.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

ERROR = "error"

_DATA = b"data: "
_END = b"\n\n"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """A server-sent event that has data."""

    name: str
    """Value of the ``event`` field; empty if the field is missing."""
    data: str
    """The ``data`` lines, joined by newlines."""


class EventParser:
    """Parses an event stream; call ``feed`` with each piece of it, then ``end`` once.

    It differs from the standard in three ways that endpoints require. A final event without a blank
    line after it is returned by ``end``. An event with blank data is dropped. A line ``error:
    {...}`` (llama.cpp) is an event named ``error``.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """Pieces of an incomplete line."""
        self._after_cr = False
        """Whether the last piece ended with a carriage return, which a line feed may follow."""
        self._first = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Process a piece of the stream and yield the events that it completes."""
        between = not (self._begun or self._data or self._name or self._after_cr)
        if between and piece.startswith(_DATA) and b"\r" not in piece:
            self._first = False
            events, piece = _of_one_line(piece)
            yield from events
            if not piece:
                return
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        *complete, rest = _LINE_END.split(piece)
        for line in complete:
            yield from self._line(b"".join((*self._begun, line)))
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        self._after_cr = self._after_cr or piece.endswith(b"\r")

    def end(self) -> Iterator[ServerSentEvent]:
        """Yield the last event if the stream ended without a blank line after it."""
        if self._begun:
            yield from self._line(b"".join(self._begun))
        yield from self._dispatch()

    def _line(self, line: bytes) -> Iterator[ServerSentEvent]:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            yield from self._dispatch()
            return
        field, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == ERROR and value:
            yield ServerSentEvent(ERROR, value)

    def _dispatch(self) -> Iterator[ServerSentEvent]:
        data, name = "\n".join(self._data), self._name
        self._data, self._name = [], ""
        if data.strip():
            yield ServerSentEvent(name, data)


def _of_one_line(piece: bytes) -> tuple[list[ServerSentEvent], bytes]:
    """Return the events of one line that a piece begins with, and the rest of the piece.

    Almost all events of a model are of this form, and this is four times as fast as lines.
    """
    *ended, rest = piece.split(_END)
    events = list[ServerSentEvent]()
    for at, event in enumerate(ended):
        if not event.startswith(_DATA) or b"\n" in event:
            return events, _END.join((*ended[at:], rest))
        data = event[len(_DATA) :].decode(errors="replace")
        if data and not data.isspace():
            events.append(ServerSentEvent("", data))
    return events, rest
