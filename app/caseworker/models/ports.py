"""The model provider port: requests, replies and failures of one attempt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]

MAX_REPLY_BYTES = 1024 * 1024
"""Default limit for the size of a provider's reply in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call that a model requests."""

    id: str
    """The model's ID for the call; the message with the result repeats it."""
    name: str
    arguments: str
    """The arguments as the model wrote them: JSON that may be malformed."""

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool as offered to a model."""

    name: str
    """Letters, digits, ``_`` and ``-``, at most 64: accepted by every protocol."""
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments; its type is object."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; the schema is shared, not copied."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a prompt."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls that an assistant message requests, in order."""
    tool_call_id: str | None = None
    """For a ``tool`` message: the ID of the call that produced the result."""
    tool_name: str | None = None
    """For a ``tool`` message: the name of the tool."""
    provider_state: Mapping[str, Any] | None = None
    """JSON that the provider needs back with an assistant message, such as the signature of its
    thinking; other providers ignore it."""
    result_of: str | None = field(default=None, compare=False)
    """The key of the journaled call that produced the message: for an assistant message the model
    call, for a ``tool`` message the tool call. The content of a ``tool`` message is then that
    result as compact, complete JSON. The key is not sent; stored messages refer to the call by
    it."""

    @property
    def reference(self) -> dict[str, Any] | None:
        """The stored form of a message that a journaled call produced: a reference; else None."""
        if self.result_of is None:
            return None
        if self.role == "assistant":
            return {"role": self.role, "reply_of": self.result_of}
        return {"role": self.role, **self.extras(), "result_of": self.result_of}

    def extras(self) -> dict[str, Any]:
        """Return the fields beyond role and content as JSON; empty for plain text."""
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
    """The run and call that make a request. It is not sent; recordings are keyed by it."""

    run_id: str
    call: str
    """The path of the call in its run, such as ``case/small/1/plan``; the same each time the run is
    executed."""
    attempt: int = 1
    """From 1; every retry is another attempt."""


@dataclass(slots=True)
class Delivery:
    """Whether a request may have reached the provider, as far as this process knows.

    A provider that can observe this sets ``sent`` to False before it connects, and to True just
    before it sends the first byte of the body. A request that was not sent costs nothing.
    """

    sent: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The request of one provider attempt."""

    messages: tuple[Message, ...]
    json_schema: Mapping[str, Any] | None = None
    """The JSON Schema that the reply must follow; None requests text."""
    json_object: bool = False
    """Whether to request the provider's JSON mode, which takes no schema."""
    tools: tuple[ToolDefinition, ...] = ()
    """The tools that the model may call."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    timeout_seconds: float | None = None
    """The time limit of this attempt."""
    origin: RequestOrigin | None = field(default=None, compare=False)
    delivery: Delivery | None = field(default=None, compare=False, repr=False)
    """Where the provider records that the request was sent."""
    on_delta: Callable[[Delta], None] | None = field(default=None, compare=False, repr=False)
    """Requests a stream: called with each part in order. The reply still holds the whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Token counts of one provider attempt, as reported by the provider."""

    tokens_in: int
    tokens_out: int
    tokens_cached: int = 0
    """The part of ``tokens_in`` that the provider read from its cache."""
    tokens_reasoning: int = 0
    """The part of ``tokens_out`` that was spent on reasoning."""


class Incomplete(StrEnum):
    """Why an answer is not complete."""

    LENGTH = "length"
    """The output limit cut it off."""
    CONTENT_FILTER = "content_filter"
    """The provider withheld the rest or all of it."""
    REFUSAL = "refusal"
    """The model refused to answer."""
    EMPTY = "empty"
    """The answer has neither text nor a tool call."""
    CANCELLED = "cancelled"
    """A stop of the run or a provider failure ended it."""
    TIMEOUT = "timeout"
    """The time limit expired before it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A provider's reply."""

    text: str
    model: str
    """The model that answered, as the provider names it."""
    usage: TokenUsage | None
    """None if the provider sent no counts; the call is then charged at an estimate."""
    finish_reason: str | None = None
    """Why the model stopped, in the provider's own term."""
    incomplete: Incomplete | None = None
    """Why the answer is incomplete; None if it is complete."""
    incomplete_reason: str | None = None
    """The provider's or the model's explanation for it, such as a refusal text."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools to call, in the model's order. In an incomplete answer the arguments may be cut
    off: ``""`` or broken JSON; such a call must not be made."""
    thinking: str = ""
    """The reasoning that the model exposed."""
    provider_state: Mapping[str, Any] | None = None
    """See :attr:`Message.provider_state`."""
    repairs: tuple[str, ...] = ()
    """The kinds of faults in the provider's reply that were repaired, each once."""


