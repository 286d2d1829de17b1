"""An agent execution's state, and the result that is built from it on any outcome."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from caseworker.models.gateway import Completion
from caseworker.models.ports import Incomplete
from caseworker.nodes.agent.conversation import Conversation
from caseworker.nodes.agent.output import Answer

REQUIRES_ACTION = "requires_action"
"""Terminate reason of an agent whose client did not execute its tools in time."""


@dataclass(slots=True)
class AgentState:
    """The progress of an agent execution; its result can be built at any time."""

    conversation: Conversation
    turns: int = 0
    raw_content: str = ""
    output: Any = None
    output_valid: bool | None = None
    terminate_reason: str | None = None
    """Why the agent ended: ``goal``, ``error``, ``incomplete``, ``timeout``, ``max_turns``,
    ``aborted``, ``budget`` or ``requires_action``. None while it runs."""
    error: dict[str, str] | None = None
    """The ``class`` and ``message`` of the failure or stop; None while the agent runs and if it
    ended with ``goal``."""
    incomplete: Incomplete | None = None
    """Why ``raw_content`` is incomplete; None if it is complete."""
    incomplete_reason: str | None = None
    """The provider's or the model's explanation for an incomplete answer; None if neither gave
    one."""
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of answers from each model, keyed by provider and model."""

    def hear(self, completion: Completion) -> None:
        """Record the model's latest text, and whether it is complete."""
        self.answers[completion.provider, completion.model] += 1
        self.raw_content = completion.text or self.raw_content
        self.incomplete = completion.incomplete
        self.incomplete_reason = completion.incomplete_reason

    def take(self, answer: Answer) -> None:
        """Store the final answer."""
        self.output, self.raw_content = answer.output, answer.raw
        self.output_valid = answer.valid

    def result(
        self, max_bytes: int, *, with_references: bool = False, only_new: bool = False
    ) -> dict[str, Any]:
        """Build the result with the newest messages that fit into ``max_bytes``.

        ``with_references`` and ``only_new`` are those of :meth:`Conversation.as_result`.
        """
        return {
            "success": self.terminate_reason == "goal",
            "output": self.output,
            "output_valid": self.output_valid,
            "raw_content": self.raw_content,
            "terminate_reason": self.terminate_reason,
            "error": self.error,
            "incomplete": self.incomplete and self.incomplete.value,
            "incomplete_reason": self.incomplete_reason,
            "turn_count": self.turns,
            "models": [
                {"provider": provider, "model": model, "calls": calls}
                for (provider, model), calls in self.answers.items()
            ],
            **self.conversation.as_result(
                max_bytes, with_references=with_references, only_new=only_new
            ),
        }
