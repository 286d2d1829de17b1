"""A model provider for one endpoint of any supported API; each attempt is one HTTP request."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import orjson
from multidict import istr

from caseworker.models.ports import (
    Delta,
    ModelEndpoint,
    ModelError,
    ModelReply,
    ModelRequest,
    SendState,
)
from caseworker.models.wires.failures import Failures, error_in, report_in
from caseworker.models.wires.finish_reasons import Finish, meaning_of
from caseworker.models.wires.reply import Accumulator
from caseworker.models.wires.reply_body import ERROR, ReplyBody, json_or_text, with_raw_reply
from caseworker.models.wires.transport import ModelTransport, Wire, WireError, WireReply
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
EMBEDDINGS_PATH: Final = "/embeddings"
_NO_KEY = "none"  # some servers require a key, local ones ignore it
_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "user-agent": "caseworker",
}


class WireFormat(ABC):
    """The API of one endpoint: builds request bodies and parses replies."""

    name: ClassVar[str]
    default_base_url: ClassVar[str]
    path: ClassVar[str]
    """Path of the API below ``base_url``."""
    other_apis: ClassVar[Mapping[str, type[Accumulator]]] = MappingProxyType({})
    """Parsers for the replies of the endpoint's other APIs, by path."""
    adaptable: ClassVar[tuple[str, ...]]
    """Names of parameters that are omitted or renamed if the endpoint rejects them."""

    def __init__(self, base_url: str | None, api_key: str | None) -> None:
        """Use the API at ``base_url``, by default that of its maker.

        Only the given key is sent, never one from the environment.
        """
        url = base_url or self.default_base_url
        self.base_url = url.rstrip("/")
        self.host = urlsplit(url).hostname or ""
        self.is_default = self.host == urlsplit(self.default_base_url).hostname
        self.origin = self.name if self.is_default else f"{self.name} at {self.host}"
        """Name of the endpoint in the data that it expects back."""
        self.headers = self.headers_with(api_key or _NO_KEY)

    @abstractmethod
    def headers_with(self, api_key: str) -> dict[str, str]:
        """Return the headers of the API."""

    @abstractmethod
    def body(self, model: str, request: ModelRequest, omitted: frozenset[str]) -> dict[str, Any]:
        """Build the request body without the parameters in ``omitted``."""

    @abstractmethod
    def limit_field(self, model: str, omitted: frozenset[str]) -> str:
        """Return the parameter that limits the output, without those in ``omitted``."""

    @abstractmethod
    def accumulator(self, model: str, request: ModelRequest) -> Accumulator:
        """Create an accumulator for the reply to a request."""


def provider_of(
    api: type[WireFormat],
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    wire: Wire | None = None,
) -> "EndpointProvider":
    """Create the provider of an API for its maker's endpoint, or for the server at ``base_url``.

    The provider closes ``wire``, which defaults to a new transport.
    """
    return EndpointProvider(api(base_url, api_key), wire or ModelTransport(), max_in_flight)


def provider_at(api: type[WireFormat], endpoint: ModelEndpoint) -> "EndpointProvider":
    """Create the provider of an API from its endpoint configuration."""
    by_path = {EMBEDDINGS_PATH: endpoint.max_embeddings_bytes}
    wire = ModelTransport(endpoint.max_reply_bytes, by_path)
    return provider_of(api, base_url=endpoint.base_url, api_key=endpoint.api_key, wire=wire)


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

    def reading(self, model: str, path: str) -> tuple[Accumulator, ReplyBody]:
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
            parts = [part async for part in with_raw_reply(reply, failures)]
        finally:
            reply.close()
        report = report_in(json_or_text(b"".join(parts).decode(errors="replace")))
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
    try:
        async with patience, aclosing(body.documents(reply, failures, later)) as documents:
            async for name, document in documents:
                error = document if name == ERROR else error_in(document)
                if error is not None:
                    report = report_in(failures.mask.apply_to(error))
                    failed = failures.of_document(report, has_started=taking.has_started)
                    break
                if not isinstance(document, dict):
                    raise TypeError
                taking.add(document)
                if delivery is not None:
                    delivery.note_part(taking)
                _show(taking, on_delta)
                if taking.ended and patience.when() is None:
                    patience.reschedule(asyncio.get_running_loop().time() + _LAST_SECONDS)
    except (WireError, TimeoutError, ValueError, TypeError):
        if not taking.ended:
            raise
    if failed is not None and not taking.ended:
        return failed
    taking.prose.end()
    _show(taking, on_delta)
    if body.is_stream and not taking.ended:
        return failures.error("the stream broke off", retryable=True)
    return _outcome(taking.reply(), failed, failures)


def _show(taking: Accumulator, on_delta: Callable[[Delta], None] | None) -> None:
    """Pass the new parts of a reply on."""
    if on_delta is not None:
        for delta in taking.deltas:
            on_delta(delta)
    taking.deltas.clear()


def _outcome(
    answer: ModelReply | None, failed: ModelError | None, failures: Failures
) -> ModelReply | ModelError:
    """Return the answer of a whole reply, or the failure because of which there is none."""
    if failed is not None and (answer is None or answer.incomplete is not None):
        return failed
    if answer is None:
        return failures.error("the reply cannot be read (no answer in it)", retryable=True)
    if meaning_of(answer.finish_reason) is Finish.FAILED:
        words = f"the provider broke the answer off ({answer.finish_reason})"
        return failures.error(words, retryable=True)
    return answer


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
