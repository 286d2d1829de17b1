"""A model call whose request a client wrote and whose reply the client receives unchanged.

The call is reserved, retried, settled and journaled like any other call. Only the body differs: it
is sent as the client wrote it, and the reply is passed on while it arrives. The call is not retried
once a part of the reply was passed on.

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
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from caseworker.engine.call import FREE, AttemptError, Call, RateSlot, Reply
from caseworker.models.forms import storable_text
from caseworker.models.model_call import ModelCall, journaled, noted
from caseworker.models.ports import ModelFault, ModelReply, SendState
from caseworker.models.table import ChatModel
from caseworker.models.turns import Turns
from caseworker.models.wires.endpoint import EndpointProvider, begins_stream
from caseworker.models.wires.failures import RAW_REPLY_BYTES, Failures, error_in, report_in
from caseworker.models.wires.key_search import masked
from caseworker.models.wires.reply import Accumulator
from caseworker.models.wires.sse import ERROR
from caseworker.models.wires.transport import WireError, WireReply
from caseworker.platform.json_pieces import PieceEncoder
from caseworker.platform.logs.secret_mask import SecretMask

RETURNED: Final = frozenset({"content-type", "retry-after", "x-request-id", "request-id"})
"""Headers of a provider's reply that the client receives."""
LONG_REPLY_BYTES: Final = 256 * 1024
"""Size of replies that are packed in a thread."""
WIRE: Final = "wire"
"""Field of a call's journal value with the reply as the client received it."""
OBJECTS: Final = "objects"
"""Field in it with the IDs of the objects at the provider that the reply names."""
NO_REPLY: Final = ModelFault.UNAVAILABLE.value
"""Error class of a call to which the provider did not reply."""
UNREADABLE: Final = ModelFault.UNREADABLE_REPLY.value
"""Error class of a call whose reply cannot be read."""
SUPERSEDED: Final = "superseded"
"""Error class of a call whose attempt ended before it was sent."""
MAX_ID_CHARS: Final = 200
"""Length of the longest ID of an object at a provider that is stored."""

_NO_COUNT: Final = "The provider's reply has no number of tokens."
_LEAST_THINKING_TOKENS: Final = 1024
"""Smallest limit for thinking that the Anthropic API accepts."""
_COMPACT: Final = PieceEncoder(separators=(",", ":"))
_LATIN_1: Final = 0xFF
"""Code of the last character that a header can have."""
_END_OF_STREAM: Final = b"data:[DONE]"
"""Event after the last event of a stream, without its blanks."""
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


