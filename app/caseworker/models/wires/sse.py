"""Parses server-sent events as in the HTML standard, from bytes split at any point.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

ERROR = "error"

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
        self._partial_line: list[bytes] = []
        """Pieces of an incomplete line."""
        self._after_cr = False
        """Whether the last piece ended with a carriage return, which a line feed may follow."""
        self._first = True
        self._name = ""
        self._data: list[str] = []

    @property
    def is_between(self) -> bool:
        """Whether the last event has ended and the next one has not begun."""
        return not (self._partial_line or self._data or self._name or self._after_cr)

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Process a piece of the stream and yield the events that it completes."""
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        *complete, rest = _LINE_END.split(piece)
        for line in complete:
            yield from self._line(b"".join((*self._partial_line, line)))
            self._partial_line.clear()
        if rest:
            self._partial_line.append(rest)
        self._after_cr = self._after_cr or piece.endswith(b"\r")

    def end(self) -> Iterator[ServerSentEvent]:
        """Yield the last event if the stream ended without a blank line after it."""
        if self._partial_line:
            yield from self._line(b"".join(self._partial_line))
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
