"""Reads the body of a reply: one JSON document, or a stream of server-sent events.

Events are parsed as in the HTML standard, from bytes split at any point:
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from caseworker.models.ports import SendState
from caseworker.models.wires.failures import RAW_REPLY_BYTES, Failures
from caseworker.models.wires.responses import LAST_EVENTS
from caseworker.models.wires.transport import ConnectionFailedError, ReplyRefusedError, WireReply

ERROR = "error"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_DRAIN_SECONDS = 0.1
"""How long to wait for the end of a reply after its last event, before the connection is closed."""
_END_OF_STREAM = "[DONE]"
_DONE_LINE = _END_OF_STREAM.encode()
_DATA = b"data: "
_EVENT_END = b"\n\n"
_LAST_EVENTS = LAST_EVENTS | {"message_stop"}
_MARKS = (b"[DONE]", b'_reason":"', b'_reason": "', b"message_stop", b"error")
"""The first part that may end a reply has one of these marks; the parts before it are only kept."""
_MARK_BYTES = 32
_BATCH_BYTES = 1024 * 1024
"""Size of the parts that are read at once, which takes about 50 ms."""
_FIELDS = b":deir"
"""First characters of an event stream; no JSON document starts with one."""
_BLANK = b"\xef\xbb\xbf \t\r\n"


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


class ReplyBody:
    """Reads the body of a reply, which is one JSON document or a stream of events.

    The first character decides which of them it is, because some endpoints send the wrong content
    type.
    """

    def __init__(self) -> None:
        self.is_stream: bool | None = None
        """None until the first data arrives."""
        self.is_done = False
        """Whether the stream has announced its end."""
        self._beginning = bytearray()
        self._events: EventParser | None = None
        """None until the body is known to be a stream."""

    async def documents(
        self,
        reply: WireReply,
        failures: Failures,
        later: SendState | None = None,
    ) -> AsyncGenerator[tuple[str, Any]]:
        """Yield the event name and the JSON value of each document.

        With ``later``, the parts are added to its ``unread`` with their times, and read in batches.

        Raises:
            ValueError: a document is not valid JSON.
        """
        batches = None if later is None else _Batches(later)
        async with aclosing(with_raw_reply(reply, failures)) as parts:
            async for part in parts:
                batch = part if batches is None else batches.add(part)
                for each in self.feed(batch):
                    yield each
                if self.is_done:
                    # A connection can be reused only if its reply was read to the end.
                    with suppress(TimeoutError, ConnectionFailedError, ReplyRefusedError):
                        async with asyncio.timeout(_DRAIN_SECONDS):
                            async for _ in parts:
                                pass
                    return
        for each in chain(self.feed(b"" if batches is None else batches.join()), self.end()):
            yield each

    def end(self) -> Iterator[tuple[str, Any]]:
        """Yield the last documents, once the body has ended.

        Raises:
            ValueError: a document is not valid JSON.
        """
        if self._events is not None:
            for event in self._events.end():
                if not self.is_done and (parsed := self._parsed(event)) is not None:
                    yield parsed
        elif self._beginning:
            yield "", json.loads(self._beginning)

    def feed(self, part: bytes) -> Iterator[tuple[str, Any]]:
        """Yield the event name and the JSON value of each document that a part completes.

        Raises:
            ValueError: a document is not valid JSON.
        """
        if self._events is None:
            self._beginning += part
            if self.is_stream is None:
                self.is_stream = begins_stream(self._beginning)
            if not self.is_stream:
                return
            self._events, part = EventParser(), bytes(self._beginning)
        if (documents := self._usual(part)) is not None:
            for document in documents:
                yield "", document
            return
        for event in self._events.feed(part):
            if not self.is_done and (parsed := self._parsed(event)) is not None:
                yield parsed

    def _usual(self, part: bytes) -> list[Any] | None:
        """Return the documents of a part of whole events that have one line of data each.

        To read them at once takes a third of the time. Returns None for any other part.
        """
        is_usual = part.startswith(_DATA) and part.endswith(_EVENT_END) and b"\r" not in part
        if self.is_done or self._events is None or not (is_usual and self._events.is_between):
            return None
        lines = part[len(_DATA) : -len(_EVENT_END)].split(_EVENT_END + _DATA)
        if part.count(b"\n") != len(_EVENT_END) * len(lines):
            return None
        is_last = lines[-1] == _DONE_LINE
        if is_last:
            lines.pop()
        try:
            documents = json.loads(b"[%s]" % b",".join(lines))
        except ValueError:
            return None
        is_whole = len(documents) == len(lines) and all(type(each) is dict for each in documents)
        if not is_whole or any(each.get("type") in _LAST_EVENTS for each in documents):
            return None
        self.is_done = is_last
        return list(documents)

    def _parsed(self, event: ServerSentEvent) -> tuple[str, Any] | None:
        """Return the name and the JSON value of an event; None for a keep-alive and the end."""
        data = event.data
        if data.startswith(_END_OF_STREAM):
            self.is_done = True
            return None
        if event.name == ERROR:
            document = json_or_text(data)
        elif data[0] in "{[" or data.lstrip()[:1] in ("{", "["):
            document = json.loads(data)
        else:
            return None
        self.is_done = isinstance(document, dict) and document.get("type") in _LAST_EVENTS
        return event.name, document


def begins_stream(content: bytes | bytearray) -> bool | None:
    """Return whether the beginning of a body is that of an event stream; None if it is blank.

    The content type does not matter, because some endpoints send a wrong one.
    """
    first = content.lstrip(_BLANK)[:1]
    return first in _FIELDS if first else None


class _Batches:
    """Joins the parts of a reply until one may end it, because reading many at once costs less.

    A batch has at most about a megabyte. The parts from the first that may end the reply are
    batches of their own.
    """

    def __init__(self, later: SendState) -> None:
        self._later = later
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._window = b""
        """The end of the last part and the next one, because a mark may be in both."""
        self._may_end = False

    def add(self, part: bytes) -> bytes:
        """Record a part; return the batch to read now, which may be empty."""
        self._later.unread.append((asyncio.get_running_loop().time(), part))
        if self._may_end:
            return part
        self._parts.append(part)
        self._size_bytes += len(part)
        self._window = self._window[-_MARK_BYTES:] + part
        self._may_end = any(mark in self._window for mark in _MARKS)
        if not self._may_end:
            if self._size_bytes < _BATCH_BYTES:
                return b""
            self._later.read_unread()
        return self.join()

    def join(self) -> bytes:
        """Return the parts that were not read yet."""
        batch, self._size_bytes = b"".join(self._parts), 0
        self._parts.clear()
        return batch


async def with_raw_reply(reply: WireReply, failures: Failures) -> AsyncGenerator[bytes]:
    """Yield the parts of a body; keep its beginning for the error message of a failure."""
    async with aclosing(reply.parts()) as parts:
        async for part in parts:
            failures.raw += part[: RAW_REPLY_BYTES - len(failures.raw)]
            yield part


def json_or_text(text: str) -> Any:
    """Return the parsed JSON document, or the text itself if it is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return text.strip()
