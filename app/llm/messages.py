"""What is said to a model and what it answers, whoever the provider is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a prompt."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOrigin:
    """Which call of which run makes a request. It is not sent; recordings are keyed by it."""

    run_id: str
    call: str
    """The path of the call in its run, such as ``case/small/1/plan``: the same whenever the same
    run is executed again."""
    attempt: int = 1
    """From 1; every retry is another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What one provider attempt sends."""

    messages: tuple[Message, ...]
    json_schema: Mapping[str, Any] | None = None
    """The JSON Schema that the provider holds the reply to; None asks for text."""
    json_object: bool = False
    """Whether the provider's JSON mode is asked for, which knows no schema."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    timeout_seconds: float | None = None
    """How long the provider may take for this attempt."""
    origin: RequestOrigin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one provider attempt, as the provider counts them."""

    tokens_in: int
    tokens_out: int
    tokens_cached: int = 0
    """The part of ``tokens_in`` that the provider read from its cache."""
    tokens_reasoning: int = 0
    """The part of ``tokens_out`` that was spent on reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """What a provider answered."""

    text: str
    model: str
    """The model that answered, as the provider names it."""
    usage: TokenUsage | None
    """None when the provider did not say; the call is then charged at its estimate."""
    finish_reason: str | None = None
