"""The model answer that agents and steps receive."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from caseworker.models.ports import Incomplete, Message, TokenUsage, ToolCall


class ModelAnswerIncomplete(Exception):  # noqa: N818 - the class of the failure as callers see it
    """A model's answer is incomplete: cut off, withheld, refused or empty."""

    def __init__(self, incomplete: Incomplete, explanation: str | None = None) -> None:
        """Build the message; ``explanation`` comes from the provider or the model, if any."""
        reason = f"The answer of the model is not complete (incomplete: {incomplete.value})."
        super().__init__(f"{reason} {explanation}" if explanation else reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(TokenUsage):
    """A model's answer with its token usage and cost, possibly replayed from the journal."""

    text: str
    """The reply text. If JSON was requested and the reply contains JSON, only the JSON part."""
    provider: str
    """Name of the provider that answered, which may be a fallback."""
    model: str
    """Name of the model that answered, as its provider reports it."""
    cost_usd: Decimal | None
    """Cost in US dollars; None if the model's price is unknown."""
    finish_reason: str | None = None
    """The provider's own name for why the model stopped writing; None if it sent none."""
    incomplete: Incomplete | None = None
    """Why the answer is incomplete; None if it is complete."""
    incomplete_reason: str | None = None
    """The provider's or the model's explanation for an incomplete answer, such as a refusal text.
    None if neither gave one."""
    repairs: tuple[str, ...] = ()
    """Names of the faults in the provider's reply that were repaired."""
    estimated: bool = False
    """Whether the token counts and the cost are estimates because the provider sent no counts."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls that the model requests, in the order of the reply."""
    thinking: str = ""
    """The reasoning text that the model returned; empty if it returned none."""
    provider_state: Mapping[str, Any] | None = None
    """Opaque provider data to send back with this message, or None; see
    :attr:`Message.provider_state`."""
    call_key: str | None = None
    """Key of the journaled call whose result is exactly ``text``. None if ``text`` is only the JSON
    part of that result."""
    node_id: str = ""
    """ID of this call's node in the trace. The tool calls that the model requests become its
    children."""
    failed: tuple[str, ...] = ()
    """IDs of the trace nodes of earlier failed calls for the same answer. Those calls used another
    structured-output mode or another model."""

    def require_complete(self) -> None:
        """Raise ModelAnswerIncomplete if the answer is not complete."""
        if self.incomplete is not None:
            raise ModelAnswerIncomplete(self.incomplete, self.incomplete_reason)

    @property
    def message(self) -> Message:
        """This answer as an assistant message for the next prompt."""
        return Message(
            role="assistant",
            content=self.text,
            tool_calls=self.tool_calls,
            provider_state=self.provider_state,
            result_of=self.call_key,
        )

    @property
    def tokens_estimated(self) -> int:
        """Number of estimated tokens: all tokens if the counts are estimates, else 0."""
        return self.tokens_in + self.tokens_out if self.estimated else 0

    @property
    def cost_usd_estimated(self) -> Decimal:
        """Estimated cost in US dollars: the whole cost if it is an estimate, else 0."""
        return (self.cost_usd or Decimal(0)) if self.estimated else Decimal(0)
