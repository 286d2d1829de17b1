"""The interface to model providers: the request, reply and errors of one attempt."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from json.encoder import encode_basestring_ascii
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")

Role = Literal["system", "user", "assistant", "tool"]

MAX_REPLY_BYTES = 1024 * 1024
MAX_EMBEDDINGS_BYTES = 32 * 1024 * 1024
"""Default maximum size of a provider's reply, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that a model requests."""

    id: str
    """ID that the model assigned to the call. The message with the result repeats it."""
    name: str
    arguments: str
    """Arguments as the model wrote them: JSON that may be malformed."""

    def to_json(self) -> dict[str, str]:
        """Return the tool call as a JSON object."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool as offered to a model."""

    name: str
    """Name of at most 64 letters, digits, ``_`` and ``-``, which every provider accepts."""
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments, with type ``object``."""
    _forms: dict[Callable[[Any], Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def form(self, convert: "Callable[[ToolDefinition], T]") -> T:
        """Return ``convert(self)``; it is called once and its result is kept.

        The result is shared by all requests that offer the tool: do not change it.
        """
        if convert not in self._forms:
            self._forms[convert] = convert(self)
        form: T = self._forms[convert]
        return form

    def to_json(self) -> dict[str, Any]:
        """Return the definition as a JSON object; the schema is shared, not copied."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message in a prompt."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls that an assistant message requests, in order; empty for other messages."""
    tool_call_id: str | None = None
    """ID of the tool call that produced the result in a ``tool`` message; None for other
    messages."""
    tool_name: str | None = None
    """Name of the tool that produced the result in a ``tool`` message; None for other messages."""
    provider_state: Mapping[str, Any] | None = None
    """Provider-specific JSON to send back with an assistant message, such as the signature of its
    thinking, or None. Other providers ignore it."""
    result_of: str | None = field(default=None, compare=False)
    """Key of the journaled call that produced the message: the model call for an assistant message,
    the tool call for a ``tool`` message. The content of a ``tool`` message with this key is the
    call's complete result as compact JSON. Stored messages contain the key instead of the content;
    providers do not receive it. None if no journaled call produced the message."""
    branch_index: int | None = field(default=None, compare=False)
    """Position, from 0, in the branch of the thread that stores the message. Traces name the
    position instead of the content. None if no thread stores it."""

    @property
    def reference(self) -> dict[str, Any] | None:
        """Reference to the journaled call that produced the message; None if no call did.

        Messages are stored in this form if it is not None.
        """
        if self.result_of is None:
            return None
        if self.role == "assistant":
            return {"role": self.role, "reply_of": self.result_of}
        return {"role": self.role, **self.extras(), "result_of": self.result_of}

    def to_json(self) -> dict[str, Any]:
        """Return the message as a JSON object, with its role and content first."""
        return {"role": self.role, "content": self.content, **self.extras()}

    def canonical_json(self) -> str:
        """Return the message as the JSON text that a request hash covers."""
        if self.is_plain:
            return f'["{self.role}", {encode_basestring_ascii(self.content)}]'
        return json.dumps([self.role, self.content, self.extras()], sort_keys=True)

    @property
    def is_plain(self) -> bool:
        """Whether the message has only a role and content."""
        return (
            not self.tool_calls
            and self.tool_call_id is self.tool_name is None
            and self.provider_state is None
        )

    def extras(self) -> dict[str, Any]:
        """Return all fields except role and content as JSON; empty for a plain text message."""
        extras: dict[str, Any] = {}
        if self.tool_calls:
            extras["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.tool_call_id is not None:
            extras["tool_call_id"] = self.tool_call_id
        if self.tool_name is not None:
            extras["tool_name"] = self.tool_name
        if self.provider_state is not None:
            extras["provider_state"] = dict(self.provider_state)
        return extras


@dataclass(frozen=True, slots=True)
class Delta:
    """A part of a streamed reply."""

    kind: Literal["content", "thinking"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOrigin:
    """The run and the call that make a request; recordings use it to find replies.

    It is not sent to the provider.
    """

    run_id: str
    call: str
    """Path of the call in its run, such as ``case/small/1/plan``. It is the same each time the run
    is executed."""
    attempt: int = 1
    """Attempt number, starting at 1. Every retry is a new attempt."""


class PartialReply(Protocol):
    """A reply while it arrives."""

    tool_uses: Mapping[str, int]
    """How often the provider has executed each hosted tool, by name."""

    @property
    def received(self) -> Sequence[str]:
        """All text that has arrived of all choices, with thinking and arguments of calls."""
        ...

    received_calls: int
    """Number of tool calls that have begun to arrive, of all choices."""
    is_hiding: bool
    """Whether the model thinks now without showing all of it."""
    has_final_counts: bool
    """Whether the provider has sent the counts of the whole reply."""

    def counted(self, *, so_far: bool = False) -> "TokenUsage | None":
        """Return the provider's counts; with ``so_far`` also those that are not yet complete."""
        ...