@dataclass(kw_only=True, eq=False)
class RelayedCall(ModelCall):
    """One request of a client to one model."""

    body: Mapping[str, Any]
    """The request as the client wrote it, but for the name of the model."""
    headers: Mapping[str, str]
    """Headers of the client that the provider receives."""
    relay: Relay
    path: str
    """Path of the API below the provider's base URL."""
    is_long: bool
    """Whether the body is written in a thread."""
    limit_fields: tuple[str, ...]
    """Names of the fields that limit the output."""
    made_in: Mapping[str, Any]
    """Values of the client's session that are stored with the reply."""
    hides_usage: bool = False
    """Whether to keep the stream's token counts from the client, which did not request them."""
    is_superseded: Callable[[], bool] = lambda: False
    """Whether a later attempt of the run was opened, so that no further request is sent."""
    objects_in: Callable[[Mapping[str, Any]], Iterable[Any]] = lambda _: ()
    """Returns the IDs of the objects at the provider that a document of the reply names."""

    def __post_init__(self) -> None:
        """Keep the output limit above the limit for thinking."""
        if self._thinking_tokens:
            minimum = max(self.chat_model.min_output_tokens, _LEAST_THINKING_TOKENS + 1)
            self.chat_model = replace(self.chat_model, min_output_tokens=minimum)
        super().__post_init__()

    async def send(self, attempt: int) -> Reply:
        """Send the request once and pass the reply on.

        Raises:
            AttemptError: there was no complete reply; it is retryable if no part was passed on.
            Stop: cost is limited but the model's price is unknown.
        """
        if self._refusal is not None:
            raise self._refusal
        if self.is_superseded():
            raise _superseded()
        self._delivery = SendState(is_sent=False)
        provider = cast("EndpointProvider", self.chat_model.provider)
        failures = Failures(provider.name, False, provider.mask)
        written = partial(_written, self._fitted())
        content = await asyncio.to_thread(written) if self.is_long else written()
        try:
            reply = await provider.relay(
                content, self.headers, self._delivery.note_sent, path=self.path
            )
            try:
                error = await self._refused(reply, failures)
                if error is None:
                    return await self._passed_on(provider, reply, failures)
            finally:
                reply.close()
        except WireError as broken:
            error = failures.error(broken.words, retryable=broken.retryable)
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            error = failures.error("the reply cannot be read", retryable=True)
        failed = self._failed(error, attempt)
        failed.retryable = failed.retryable and not self.relay.has_started
        raise failed from None

    @property
    def _thinking_tokens(self) -> int:
        """The part of the output limit that the body reserves for thinking."""
        thinking = self.body.get("thinking")
        tokens = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
        return tokens if isinstance(tokens, int) else 0

    def _fitted(self) -> Mapping[str, Any]:
        """Return the body with the output limit that the budget can pay."""
        limit = self._tokens_out // self._choices
        limits = {
            name: n for name in self.limit_fields if isinstance(n := self.body.get(name), int)
        }
        is_lowered = self._tokens_out < self._bound.usage.tokens_out
        if not is_lowered and not self._sets_limit:
            return self.body
        lowered: dict[str, Any] = {name: min(n, limit) for name, n in limits.items()}
        if not lowered:
            provider = cast("EndpointProvider", self.chat_model.provider)
            lowered = {provider.limit_field(self.chat_model.model, self.limit_fields): limit}
        if limits and self._thinking_tokens >= limit:  # it must be below the output limit
            tokens = self._thinking_tokens * limit // max(limits.values())
            tokens = max(_LEAST_THINKING_TOKENS, tokens)
            lowered["thinking"] = {**self.body["thinking"], "budget_tokens": tokens}
        return {**self.body, **lowered}

    async def _refused(self, reply: WireReply, failures: Failures) -> Any:
        """Return the error of a reply without success, and keep the reply for the client."""
        if is_success(reply.status):
            return None
        self.relay.refused = head = await _read_head(reply, failures.mask)
        content = head.content or b""
        failures.raw += content[:RAW_REPLY_BYTES]
        report = report_in(_document(content))
        return failures.of_status(reply.status, report, reply.headers, adapts=False)

    async def _passed_on(
        self, provider: EndpointProvider, reply: WireReply, failures: Failures
    ) -> Reply:
        """Pass a successful reply on, and return its journal value and its usage."""
        answer, reading = provider.reading(self.chat_model.model, self.path)
        events, passed, object_ids = RawEvents(), bytearray(), dict[Any, None]()
        failure: Any = None

        def add(name: str, document: Any) -> None:
            nonlocal failure
            failure = failure or (document if name == ERROR else error_in(document))
            if isinstance(document, dict):
                answer.add(document)
                object_ids.update(dict.fromkeys(filter(is_id, self.objects_in(document))))

        def show(raw: bytes) -> None:
            passed.extend(raw)
            self.relay.begin(Head(HTTPStatus.OK, returned(reply.headers, provider.mask)))
            (self.relay.hold if reading.is_done else self.relay.write)(raw)

        async def take(event: bytes) -> None:
            raw, was_done = await masked(event, provider.mask), reading.is_done
            documents = [*reading.feed(raw)]
            for name, document in documents:
                add(name, document)
            if was_done:  # nothing more is read
                if raw.replace(b" ", b"").strip() == _END_OF_STREAM:
                    show(raw)
            elif not (self.hides_usage and any(_is_usage(each) for _, each in documents)):
                show(raw)

        async def take_rest() -> None:
            """Pass on the last event of a stream, whose end is missing, if it can be read."""
            raw = await masked(bytes(events.rest), provider.mask)
            was_done = reading.is_done
            try:
                documents = [*reading.feed(raw), *reading.end()]
            except ValueError:
                if not answer.ended:
                    raise
                return
            for name, document in documents:
                add(name, document)
            is_hidden = self.hides_usage and any(_is_usage(each) for _, each in documents)
            if not was_done and not is_hidden and (documents or reading.is_done):
                show(raw if answer.ended else raw + b"\n\n")  # an event with the error follows

        async with aclosing(reply.parts()) as parts:
            async for part in parts:
                failures.raw += part[: RAW_REPLY_BYTES - len(failures.raw)]
                for event in events.feed(part):
                    await take(event)
                if events.is_stream:  # a whole reply shows nothing before its end
                    self._delivery.note_part(answer)
        is_stream = events.is_stream
        if is_stream:
            await take_rest()
        else:
            passed.extend(await masked(bytes(events.rest), provider.mask))
            if not passed.strip():
                raise ValueError("The reply is empty.")
            for name, document in (*reading.feed(bytes(passed)), *reading.end()):
                add(name, document)
        self._delivery.note_part(answer)
        answer.prose.end()
        content = bytes(passed)
        head = Head(HTTPStatus.OK, returned(reply.headers, provider.mask), content)
        if failure is not None or (is_stream and not answer.ended):
            message = (
                "the stream broke off" if failure is None else report_in(failure).redacted_suffix
            )
            failed = self._failed(failures.error(message, retryable=False), 1)
            if answer.ended:  # a whole reply that reports a failure, with its token counts
                self.relay.fail(head)
                _, failed.spent = self._answered(_counted(answer, self.chat_model.model))
            raise failed
        if not is_stream:
            if answer.reply() is None and answer.counted() is None:
                raise ValueError("The reply has neither an answer nor token counts.")
            self.relay.hold(head)
        is_long = len(passed) > LONG_REPLY_BYTES
        wire = await asyncio.to_thread(stored, head) if is_long else stored(head)
        model_reply = answer.reply() or _counted(answer, self.chat_model.model)
        usage, spent = self._answered(model_reply)
        self._report_output_limit(model_reply)
        value = journaled(model_reply, usage, spent)
        value[WIRE] = {**wire, **self.made_in, **({OBJECTS: [*object_ids]} if object_ids else {})}
        return Reply(value, spent, noted(value, self.chat_model.model))


