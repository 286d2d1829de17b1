"""A model provider for one endpoint of any supported API; each attempt is one HTTP request."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Protocol

import orjson
from multidict import istr

from caseworker.models.ports import ModelError, ModelReply, ModelRequest, SendState
from caseworker.models.wires.failures import RAW_REPLY_BYTES, Failures, error_in, report_in
from caseworker.models.wires.finish_reasons import Finish, meaning_of
from caseworker.models.wires.reply import Accumulator
from caseworker.models.wires.responses import LAST_EVENTS
from caseworker.models.wires.sse import ERROR, EventParser, ServerSentEvent
from caseworker.models.wires.transport import (
    ConnectionFailedError,
    ReplyRefusedError,
    Wire,
    WireError,
    WireReply,
)
from caseworker.platform.fair_slots import FairSlots
from caseworker.platform.logs.redaction import names_secret
from caseworker.platform.logs.secret_mask import SecretMask

MAX_IN_FLIGHT = 10_000
"""Maximum number of concurrent attempts; further attempts wait."""

STREAM = "stream"
"""Name of the parameter that asks for a stream. A model that refuses it is asked without at once.
"""

_WORDS = {STREAM: "stream(ing)?"}
"""Patterns of the words by which endpoints name a parameter, if they do not use its name."""

_DEFAULT_TIMEOUT_SECONDS = 600.0
"""Time limit of an attempt whose request sets none."""
_LAST_SECONDS = 5.0
"""How long to wait for further events, such as token counts, after the answer has ended."""
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
_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "user-agent": "caseworker",
}


class WireFormat(Protocol):
    """The API of one endpoint: builds request bodies and parses replies."""

    name: str
    base_url: str
    path: str
    """Path of the API below ``base_url``."""
    other_apis: Mapping[str, type[Accumulator]]
    """Parsers for the replies of the endpoint's other APIs, by path."""
    headers: dict[str, str]
    adaptable: tuple[str, ...]
    """Names of parameters that are omitted or renamed if the endpoint rejects them."""

    def body(self, model: str, request: ModelRequest, omitted: frozenset[str]) -> dict[str, Any]:
        """Build the request body without the parameters in ``omitted``."""
        ...

    def limit_field(self, model: str, omitted: frozenset[str]) -> str:
        """Return the parameter that limits the output, without those in ``omitted``."""
        ...

    def accumulator(self, model: str, request: ModelRequest) -> Accumulator:
        """Create an accumulator for the reply to a request."""
        ...


