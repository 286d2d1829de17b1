"""Passes the reply of a provider to the clients that wait for it, unchanged while it arrives.

A reply passes through four states: its head is known; its parts arrive and are passed on; its last
part is held until the journal has stored the reply; it has ended. The last part is held because a
reply that the client has received whole must not be lost with this process. An interrupted stream
ends with the error event of its API, because clients take a stream that ends without one for a
complete answer.
"""

import asyncio
import base64
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from caseworker.models.forms import storable_text
from caseworker.models.wires.failures import error_in
from caseworker.models.wires.reply import Accumulator
from caseworker.models.wires.reply_body import ERROR, ReplyBody, begins_stream
from caseworker.platform.logs.secret_mask import SecretMask

RETURNED: Final = frozenset({"content-type", "retry-after", "x-request-id", "request-id"})
"""Headers of a provider's reply that the client receives."""
WIRE: Final = "wire"
"""Field of a call's journal value with the reply as the client received it."""
OBJECTS: Final = "objects"
"""Field in it with the IDs of the objects at the provider that the reply names."""
MAX_ID_CHARS: Final = 200
"""Length of the longest ID of an object at a provider that is stored."""

_LATIN_1: Final = 0xFF
"""Code of the last character that a header can have."""
_END_OF_STREAM: Final = b"data:[DONE]"
"""Event after the last event of a stream, without its blanks."""
_SHORT_BYTES: Final = 16 * 1024
"""Size of content that is masked without a thread."""
_ESCAPE: Final = re.compile(rb"\\(?:u00|x)[0-9A-Fa-f]{2}")
"""Escape of JSON or of a programming language."""
_BARE_ESCAPE: Final = re.compile(rb"%[0-9A-Fa-f]{2}|&(?:#|\w{2,40};)")
"""Escape of a URL or of HTML, in content without its backslashes."""
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
"""Two ends of a line; a stream may mix their kinds."""


@dataclass(frozen=True, slots=True)
class Head:
    """The status and the headers of a reply."""

    status: int
    headers: Mapping[str, str]
    content: bytes | None = None
    """The whole body, for a reply that is not passed on in parts; otherwise None."""


class Relay:
    """Passes one reply from a call to the clients that wait for it, each from its beginning."""

    def __init__(self) -> None:
        self.head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        """Status and headers, once they have arrived."""
        self.refused: Head | None = None
        """The last reply of the provider that was not a success; None if there was none."""
        self.reports_failure = False
        """Whether the reply is whole and reports a failure of the provider."""
        self._final_part: Head | bytes | None = None
        self._parts: list[bytes] = []
        self._ended = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def has_started(self) -> bool:
        """Whether the status was passed on, so that the call cannot be repeated."""
        return self.head.done()

    def begin(self, head: Head) -> None:
        """Pass on the status and the headers."""
        if not self.head.done():
            self.head.set_result(head)

    def write(self, part: bytes) -> None:
        """Pass on a part of the body."""
        self._parts.append(part)
        self._notify()

    def hold(self, last: Head | bytes) -> None:
        """Keep a whole reply, or the last part of a stream, until the reply is recorded."""
        before = self._final_part
        self._final_part = (
            before + last if isinstance(before, bytes) and isinstance(last, bytes) else last
        )

    @property
    def is_taken(self) -> bool:
        """Whether a reply of the provider has been passed on or is held."""
        return self.has_started or self._final_part is not None

    def fail(self, reply: Head) -> None:
        """Keep a whole reply that reports a failure; the client receives it as it is."""
        self.refused, self.reports_failure = reply, True

    @property
    def failed(self) -> bool:
        """Whether the body ended with an error, so that no request may join it."""
        return self._error is not None

    def end(self, error: BaseException | None = None) -> None:
        """End the body, with an error if it is incomplete; then nothing is held any more."""
        match self._final_part if error is None or self.reports_failure else None:
            case Head() as head:
                self.begin(head)
            case bytes() as last:
                self._parts.append(last)
        if error is not None and not self.head.done():
            self.head.set_exception(error)
            self.head.exception()  # mark as retrieved: the client may be gone
        self._ended, self._error = True, error
        self._notify()

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the whole body as it arrives.

        Raises:
            BaseException: the error with which the body ended.
        """
        at = 0
        while True:
            changed = self._changed
            while at < len(self._parts):
                yield self._parts[at]
                at += 1
            if self._ended:
                break
            await changed.wait()
        if self._error is not None:
            raise self._error

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RawEvents:
    """Splits an event stream into its events, without changing a byte; keeps any other body."""

    def __init__(self) -> None:
        self.is_stream: bool | None = None
        """Whether the body is an event stream; None until the first data arrives."""
        self.rest = bytearray()
        """Beginning of an event whose end has not arrived, or the body that is not a stream."""

    def feed(self, part: bytes) -> list[bytes]:
        """Return the events that the next part of the body completes, with their blank lines."""
        scanned, at = max(0, len(self.rest) - 3), 0
        self.rest += part
        if self.is_stream is None:
            self.is_stream = begins_stream(self.rest)
        if not self.is_stream:
            return []
        events = list[bytes]()
        for end in [match.end() for match in _EVENT_END.finditer(self.rest, scanned)]:
            events.append(bytes(self.rest[at:end]))
            at = end
        del self.rest[:at]
        return events


@dataclass(slots=True, kw_only=True)
class PassedReply:
    """A successful reply that is passed on while it arrives, and read for its journal value."""

    relay: Relay
    answer: Accumulator
    reading: ReplyBody
    headers: Mapping[str, str]
    """The headers that the client receives."""
    mask: SecretMask
    hides_usage: bool
    """Whether to keep the stream's token counts from the client."""
    objects_in: Callable[[Mapping[str, Any]], Iterable[Any]]
    """Returns the IDs of the objects at the provider that a document names."""
    failure: Any = None
    """The error that the provider reports in the reply; None if there is none."""
    object_ids: dict[str, None] = field(default_factory=dict)
    """The IDs of the objects at the provider that the reply names, without duplicates."""
    _events: RawEvents = field(default_factory=RawEvents)
    _content: bytearray = field(default_factory=bytearray)

    @property
    def is_stream(self) -> bool:
        """Whether the reply is a stream; False until its first data arrives."""
        return bool(self._events.is_stream)

    @property
    def head(self) -> Head:
        """The reply as the client receives it, with the body so far."""
        return Head(HTTPStatus.OK, self.headers, bytes(self._content))

    async def feed(self, part: bytes) -> None:
        """Pass on the events that a part of the body completes; a whole reply waits for its end.

        Raises:
            ValueError: an event cannot be read.
        """
        for event in self._events.feed(part):
            raw, was_done = await masked(event, self.mask), self.reading.is_done
            documents = [*self.reading.feed(raw)]
            self._read(documents)
            if was_done:  # nothing more is read
                if raw.replace(b" ", b"").strip() == _END_OF_STREAM:
                    self._show(raw)
            elif not self._is_hidden(documents):
                self._show(raw)

    async def end(self) -> None:
        """Read the rest of the body, and pass on the last event of a stream if it can be read.

        Raises:
            ValueError: the rest cannot be read, or the reply is empty.
        """
        raw, was_done = await masked(bytes(self._events.rest), self.mask), self.reading.is_done
        if not self.is_stream:
            self._content.extend(raw)
            if not raw.strip():
                raise ValueError("The reply is empty.")
        try:
            documents = [*self.reading.feed(raw), *self.reading.end()]
        except ValueError:
            if not (self.is_stream and self.answer.ended):
                raise
            return
        self._read(documents)
        is_last = self.is_stream and not was_done and not self._is_hidden(documents)
        if is_last and (documents or self.reading.is_done):
            # Without the end of the answer, an event with the error follows.
            self._show(raw if self.answer.ended else raw + b"\n\n")

    def _read(self, documents: Iterable[tuple[str, Any]]) -> None:
        for name, document in documents:
            error = document if name == ERROR else error_in(document)
            self.failure = self.failure or error
            if isinstance(document, dict):
                self.answer.add(document)
                self.object_ids |= dict.fromkeys(filter(is_id, self.objects_in(document)))

    def _is_hidden(self, documents: Iterable[tuple[str, Any]]) -> bool:
        return self.hides_usage and any(_is_usage(document) for _, document in documents)

    def _show(self, raw: bytes) -> None:
        self._content.extend(raw)
        self.relay.begin(Head(HTTPStatus.OK, self.headers))
        (self.relay.hold if self.reading.is_done else self.relay.write)(raw)