@dataclass(kw_only=True, eq=False)
class TokenCount(Call):
    """A request for the number of tokens of a client's body; the provider charges nothing for it.

    It counts as an API call and takes a rate slot.
    """

    chat_model: ChatModel
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    """Headers of the client that the provider receives."""
    path: str
    """Path of the function below the provider's base URL."""
    tenant: str
    turns: Turns | None = None
    is_superseded: Callable[[], bool] = lambda: False
    """Whether a later attempt of the run was opened, so that no request is sent."""
    reply: Head | None = field(init=False, default=None)
    """The whole reply of the provider; None if none arrived."""

    def rate_slot(self) -> RateSlot | None:
        """Return a new position in the queue of a rate-limited model, else None."""
        if self.turns is None or self.chat_model.limit is None:
            return None
        return self.turns.turn(self.chat_model.limit, self.tenant)

    async def send(self, attempt: int) -> Reply:
        """Send the request once.

        Raises:
            AttemptError: no reply arrived, or a successful one without a count; or the attempt of
                the run was superseded.
        """
        if self.is_superseded():
            raise _superseded()
        provider = cast("EndpointProvider", self.chat_model.provider)
        content = await asyncio.to_thread(_written, {**self.body, "model": self.chat_model.model})
        try:
            reply = await provider.relay(content, self.headers, path=self.path)
            try:
                self.reply = await _read_head(reply, provider.mask)
            finally:
                reply.close()
        except WireError:
            message = "The provider did not reply."
            raise AttemptError(message, error_class=NO_REPLY, retryable=False) from None
        if is_success(reply.status) and not _is_count(_document(self.reply.content or b"")):
            raise AttemptError(_NO_COUNT, error_class=UNREADABLE, retryable=False)
        return Reply({"status": self.reply.status}, FREE)


def _superseded() -> AttemptError:
    message = "A later attempt of the run was opened."
    return AttemptError(message, error_class=SUPERSEDED, retryable=False, spent=FREE)


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


def is_success(status: int) -> bool:
    """Return whether a reply with an HTTP status has an answer; the client receives it with 200."""
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


def _written(body: Mapping[str, Any]) -> bytes:
    return b"".join(piece.encode() for piece in _COMPACT.pieces(body))


def is_id(value: Any) -> bool:
    """Return whether a value has the form of an ID of an object at a provider."""
    is_text = isinstance(value, str) and value.isascii() and value.isprintable()
    return is_text and 0 < len(value) <= MAX_ID_CHARS


def _counted(answer: Accumulator, model: str) -> ModelReply:
    """Return a reply with the token counts of an answer that cannot be read, or that failed."""
    return ModelReply(text="", model=model, usage=answer.counted())


async def _read_head(reply: WireReply, mask: SecretMask) -> Head:
    async with aclosing(reply.parts()) as parts:
        content = await masked(b"".join([part async for part in parts]), mask)
    status = HTTPStatus.OK if is_success(reply.status) else reply.status
    return Head(status, returned(reply.headers, mask), content)


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


def _is_count(document: Any) -> bool:
    """Return whether a document has a number of tokens and no error."""
    tokens = document.get("input_tokens") if isinstance(document, dict) else None
    return type(tokens) is int and tokens >= 0 and error_in(document) is None


def _document(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode(errors="replace").strip()
