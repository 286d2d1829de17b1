"""A model call whose request a client wrote and whose reply the client receives unchanged.

The call is reserved, retried, settled and journaled like any other call. Only the body differs: it
is sent as the client wrote it, and the reply is passed on while it arrives (``relay.py``). The call
is not retried once a part of the reply was passed on.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from caseworker.engine.call import FREE, AttemptError, Call, RateSlot, Reply
from caseworker.models.model_call import ModelCall, journaled, noted
from caseworker.models.ports import ModelFault, ModelReply, SendState
from caseworker.models.relay import (
    OBJECTS,
    WIRE,
    Head,
    PassedReply,
    Relay,
    masked,
    returned,
    stored,
)
from caseworker.models.table import ChatModel
from caseworker.models.turns import Turns
from caseworker.models.wires.endpoint import EndpointProvider
from caseworker.models.wires.failures import RAW_REPLY_BYTES, Failures, error_in, report_in
from caseworker.models.wires.reply import Accumulator
from caseworker.models.wires.transport import WireError, WireReply
from caseworker.platform.json_pieces import PieceEncoder
from caseworker.platform.logs.secret_mask import SecretMask

LONG_REPLY_BYTES: Final = 256 * 1024
"""Size of replies that are packed in a thread."""
NO_REPLY: Final = ModelFault.UNAVAILABLE.value
"""Error class of a call to which the provider did not reply."""
UNREADABLE: Final = ModelFault.UNREADABLE_REPLY.value
"""Error class of a call whose reply cannot be read."""
SUPERSEDED: Final = "superseded"
"""Error class of a call whose attempt ended before it was sent."""

_NO_COUNT: Final = "The provider's reply has no number of tokens."
_MIN_THINKING_TOKENS: Final = 1024
"""Smallest limit for thinking that the Anthropic API accepts."""
_COMPACT: Final = PieceEncoder(separators=(",", ":"))


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
    """The attempt, the lane and the content hashes of the request, which are stored with the
    reply."""
    hides_usage: bool = False
    """Whether to keep the stream's token counts from the client, which did not request them."""
    is_superseded: Callable[[], bool] = lambda: False
    """Whether a later attempt of the run was opened, so that no further request is sent."""
    objects_in: Callable[[Mapping[str, Any]], Iterable[Any]] = lambda _: ()
    """Returns the IDs of the objects at the provider that a document of the reply names."""

    def __post_init__(self) -> None:
        """Keep the output limit above the limit for thinking."""
        if self._thinking_tokens:
            minimum = max(self.chat_model.min_output_tokens, _MIN_THINKING_TOKENS + 1)
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
            tokens = max(_MIN_THINKING_TOKENS, tokens)
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
        passed = PassedReply(
            relay=self.relay,
            answer=answer,
            reading=reading,
            headers=returned(reply.headers, provider.mask),
            mask=provider.mask,
            hides_usage=self.hides_usage,
            objects_in=self.objects_in,
        )
        async with aclosing(reply.parts()) as parts:
            async for part in parts:
                failures.raw += part[: RAW_REPLY_BYTES - len(failures.raw)]
                await passed.feed(part)
                if passed.is_stream:
                    self._delivery.note_part(answer)
        await passed.end()
        self._delivery.note_part(answer)
        answer.prose.end()
        head = passed.head
        if passed.failure is not None or (passed.is_stream and not answer.ended):
            raise self._broken_off(passed, head, failures)
        if not passed.is_stream:
            if answer.reply() is None and answer.counted() is None:
                raise ValueError("The reply has neither an answer nor token counts.")
            self.relay.hold(head)
        return await self._recorded(passed, head)

    def _broken_off(self, passed: PassedReply, head: Head, failures: Failures) -> AttemptError:
        """Return the error of a reply that broke off, or reports a failure of the provider."""
        message = "the stream broke off"
        if passed.failure is not None:
            message = report_in(passed.failure).redacted_suffix
        failed = self._failed(failures.error(message, retryable=False), 1)
        if passed.answer.ended:  # a whole reply that reports a failure, with its token counts
            self.relay.fail(head)
            _, failed.spent = self._answered(_counted(passed.answer, self.chat_model.model))
        return failed

    async def _recorded(self, passed: PassedReply, head: Head) -> Reply:
        """Return the journal value of a whole reply, and its usage."""
        model, is_long = self.chat_model.model, len(head.content or b"") > LONG_REPLY_BYTES
        wire = await asyncio.to_thread(stored, head) if is_long else stored(head)
        model_reply = passed.answer.reply() or _counted(passed.answer, model)
        usage, spent = self._answered(model_reply)
        self._report_output_limit(model_reply)
        value = journaled(model_reply, usage, spent)
        objects = {OBJECTS: [*passed.object_ids]} if passed.object_ids else {}
        value[WIRE] = {**wire, **self.made_in, **objects}
        return Reply(value, spent, noted(value, model))


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


def is_success(status: int) -> bool:
    """Return whether an HTTP status of a provider is a success (2xx).

    The client then receives status 200.
    """
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


def _written(body: Mapping[str, Any]) -> bytes:
    return b"".join(piece.encode() for piece in _COMPACT.pieces(body))


def _counted(answer: Accumulator, model: str) -> ModelReply:
    """Return a reply with the token counts of an answer that cannot be read, or that failed."""
    return ModelReply(text="", model=model, usage=answer.counted())


async def _read_head(reply: WireReply, mask: SecretMask) -> Head:
    async with aclosing(reply.parts()) as parts:
        content = await masked(b"".join([part async for part in parts]), mask)
    status = HTTPStatus.OK if is_success(reply.status) else reply.status
    return Head(status, returned(reply.headers, mask), content)


def _is_count(document: Any) -> bool:
    """Return whether a document has a number of tokens and no error."""
    tokens = document.get("input_tokens") if isinstance(document, dict) else None
    return type(tokens) is int and tokens >= 0 and error_in(document) is None


def _document(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode(errors="replace").strip()