class ModelFault(StrEnum):
    """The error class of a failed attempt, as shown in traces."""

    UNAVAILABLE = "ModelUnavailable"
    """Network, timeout or provider failure; the same attempt may succeed later."""
    MISCONFIGURED = "ModelMisconfigured"
    """The endpoint rejects the configured key, account, model or URL."""
    FORM_UNSUPPORTED = "StructuredOutputUnsupported"
    """The endpoint does not support the parameter that requests JSON."""
    SCHEMA_REFUSED = "SchemaRefused"
    """The endpoint supports the parameter but rejects this schema."""
    UNREADABLE_REPLY = "ModelReplyUnreadable"
    """The model wrote output that its endpoint cannot parse, such as a malformed tool call.
    Repeating the request would give the same result."""
    REFUSED = "ModelRequestRefused"
    """The request itself is invalid, for any model."""


_MISCONFIGURED = frozenset({401, 402, 403, 404, *range(300, 400)})


class ModelError(Exception):
    """A failed provider attempt.

    The message is safe to log: it names the kind of failure and quotes the provider only redacted
    and truncated.
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
    """The configuration of one model's endpoint, passed to provider factories.

    Factories are entry points of the group ``caseworker.providers``. A factory raises
    ``ValueError`` or ``OSError`` if it cannot use the configuration; the message is shown to the
    operator.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_reply_bytes: int = MAX_REPLY_BYTES
    """The maximum size of a reply in bytes, after decompression."""
    recording: str | None = None
    """The recording file, for the provider that replays one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """The rate limit of a model, shared by all processes."""

    model: str
    """Identifies the model with its provider and endpoint; equal names share the limit."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Input and output tokens per minute. A request takes its maximum first and is corrected to its
    real usage."""


class RateLimits(Protocol):
    """Grants rate slots of models, shared by all processes and fair between tenants.

    A waiting tenant is overtaken by at most one call of each other tenant. A process holds one
    queue position for each model and tenant. A position that is not polled in time is skipped.
    """

    async def take(self, limit: RateLimit, tenant: str, tokens: int, *, unused: int = 0) -> float:
        """Request a rate slot for at most ``tokens`` tokens; return 0 if granted, else the delay.

        The delay is in seconds. The caller keeps its queue position and must ask again after the
        delay. An unavailable database also results in a delay. ``unused`` corrects earlier
        requests: the tokens that they took but did not use, or a negative number if they used more.
        """
        ...

    async def leave(self, limit: RateLimit, tenant: str) -> None:
        """Release the queue position of this process."""
        ...

    async def pause(self, limit: RateLimit, seconds: float) -> None:
        """Block the model for all processes for ``seconds`` (provider back-off)."""
        ...


class ModelProvider(Protocol):
    """Sends prompts to a model; each call is a single attempt, and the caller retries.

    Cancelling the task that awaits ``complete`` ends the attempt and closes its connection.
    """

    @property
    def name(self) -> str:
        """The provider's name in results and settings, such as ``openai`` or ``offline``."""
        ...

    @property
    def external(self) -> bool:
        """False only when an attempt has no effect outside this process and costs nothing."""
        ...

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Make one attempt; raise ModelError if it is refused, fails, is cut off or times out."""
        ...

    async def aclose(self) -> None:
        """Close all connections; called once, at shutdown."""
        ...
