"""How an agent stands, and what is said of it once it has ended, however it has."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from caseworker.llm.gateway import Completion
from caseworker.llm.ports import Incomplete
from caseworker.nodes.agent.conversation import Conversation
from caseworker.nodes.agent.output import Answer


@dataclass(slots=True)
class AgentState:
    """How an agent stands; what of it can be shown if it is ended."""

    conversation: Conversation
    turns: int = 0
    raw_content: str = ""
    output: Any = None
    output_valid: bool | None = None
    terminate_reason: str | None = None
    """``goal``, ``error``, ``incomplete``, ``timeout``, ``max_turns``, ``aborted``, ``budget``."""
    error: dict[str, str] | None = None
    """The ``class`` and the ``message`` of what failed or stopped it; None after ``goal``."""
    incomplete: Incomplete | None = None
    """Why ``raw_content`` is not complete; None if it is."""
    incomplete_reason: str | None = None
    """What the provider or the model said about it."""
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many answers came from each model, by provider and model."""

    def hear(self, completion: Completion) -> None:
        """Note the newest text of the model, and whether it is complete."""
        self.answers[completion.provider, completion.model] += 1
        self.raw_content = completion.text or self.raw_content
        self.incomplete = completion.incomplete
        self.incomplete_reason = completion.incomplete_reason

    def take(self, answer: Answer) -> None:
        """Take an answer as what the agent came to."""
        self.output, self.raw_content = answer.output, answer.raw
        self.output_valid = answer.valid

    def result(self, max_bytes: int, *, named: bool = False) -> dict[str, Any]:
        """Return everything that is to be said of it, with as many messages as fit.

        With ``named`` messages that are journaled are named by the key of their call.
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
            **self.conversation.shown(max_bytes, named=named),
        }