@dataclass(slots=True)
class SendState:
    """Records whether a request may have reached the provider, and the reply so far.

    An interrupted call is charged for what arrived, and for the time in which the provider may have
    written what did not arrive: before the first part, after the last one, and while the model
    thinks without showing it. Shorter pauses between parts are not charged, because the next part
    shows the text of the pause.

    A provider that can observe delivery sets ``is_sent`` to False before it connects. It calls
    ``note_sent`` just before it sends the first byte of the body. A request that was not sent costs
    nothing.
    """

    is_sent: bool = True
    read_reply: PartialReply | None = None
    """The part of the reply that was read while it arrived; None if there is none."""
    read_later: "Callable[[SendState, Sequence[tuple[float, bytes]]], None] | None" = None
    """Function that parses ``unread``; None if the reply is parsed while it arrives."""
    unread: list[tuple[float, bytes]] = field(default_factory=list)
    """Received parts that are not parsed yet, each with its time."""
    _silent_seconds: float = 0.0
    _since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """Time of the last part that was shown, or when the request was sent."""
    _parts: int = 0
    _is_hiding: bool = False

    def note_sent(self) -> None:
        """Record that the request is sent now."""
        self.is_sent, self._since = True, asyncio.get_running_loop().time()

    def note_part(self, reply: PartialReply, at: float | None = None) -> None:
        """Record that a part of the reply has arrived, by default now."""
        self.read_reply = reply
        if len(reply.received) > self._parts:
            now = asyncio.get_running_loop().time() if at is None else at
            if self._is_hiding or not self._parts:
                self._silent_seconds += now - self._since
            self._since, self._parts, self._is_hiding = now, len(reply.received), False
        self._is_hiding = self._is_hiding or reply.is_hiding

    @property
    def reply(self) -> PartialReply | None:
        """The reply as far as it has arrived; None if the provider does not show it."""
        self.read_unread()
        return self.read_reply

    def read_unread(self) -> None:
        """Parse the parts that were received and not parsed yet."""
        if self.unread and self.read_later is not None:
            parts = self.unread.copy()
            self.unread.clear()
            self.read_later(self, parts)

    @property
    def silent_seconds(self) -> float:
        """Seconds until now in which the provider may have written what did not arrive."""
        return self._silent_seconds + max(0.0, asyncio.get_running_loop().time() - self._since)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The request that one attempt sends to a provider."""

    messages: tuple[Message, ...]
    json_schema: Mapping[str, Any] | None = None
    """JSON Schema that the reply must follow; None requests text."""
    json_object: bool = False
    """Whether to use the provider's JSON mode, which takes no schema."""
    tools: tuple[ToolDefinition, ...] = ()
    """Tools that the model may call."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    timeout_seconds: float | None = None
    """Time limit of this attempt in seconds; None means no limit."""
    origin: RequestOrigin | None = field(default=None, compare=False)
    delivery: SendState | None = field(default=None, compare=False, repr=False)
    """Object in which the provider records whether the request was sent; None if not needed."""
    on_delta: Callable[[Delta], None] | None = field(default=None, compare=False, repr=False)
    """Callback that receives a streamed reply. It is invoked with each part in order; the returned
    reply still holds the whole text. None means that the parts are not needed."""
    stream: bool = field(default=True, compare=False)
    """Whether the endpoint may be asked for a stream, so that a reply that breaks off is known in
    part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Token counts of one attempt, as reported by the provider."""

    tokens_in: int
    tokens_out: int
    tokens_cached: int = 0
    """Number of input tokens, included in ``tokens_in``, that the provider read from its cache."""
    tokens_reasoning: int = 0
    """Number of output tokens, included in ``tokens_out``, that the model spent on reasoning."""
    tokens_cache_written: int = 0
    """Number of input tokens, included in ``tokens_in``, that the provider wrote to its cache."""
    tokens_cache_written_1h: int = 0
    """Part of ``tokens_cache_written`` that is kept for an hour, at a higher price."""
    tokens_audio_in: int = 0
    """Number of audio tokens in the input, included in ``tokens_in``."""
    tokens_audio_out: int = 0
    """Number of audio tokens in the output, included in ``tokens_out``."""
    provider_tool_uses: Mapping[str, int] = field(default_factory=dict)
    """How often the provider executed each hosted tool, by name, such as ``web_search``."""


class Incomplete(StrEnum):
    """The reason why an answer is incomplete."""

    LENGTH = "length"
    """The answer reached the output limit and was cut off."""
    CONTENT_FILTER = "content_filter"
    """The provider withheld part or all of the answer."""
    REFUSAL = "refusal"
    """The model refused to answer."""
    EMPTY = "empty"
    """The answer has neither text nor a tool call."""
    CANCELLED = "cancelled"
    """The run was stopped, or the provider failed, before the answer was complete."""
    TIMEOUT = "timeout"
    """The time limit expired before the answer was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A provider's reply to one attempt."""

    text: str
    model: str
    """Name of the model that answered, as the provider reports it."""
    usage: TokenUsage | None
    """Token usage. None if the provider sent no counts; the attempt is then charged at an
    estimate."""
    finish_reason: str | None = None
    """Stop reason exactly as the provider reported it; None if it reported none."""
    incomplete: Incomplete | None = None
    """Why the answer is incomplete; None if it is complete."""
    incomplete_reason: str | None = None
    """The provider's or the model's explanation for an incomplete answer, such as a refusal text.
    None if neither gave one."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tools to call, in the order of the reply. In an incomplete answer the arguments may be cut
    off, as ``""`` or broken JSON. Such a call must not be made."""
    thinking: str = ""
    """The reasoning text that the model returned; empty if it returned none."""
    provider_state: Mapping[str, Any] | None = None
    """Opaque provider data to send back with this message; see :attr:`Message.provider_state`."""
    repairs: tuple[str, ...] = ()
    """Names of the faults in the provider's reply that were repaired, without duplicates."""


