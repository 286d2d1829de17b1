"""The model's answer as agents and steps receive it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from caseworker.models.ports import Incomplete, Message, ToolCall


class ModelAnswerIncomplete(Exception):  # noqa: N818 - the class of the failure as callers see it
    """A model's answer is not complete."""

    def __init__(self, incomplete: Incomplete, said: str | None = None) -> None:
        """Build the message; ``said`` is the explanation of the provider or the model, if any."""
        reason = f"The answer of the model is not complete (incomplete: {incomplete.value})."
        super().__init__(f"{reason} {said}" if said else reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A model's answer with its token usage and cost; it may be replayed from the journal."""

    text: str
    """The reply text. If JSON was requested, only the JSON part, provided the reply has one."""
    provider: str
    """The provider of the model that answered, which may be a fallback."""
    model: str
    """The model that answered, as its provider names it."""
    tokens_in: int
    tokens_out: int
    tokens_cached: int = 0
    """The part of ``tokens_in`` that the provider read from its cache."""
    tokens_reasoning: int = 0
    """The part of ``tokens_out`` that was spent on reasoning."""
    cost_usd: Decimal | None
    """None if the model's price is unknown."""
    finish_reason: str | None = None
    """Why the model stopped writing, in the provider's own term."""
    incomplete: Incomplete | None = None
    """Why the answer is not complete; None if it is."""
    incomplete_reason: str | None = None
    """The provider's or the model's explanation for an incomplete answer, such as a refusal
    text."""
    repairs: tuple[str, ...] = ()
    """The kinds of faults in the provider's reply that were repaired."""
    estimated: bool = False
    """Whether tokens and cost are estimates, because the provider sent no counts."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls that the model requests, in its order."""
    thinking: str = ""
    """The reasoning that the model exposed."""
    provider_state: Mapping[str, Any] | None = None
    """Opaque provider data to send back with this message; see :attr:`Message.provider_state`."""
    call_key: str | None = None
    """The key of the journaled call whose result is exactly ``text``; None if JSON was
    extracted."""
    node_id: str = ""
    """The call node of this call; it becomes the parent of the tool calls that the model
    requests."""
    failed: tuple[str, ...] = ()
    """The call nodes of earlier failed calls for this answer, in other forms or to other models."""

    def require_complete(self) -> None:
        """Raise ModelAnswerIncomplete if the answer is not complete."""
        if self.incomplete is not None:
            raise ModelAnswerIncomplete(self.incomplete, self.incomplete_reason)

    @property
    def message(self) -> Message:
        """The answer as an assistant message for the next prompt."""
        return Message(
            role="assistant",
            content=self.text,
            tool_calls=self.tool_calls,
            provider_state=self.provider_state,
            result_of=self.call_key,
        )

    @property
    def tokens_estimated(self) -> int:
        """Tokens that are estimated: all of them or 0."""
        return self.tokens_in + self.tokens_out if self.estimated else 0

    @property
    def cost_usd_estimated(self) -> Decimal:
        """The cost in US dollars that is estimated: all of it or 0."""
        return (self.cost_usd or Decimal(0)) if self.estimated else Decimal(0)
