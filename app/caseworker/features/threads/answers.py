"""Answers as they are stored with their messages when their runs end.

The SQL function ``caseworker_answer`` builds an answer from the result of its run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from caseworker.nodes.agent.references import key_in_message, whole_message
from caseworker.nodes.templates import compact
from caseworker.runs.kinds import AGENT_STEP
from caseworker.runs.run import Run, RunStatus


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

    @classmethod
    def of_run(cls, run: Run, ends: Sequence[str]) -> Self | None:
        """Return the answer of a run as it is stored; None if only the store knows it.

        ``ends`` are the IDs of the last steps. The result of a run names the model if it
        has a single agent that answered with its first call. Only the store has the calls of tools.
        """
        steps = (run.request.graph or {}).get("steps", ())
        types = [step["type"] for step in steps if step["id"] in ends]
        if run.status is not RunStatus.COMPLETED or len(ends) != 1 or types != [AGENT_STEP]:
            return None
        try:
            output = (run.result or {})["outputs"][ends[0]]
            text, result = output["default"], output["result"]
            [model] = result["models"]
            answer = cls(
                status=run.status,
                content=text or None,
                incomplete=result["incomplete"],
                incomplete_reason=result["incomplete_reason"],
                model=model["model"],
            )
            is_one_call = model["calls"] == 1
            is_one_call &= all(one["role"] != "tool" for one in result["messages"])
        except (LookupError, TypeError, ValueError):
            return None  # no answer, several models, or the output of a fallback step
        return answer if is_one_call and answer.model and isinstance(text, str) else None

    @property
    def displayed(self) -> Mapping[str, Any]:
        """The fields of the message that the answer provides."""
        names = ("content", "incomplete", "incomplete_reason", "model")
        return {name: getattr(self, name) for name in names}


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
