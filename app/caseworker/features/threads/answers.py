"""Answers as they are stored with their messages when their runs end.

The SQL function ``caseworker_answer`` builds an answer from the result of its run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from caseworker.nodes.agent.references import key_in_message, whole_message
from caseworker.nodes.templates import compact
from caseworker.runs.run import RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """The answer of a run that has ended."""

    status: RunStatus
    """Final status of the run."""
    content: str | None
    """Text of the answer; None if it has none."""
    incomplete: str | None = None
    """Reason code for an incomplete answer, as agents report it; None if it is complete."""
    incomplete_reason: str | None = None
    model: str | None = None
    """Name of the model that answered; None if no model was called."""
    calls: Sequence[Mapping[str, Any]] | None = ()
    """Messages with the tool calls before the answer and their results, in order. None if they are
    too long to be stored."""

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return an answer from its stored form."""
        rest = {name: stored.get(name) for name in ("incomplete", "incomplete_reason", "model")}
        calls = stored.get("calls") or {"messages": ()}
        return cls(
            status=RunStatus(stored["status"]),
            content=_joined(stored["parts"]),
            calls=_whole_messages(calls) if isinstance(calls, Mapping) else None,
            **rest,
        )


def _joined(parts: Sequence[Any]) -> str | None:
    """Join the outputs of a run's last steps into one text; JSON represents non-text outputs."""
    texts = [
        one if isinstance(one, str) else compact(one) for one in parts if one not in (None, "")
    ]
    return "\n\n".join(texts) or None


def _whole_messages(calls: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    values: Mapping[str, Any] = calls.get("values") or {}
    messages = []
    for message in calls["messages"]:
        key = key_in_message(message)
        messages.append(message if key not in values else whole_message(message, values[str(key)]))
    return messages
