"""The port of model providers: what is sent, what comes back, and how an attempt fails."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]

MAX_REPLY_BYTES = 1024 * 1024
"""The longest reply of a provider that is read, unless the configuration says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool that a model wants to have called."""

    id: str
    """As the model names the call; the message with its result repeats it."""
    name: str
    arguments: str
    """JSON as the model wrote it, which may be broken."""

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool as a model is offered it."""

    name: str
    """Letters, digits, ``_`` and ``-``, at most 64: what every protocol takes."""
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments: an object."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; the schema is not copied."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a prompt."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant wants to have called, in order."""
    tool_call_id: str | None = None
    """Of a ``tool`` message: the call whose result it is."""
    tool_name: str | None = None
    """Of a ``tool`` message: the tool that was called."""
    provider_state: Mapping[str, Any] | None = None
    """JSON that the provider of an assistant's message wants to see again with it, such as the
    signature of its thinking; others ignore it."""
    result_of: str | None = field(default=None, compare=False)
    """The key of the journaled call that has brought it: of an assistant's message the call of the
    model whose answer it is, of a ``tool`` message the call whose result its content is, as compact
    JSON and unabridged. It is not sent; what is stored of the message names the call instead."""

    @property
    def reference(self) -> dict[str, Any] | None:
        """What is stored of it where the call that has brought it is stored; None if none has."""
        if self.result_of is None:
            return None
        if self.role == "assistant":
            return {"role": self.role, "reply_of": self.result_of}
        return {"role": self.role, **self.extras(), "result_of": self.result_of}

    def extras(self) -> dict[str, Any]:
        """Return what it carries beside role and content, as JSON; nothing if it is plain text."""
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
    """A part of a reply that is still being written."""

    kind: Literal["content", "thinking"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOrigin:
    """Which call of which run makes a request. It is not sent; recordings are keyed by it."""

    run_id: str
    call: str
    """The path of the call in its run, such as ``case/small/1/plan``: the same whenever the same
    run is executed again."""
    attempt: int = 1
    """From 1; every retry is another attempt."""


@dataclass(slots=True)
class Delivery:
    """Whether a request may have reached the provider, as far as this process knows.

    A provider that can tell sets ``sent`` to False before it connects, and to True as soon as the
    first byte of the body is about to leave. What was not sent costs nothing.
    """

    sent: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What one provider attempt sends."""

    messages: tuple[Message, ...]
    json_schema: Mapping[str, Any] | None = None
    """The JSON Schema that the reply must follow; None asks for text."""
    json_object: bool = False
    """Ask for the provider's JSON mode, which takes no schema."""
    tools: tuple[ToolDefinition, ...] = ()
    """The tools that the model may ask to have called."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    timeout_seconds: float | None = None
    """Limit of this attempt."""
    origin: RequestOrigin | None = field(default=None, compare=False)
    delivery: Delivery | None = field(default=None, compare=False, repr=False)
    """Where the provider notes that it sends the request."""
    on_delta: Callable[[Delta], None] | None = field(default=None, compare=False, repr=False)
    """Asks for a stream: called with each part as it comes, in order. The reply holds all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one provider attempt, as the provider counts them."""

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
    """It has no text and no tool call."""
    CANCELLED = "cancelled"
    """A stop of the run ended it, or its provider failed."""
    TIMEOUT = "timeout"
    """The time was over before it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """What a provider answered."""

    text: str
    model: str
    """The model that answered, as the provider names it."""
    usage: TokenUsage | None
    """None if the provider sent no counts; the call is then charged at an estimate."""
    finish_reason: str | None = None
    """Why the model stopped, in its provider's word."""
    incomplete: Incomplete | None = None
    """None only if the answer is complete."""
    incomplete_reason: str | None = None
    """What the provider or the model said about it, such as the text of a refusal."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools to call, in the model's order. In an incomplete answer the arguments may be cut
    off: ``""`` or broken JSON; such a call must not be made."""
    thinking: str = ""
    """What the model has shown of its reasoning."""
    provider_state: Mapping[str, Any] | None = None
    """See :attr:`Message.provider_state`."""
    repairs: tuple[str, ...] = ()
    """The kinds of faults in the provider's reply that were repaired, each once."""


class ModelFault(StrEnum):
    """The class of a failed attempt, as traces show it."""

    UNAVAILABLE = "ModelUnavailable"
    """Network, timeout or provider failure; the same attempt may succeed later."""
    MISCONFIGURED = "ModelMisconfigured"
    """The configured key, account, model or endpoint is not accepted."""
    FORM_UNSUPPORTED = "StructuredOutputUnsupported"
    """The endpoint does not know the parameter that asks for JSON."""
    SCHEMA_REFUSED = "SchemaRefused"
    """The endpoint knows the parameter and refuses this schema."""
    UNREADABLE_REPLY = "ModelReplyUnreadable"
    """The model has written what its endpoint cannot read, such as a broken call of a tool. Asked
    the same, it would write the same."""
    REFUSED = "ModelRequestRefused"
    """The request itself is invalid, and would be for every model."""


_MISCONFIGURED = frozenset({401, 402, 403, 404, *range(300, 400)})


class ModelError(Exception):
    """A provider attempt that failed.

    The message is safe to log: it names the kind of failure, and repeats what the provider wrote
    only redacted and cut.
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
        """Describe a failure; ``fault`` follows from the rest unless it is given."""
        super().__init__(message)
        self.retryable = retryable
        """True for network errors, timeouts and HTTP 408, 409, 429 and 5xx."""
        ours = ModelFault.MISCONFIGURED if status in _MISCONFIGURED else ModelFault.REFUSED
        self.fault = fault or (ModelFault.UNAVAILABLE if retryable else ours)
        self.status = status
        """The HTTP status, where there was one."""
        self.retry_after_seconds = retry_after_seconds
        """The provider's ``Retry-After``."""
        self.raw_reply = raw_reply
        """The beginning of the body of the reply, as it came, if one came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """What the configuration says about the provider of one model; factories of providers get it.

    A factory is registered as an entry point of the group ``caseworker.providers``. It raises a
    ``ValueError`` or ``OSError``, whose message is shown, if the provider cannot work like this.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_reply_bytes: int = MAX_REPLY_BYTES
    """The longest reply that may be read, unfolded."""
    recording: str | None = None
    """The file of a recording, for the provider that replays one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """How often a model may be asked, by all processes together."""

    model: str
    """The model with its provider and endpoint: what has the same name shares the limit."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Input and output tokens; a request counts as what it may take, and then as what it took."""


class RateLimits(Protocol):
    """Keeps for all processes how often models were asked, and whose turn is next.

    Tenants take turns: who waits is overtaken by one call of each other tenant, not by many. A
    process has one place for each model and tenant; a place that is not asked for in time lets
    others pass.
    """

    async def take(self, limit: RateLimit, tenant: str, tokens: int, *, unused: int = 0) -> float:
        """Take a turn for a request of at most ``tokens``; return 0, or the seconds to wait.

        Whoever has to wait keeps a place and asks again then; a database that is away has to be
        waited for like others' turns. ``unused`` are tokens that earlier requests have taken and
        did not need; negative, if they needed more.
        """
        ...

    async def leave(self, limit: RateLimit, tenant: str) -> None:
        """Give up the place of this process."""
        ...

    async def pause(self, limit: RateLimit, seconds: float) -> None:
        """Give nobody a turn for so long, because the provider wants it."""
        ...


class ModelProvider(Protocol):
    """Answers prompts; one attempt a call, retries belong to the caller.

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
        """Make one attempt, or raise ModelError: refused, failed, cut off or too late."""
        ...

    async def aclose(self) -> None:
        """Close connections; called once, when the process stops."""
        ...