def stored(head: Head) -> dict[str, str]:
    """Return the form of a whole reply in the journal: its content type, and its packed body."""
    packed = base64.b64encode(zlib.compress(head.content or b"")).decode("ascii")
    return {"content_type": head.headers.get("content-type", ""), "packed": packed}


def restored(wire: Mapping[str, Any]) -> Head:
    """Return the reply that :func:`stored` packed."""
    content = zlib.decompress(base64.b64decode(wire["packed"]))
    return Head(200, {"content-type": storable_text(wire["content_type"])}, content)


def is_recorded(wire: Mapping[str, Any]) -> bool:
    """Return whether the journal holds a whole reply."""
    return "packed" in wire


def is_id(value: Any) -> bool:
    """Return whether a value has the form of an ID of an object at a provider."""
    is_text = isinstance(value, str) and value.isascii() and value.isprintable()
    return is_text and 0 < len(value) <= MAX_ID_CHARS


def returned(headers: Mapping[str, str], mask: SecretMask) -> dict[str, str]:
    """Return the headers that the client receives, without values that HTTP cannot carry."""
    return {
        name: mask.apply(value)
        for name, value in headers.items()
        if name in RETURNED and value.isprintable() and ord(max(value, default=" ")) <= _LATIN_1
    }


def _is_usage(document: Any) -> bool:
    """Return whether a stream's document has only token counts."""
    return (
        isinstance(document, dict)
        and not document.get("choices")  # some omit it, or send null
        and document.get("usage") is not None
    )


async def masked(content: bytes, mask: SecretMask) -> bytes:
    """Return a reply, or one event of it, in which the secrets are masked."""
    if not may_show(content, mask):
        return content
    if len(content) <= _SHORT_BYTES:
        return _masked(content, mask)
    return await asyncio.to_thread(_masked, content, mask)


def may_show(content: bytes, mask: SecretMask) -> bool:
    """Return whether content may have a secret: it has one as plain text, or it has escapes.

    Without escapes of characters, only backslashes can be between the characters of a secret.
    """
    bare = content.replace(b"\\", b"").replace(b"\0", b"")
    if _BARE_ESCAPE.search(bare) or (len(bare) < len(content) and _ESCAPE.search(content)):
        return True
    return mask.apply_to_bytes(bare) != bare


def _masked(content: bytes, mask: SecretMask) -> bytes:
    if b"\0" not in content:
        return mask.apply_to_bytes(content)
    encoding = json.detect_encoding(content)  # UTF-16 and UTF-32 have zero bytes
    text = mask.apply(content.decode(encoding, "replace")).encode(encoding, "replace")
    bare = text.replace(b"\0", b"")
    hidden = mask.apply_to_bytes(bare)
    return text if hidden == bare else hidden