class ModelFault(StrEnum):
    """Error class of a failed attempt, as shown in traces."""

    UNAVAILABLE = "ModelUnavailable"
    """The network or the provider failed, or the attempt timed out. A retry may succeed."""
    MISCONFIGURED = "ModelMisconfigured"
    """The endpoint rejected the configured key, account, model or URL."""
    FORM_UNSUPPORTED = "StructuredOutputUnsupported"
    """The endpoint does not support the parameter that requests JSON."""
    SCHEMA_REFUSED = "SchemaRefused"
    """The endpoint supports the schema parameter but rejected this schema."""
    UNREADABLE_REPLY = "ModelReplyUnreadable"
    """The model wrote output that its endpoint cannot parse, such as a malformed tool call. A retry
    would give the same result."""
    REFUSED = "ModelRequestRefused"
    """The request itself is invalid, so no model would accept it."""


_MISCONFIGURED = frozenset({401, 402, 403, 404, *range(300, 400)})


class ModelError(Exception):
    """An attempt to call a provider failed.

    The message is safe to log. It names the kind of failure; text from the provider is redacted and
    truncated.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        fault: ModelFault | None = None,
        raw_reply: str | None = None,
    ) -> None:
        """Describe a failure; ``fault`` defaults to the class implied by the other arguments."""
        super().__init__(message)
        self.retryable = retryable
        """True for network errors, timeouts and HTTP 408, 409, 429 and 5xx."""
        ours = ModelFault.MISCONFIGURED if status in _MISCONFIGURED else ModelFault.REFUSED
        self.fault = fault or (ModelFault.UNAVAILABLE if retryable else ours)
        self.status = status
        """The HTTP status, if a response arrived."""
        self.retry_after_seconds = retry_after_seconds
        """The provider's ``Retry-After`` in seconds."""
        self.raw_reply = raw_reply
        """The start of the response body, unchanged, if one arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """Endpoint configuration of one model, passed to provider factories.

    Factories are entry points of the group ``caseworker.providers``. A factory raises
    ``ValueError`` or ``OSError`` if it cannot use the configuration. The error message is shown to
    the operator.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_reply_bytes: int = MAX_REPLY_BYTES
    """Maximum size of a reply in bytes, after decompression."""
    max_embeddings_bytes: int = MAX_EMBEDDINGS_BYTES
    """The same for a reply with vectors."""
    recording: str | None = None
    """Path of the recording file to replay; None for providers that call an endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A model's rate limit, which all processes share."""

    model: str
    """Identifier of the model, its provider and its endpoint. Limits with the same identifier are
    shared."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Maximum input and output tokens per minute; None means unlimited. A request first reserves
    its maximum, which is later corrected to its actual usage."""


class RateLimits(Protocol):
    """Grants rate slots for models, shared by all processes and fair between tenants.

    A rate slot is permission to send one request to a rate-limited model. At most one call of each
    other tenant may overtake a waiting tenant. A process holds one queue position for each model
    and tenant. A position that is not polled in time is skipped.
    """

    async def take(self, limit: RateLimit, tenant: str, tokens: int, *, unused: int = 0) -> float:
        """Request a rate slot for at most ``tokens`` tokens; return 0 if granted, else a delay.

        The delay is in seconds. The caller keeps its queue position and must ask again after the
        delay. The result is also a delay if the database is unavailable. ``unused`` corrects the
        usage of earlier requests: it is the number of tokens that they reserved but did not use. It
        is negative if they used more than they reserved.
        """
        ...

    async def leave(self, limit: RateLimit, tenant: str) -> None:
        """Release this process's queue position for a model and tenant."""
        ...

    async def pause(self, limit: RateLimit, seconds: float) -> None:
        """Block the model for all processes for ``seconds``, as the provider requested."""
        ...


class ModelProvider(Protocol):
    """Sends prompts to a model. Each call makes a single attempt; the caller handles retries.

    Cancelling the task that awaits ``complete`` ends the attempt and closes its connection.
    """

    @property
    def name(self) -> str:
        """The provider's name in results and settings, such as ``openai`` or ``offline``."""
        ...

    @property
    def external(self) -> bool:
        """Whether an attempt has effects outside this process or costs money."""
        ...

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Make one attempt; raise ModelError if it is rejected, fails, is cut off or times out."""
        ...

    async def aclose(self) -> None:
        """Close all connections; called once, at shutdown."""
        ...
