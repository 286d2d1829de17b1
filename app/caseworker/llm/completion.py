"""What a model answered, as its callers use it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from caseworker.llm.ports import Incomplete, Message, ToolCall


class ModelAnswerIncomplete(Exception):  # noqa: N818 - the class of the failure as callers see it
    """A model's answer is not complete."""

    def __init__(self, incomplete: Incomplete, said: str | None = None) -> None:
        """Say why; ``said`` is the message of the provider or the model, if it sent one."""
        reason = f"The answer of the model is not complete (incomplete: {incomplete.value})."
        super().__init__(f"{reason} {said}" if said else reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model answered and what that cost; it may be replayed from the journal."""

    text: str
    """Where JSON was asked for, the JSON alone if there is any."""
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
    """None if the model's price is not known."""
    finish_reason: str | None = None
    """Why the model stopped writing, in its provider's word."""
    incomplete: Incomplete | None = None
    """Why the answer is not complete; None if it is."""
    incomplete_reason: str | None = None
    """What the provider or the model said about it, such as the text of a refusal."""
    repairs: tuple[str, ...] = ()
    """The kinds of faults in the provider's reply that were repaired."""
    estimated: bool = False
    """Whether tokens and cost are estimates, because the provider sent no counts."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What the model wants to have called, in its order."""
    thinking: str = ""
    """What the model has shown of its reasoning."""
    provider_state: Mapping[str, Any] | None = None
    """What its provider wants to see again; see :attr:`Message.provider_state`."""
    call_key: str | None = None
    """Of the call with which this very text is journaled."""
    node_id: str = ""
    """The CallNode of the call: the parent of the calls that the model asks for."""
    failed: tuple[str, ...] = ()
    """The CallNodes of the calls that failed before, in other forms or of other models."""

    def require_complete(self) -> None:
        """Raise ModelAnswerIncomplete if the answer is not complete."""
        if self.incomplete is not None:
            raise ModelAnswerIncomplete(self.incomplete, self.incomplete_reason)

    @property
    def message(self) -> Message:
        """The answer as the assistant's message of the next prompt."""
        return Message(
            role="assistant",
            content=self.text,
            tool_calls=self.tool_calls,
            provider_state=self.provider_state,
            result_of=self.call_key,
        )

    @property
    def tokens_estimated(self) -> int:
        """The part of the tokens that was estimated."""
        return self.tokens_in + self.tokens_out if self.estimated else 0

    @property
    def cost_usd_estimated(self) -> Decimal:
        """The part of the cost that was estimated."""
        return (self.cost_usd or Decimal(0)) if self.estimated else Decimal(0)