class EndpointProvider:
    """A `ModelProvider` for one endpoint."""

    external = True
    """Always True: an attempt costs money or uses a machine outside this process."""

    def __init__(self, dialect: WireFormat, wire: Wire, max_in_flight: int) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._wire = wire
        self._slots = FairSlots(max_in_flight)
        self.mask: SecretMask = SecretMask(
            value for name, value in dialect.headers.items() if names_secret(name)
        )
        """Masks the key of the endpoint in its replies."""
        # istr: aiohttp would make lower-case copies of other names for each request.
        self._headers: dict[str, str] = {
            istr(k): v for k, v in {**_HEADERS, **dialect.headers}.items()
        }
        self._omitted: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
        """Parameters that each model has rejected."""

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Send exactly one request and return the reply.

        The request asks for a stream, so that a reply that breaks off is known in part. A model
        that refuses to stream is asked again at once without one, and from then on.

        Waiting for a free connection slot does not count towards the attempt's time limit.

        Raises:
            ModelError: there is no usable reply.
        """
        if request.delivery is not None:
            request.delivery.is_sent = False
        structured = request.json_object or request.json_schema is not None
        failures = Failures(self.name, structured, self.mask)
        seconds = request.timeout_seconds
        if seconds is None:
            seconds = _DEFAULT_TIMEOUT_SECONDS
        outcome: ModelReply | ModelError
        async with self._slots.held():
            try:
                async with asyncio.timeout(seconds):
                    outcome = await self._attempt(model, request, failures)
            except WireError as error:
                outcome = failures.error(error.words, retryable=error.retryable)
            except TimeoutError:
                outcome = failures.error("no answer in time", retryable=True)
            except Exception as error:
                # Like a 502, an unreadable reply is usually a temporary problem of a gateway.
                retryable = not isinstance(error, UnicodeEncodeError)
                what = "reply cannot be read" if retryable else "request cannot be sent"
                words = f"the {what} ({type(error).__name__})"
                outcome = failures.error(words, retryable=retryable)
        if isinstance(outcome, ModelError):
            # Raised here so that the error has no context: its traceback would reveal the request.
            raise outcome
        return outcome

    async def relay(
        self,
        content: bytes,
        headers: Mapping[str, str],
        note_sent: Callable[[], None] = lambda: None,
        *,
        path: str,
    ) -> WireReply:
        """Send a body that a client wrote for an API of the endpoint; return the reply unread.

        The reply may quote the key of the endpoint. ``headers`` are those of the client that the
        provider may receive; they replace the defaults. They must not contain credentials.
        ``note_sent`` is called just before the body is sent. ``path`` is that of the API below the
        base URL.

        Raises:
            WireError: no reply arrived.
        """
        all_headers = {**self._headers, **headers}
        return await self._wire.post(self._dialect.base_url + path, all_headers, content, note_sent)

    def limit_field(self, model: str, offered: Sequence[str]) -> str:
        """Return the one of the parameters ``offered`` that limits the output of a model."""
        name = self._dialect.limit_field(model, self._omitted[model])
        return name if name in offered else offered[0]

    def reading(self, model: str, path: str) -> tuple[Accumulator, "ReplyBody"]:
        """Return the two parsers for a relayed reply: of its answer, and of its documents."""
        if (other := self._dialect.other_apis.get(path)) is not None:
            return other(model, self.name), ReplyBody()
        return self._dialect.accumulator(model, ModelRequest(messages=())), ReplyBody()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.aclose()

    async def _attempt(
        self, model: str, request: ModelRequest, failures: Failures
    ) -> ModelReply | ModelError:
        outcome = await self._send(model, request, failures)
        if outcome is None:
            failures.raw.clear()
            outcome = await self._send(model, request, failures)
        return outcome or failures.error("the endpoint refuses to stream", retryable=False)

    async def _send(
        self, model: str, request: ModelRequest, failures: Failures
    ) -> ModelReply | ModelError | None:
        """Send a request; return None if the model refuses to stream, as it must no longer do."""
        content, adaptable = self._content(model, request)
        delivery = request.delivery
        url = self._dialect.base_url + self._dialect.path
        note_sent = _ignore if delivery is None else delivery.note_sent
        sending = self._wire.post(url, self._headers, content, note_sent)
        del content  # a conversation takes much memory while its reply is awaited
        reply = await sending
        if reply.status != 200:
            reply = _MaskedReply(reply, self.mask)
        try:
            if reply.status == 200:
                if delivery is not None and request.on_delta is None:
                    accumulator = self._dialect.accumulator(model, request)
                    delivery.read_later = partial(_read_later, accumulator, ReplyBody())
                taking = self._dialect.accumulator(model, request)
                return await _answer(reply, taking, request, failures)
            parts = [part async for part in _with_raw_reply(reply, failures)]
        finally:
            reply.close()
        report = report_in(_document(b"".join(parts).decode(errors="replace")))
        refused = {name for name in adaptable if report.complains_of(_WORDS.get(name, name))}
        adapts = reply.status in (400, 422) and bool(refused)
        if adapts:
            self._omitted[model] |= refused
            if STREAM in refused:
                return None
        return failures.of_status(reply.status, report, reply.headers, adapts=adapts)

    def _content(self, model: str, request: ModelRequest) -> tuple[bytes, Sequence[str]]:
        """Return the body of a request, and those of its parameters that may be left out."""
        body = self._dialect.body(model, request, self._omitted[model])
        try:
            content = orjson.dumps(body)
        except TypeError:  # an integer of more than 64 bits
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        adaptable = [name for name in self._dialect.adaptable if name in body]
        return content, adaptable if body.get(STREAM) else [
            name for name in adaptable if name != STREAM
        ]


def _ignore() -> None:
    return None


async def _answer(
    reply: WireReply,
    taking: Accumulator,
    request: ModelRequest,
    failures: Failures,
) -> ModelReply | ModelError:
    """Read a reply, streamed or not.

    A failure after the provider sent the finish reason does not discard the answer.
    """
    body, patience, failed = ReplyBody(), asyncio.timeout(None), None
    on_delta = request.on_delta
    delivery = None if on_delta is None else request.delivery
    later = request.delivery if on_delta is None else None

    def show() -> None:
        if on_delta is not None:
            for delta in taking.deltas:
                on_delta(delta)
        taking.deltas.clear()

    try:
        async with patience, aclosing(body.documents(reply, failures, later)) as documents:
            async for name, document in documents:
                error = document if name == ERROR else error_in(document)
                if error is not None:
                    failed = failures.of_document(
                        report_in(failures.mask.apply_to(error)), has_started=taking.has_started
                    )
                    break
                if not isinstance(document, dict):
                    raise TypeError
                taking.add(document)
                if delivery is not None:
                    delivery.note_part(taking)
                show()
                if taking.ended and patience.when() is None:
                    patience.reschedule(asyncio.get_running_loop().time() + _LAST_SECONDS)
    except (WireError, TimeoutError, ValueError, TypeError):
        if not taking.ended:
            raise
    if failed is not None and not taking.ended:
        return failed
    taking.prose.end()
    show()
    if body.is_stream and not taking.ended:
        return failures.error("the stream broke off", retryable=True)
    answer = taking.reply()
    if failed is not None and (answer is None or answer.incomplete is not None):
        return failed
    if answer is None:
        return failures.error("the reply cannot be read (no answer in it)", retryable=True)
    if meaning_of(answer.finish_reason) is Finish.FAILED:
        words = f"the provider broke the answer off ({answer.finish_reason})"
        return failures.error(words, retryable=True)
    return answer


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

        With ``later``, the parts are added to its ``unread`` with their times, and read only once a
        part may end the reply, or once they have a megabyte: to read many parts at once costs less.

        Raises:
            ValueError: a document is not valid JSON.
        """
        unparsed, size_bytes, window, may_end = list[bytes](), 0, b"", later is None
        async with aclosing(_with_raw_reply(reply, failures)) as parts:
            async for part in parts:
                if later is not None:
                    later.unread.append((asyncio.get_running_loop().time(), part))
                if later is not None and not may_end:
                    unparsed.append(part)
                    size_bytes += len(part)
                    window = window[-_MARK_BYTES:] + part
                    may_end = any(mark in window for mark in _MARKS)
                    if not may_end and size_bytes < _BATCH_BYTES:
                        continue
                    if not may_end:
                        later.read_unread()
                    part, size_bytes = b"".join(unparsed), 0
                    unparsed.clear()
                for each in self.feed(part):
                    yield each
                if self.is_done:
                    # A connection can be reused only if its reply was read to the end.
                    with suppress(TimeoutError, ConnectionFailedError, ReplyRefusedError):
                        async with asyncio.timeout(_DRAIN_SECONDS):
                            async for _ in parts:
                                pass
                    return
        for each in self.feed(b"".join(unparsed)):
            yield each
        for each in self.end():
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
            document = _document(data)
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


