"""What the service needs of a model provider."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from app.llm.messages import ModelReply, ModelRequest


class ModelFault(StrEnum):
    """What is the matter with an attempt that failed; the value is its class in traces."""

    UNAVAILABLE = "ModelUnavailable"
    """The network, the time or the provider failed; the same attempt may succeed later."""
    MISCONFIGURED = "ModelMisconfigured"
    """The key, the account, the model or the endpoint is not what the configuration says."""
    FORM_UNSUPPORTED = "StructuredOutputUnsupported"
    """The endpoint does not know the parameter that asks for JSON."""
    SCHEMA_REFUSED = "SchemaRefused"
    """The endpoint knows the parameter and refuses this schema."""
    REFUSED = "ModelRequestRefused"
    """The request itself is at fault, and would be for every model."""


_MISCONFIGURED = frozenset({401, 402, 403, 404, *range(300, 400)})


class ModelError(Exception):
    """A provider attempt that failed.

    The message is safe to log: it names the kind of failure and never repeats what the provider
    or the caller wrote.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        fault: ModelFault | None = None,
    ) -> None:
        """Tell of a failure; ``fault`` follows from the rest unless it is given."""
        super().__init__(message)
        self.retryable = retryable
        """True for network errors, timeouts and HTTP 408, 409, 429 and 5xx."""
        self.fault = fault or _fault(retryable, status)
        self.status = status
        """The HTTP status, where there was one."""
        self.retry_after_seconds = retry_after_seconds
        """What the provider asked us to wait (``Retry-After``, seconds or HTTP date)."""


def _fault(retryable: bool, status: int | None) -> ModelFault:
    if retryable:
        return ModelFault.UNAVAILABLE
    return ModelFault.MISCONFIGURED if status in _MISCONFIGURED else ModelFault.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """What the configuration says about the provider of one model; factories of providers get it.

    A factory is registered as an entry point of the group ``caseworker.providers``. It raises a
    ``ValueError`` or ``OSError``, whose message is shown, if the provider cannot work like this.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    recording: str | None = None
    """The file of a recording, for the provider that replays one."""


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
        """Make one attempt.

        Raises:
            ModelError: the provider refused, failed, was cut off or took too long.
        """
        ...

    async def aclose(self) -> None:
        """Close connections; called once, when the process stops."""
        ...