def _read_later(
    taking: Accumulator,
    body: ReplyBody,
    state: SendState,
    parts: Sequence[tuple[float, bytes]],
) -> None:
    """Read the parts of a reply that broke off, for its charge."""
    for at, part in parts:
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            for _, document in body.feed(part):
                if isinstance(document, dict):
                    taking.add(document)
        state.note_part(taking, at)


class _MaskedReply:
    """A reply without success, in which the endpoint may quote its key."""

    def __init__(self, reply: WireReply, mask: SecretMask) -> None:
        self.status = reply.status
        self.headers = {name: mask.apply(value) for name, value in reply.headers.items()}
        self.close = reply.close
        self._reply = reply
        self._mask = mask

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the whole body, as for `WireReply`."""
        async with aclosing(self._reply.parts()) as parts:
            content = b"".join([part async for part in parts])
        yield await asyncio.to_thread(self._mask.apply_to_bytes, content)


async def _with_raw_reply(reply: WireReply, failures: Failures) -> AsyncGenerator[bytes]:
    """Yield the parts of a body; keep its beginning for the error message of a failure."""
    async with aclosing(reply.parts()) as parts:
        async for part in parts:
            failures.raw += part[: RAW_REPLY_BYTES - len(failures.raw)]
            yield part


def _document(text: str) -> Any:
    """Return the parsed JSON document, or the text itself if it is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return text.strip()
