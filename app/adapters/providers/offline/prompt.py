"""What the offline planner is told, read from the prompt that every planner gets."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from app.adapters.providers.offline.quoting import quoted
from app.llm.messages import Message

MAX_PROMPT_CHARS = 200_000
MAX_REASON_CHARS = 300

_COVERED = re.compile(r"The prices of (\S{1,20}) cover (\d{4}-\d\d-\d\d) to ", re.ASCII)
"""How the tools for stocks say from which day on they know prices."""


class UnreadablePromptError(ValueError):
    """The last user message is not the JSON document that planners are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningPrompt:
    """The parts of the document that matter here; it may hold more."""

    question: str
    today: date
    tools: frozenset[str] | None
    """The tools that may be used; None if the document does not say."""
    evidence: tuple[Mapping[str, Any], ...]
    """What earlier actions brought: ``{"tool", "args", "result"}``."""
    failure: str | None
    """Why an earlier plan failed, in words."""
    expected_tools: tuple[str, ...] = ()
    """The tools that the asker wants to see used."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "PlanningPrompt":
        """Read the document from the last message of the user.

        Raises:
            UnreadablePromptError: there is none; the message says what is wrong, without quoting.
        """
        last = next((m.content for m in reversed(messages) if m.role == "user"), "")
        if len(last) > MAX_PROMPT_CHARS:
            raise UnreadablePromptError("the prompt is too long")
        try:
            document = json.loads(last)
        except (ValueError, RecursionError):
            raise UnreadablePromptError("the prompt is not a JSON document") from None
        if not isinstance(document, dict) or not isinstance(document.get("question"), str):
            raise UnreadablePromptError("the prompt has no question")
        return cls(
            question=document["question"],
            today=_day(document.get("today")),
            tools=_names(document.get("tools")),
            evidence=_evidence(document.get("evidence")),
            failure=_reason(document.get("failure")),
            expected_tools=_expected(document.get("expected_tools")),
        )

    def error(self) -> str | None:
        """Return what went wrong before, if anything did."""
        for found in reversed(self.evidence):
            result = found.get("result", found)
            if isinstance(result, Mapping) and (reason := _reason(result.get("error"))):
                tool = found.get("tool")
                return f"{tool}: {reason}" if isinstance(tool, str) else reason
        return self.failure

    def beginnings(self) -> Mapping[str, date]:
        """Return the first days with prices, by symbol, if that they are late is all that failed.

        Empty if anything else went wrong.
        """
        found: dict[str, date] = {}
        for result in (item.get("result") for item in self.evidence):
            if not isinstance(result, Mapping) or "error" not in result:
                continue
            told = _COVERED.match(str(result["error"]))
            if result.get("code") != "out_of_range" or told is None:
                return {}
            found[told[1]] = _day(told[2])
        return found

    def tried(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Tell whether this very action was taken before."""
        taken = [(found.get("tool"), found.get("args")) for found in self.evidence]
        return (tool, args) in taken


def _day(value: object) -> date:
    try:
        return date.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise UnreadablePromptError("the prompt does not say which day is today") from None


def _names(value: object) -> frozenset[str] | None:
    """Return the names of tools that are listed as objects with a name, or by name alone."""
    if not isinstance(value, list):
        return None
    named = (tool.get("name") if isinstance(tool, dict) else tool for tool in value)
    return frozenset(name for name in named if isinstance(name, str))


def _expected(value: object) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else []
    return tuple(dict.fromkeys(name for name in listed if isinstance(name, str)))


def _evidence(value: object) -> tuple[Mapping[str, Any], ...]:
    found = value if isinstance(value, list) else []
    return tuple(item for item in found if isinstance(item, dict))


def _reason(value: object) -> str | None:
    """Return a failure in words, whatever form it was given in."""
    text = value if isinstance(value, str) else json.dumps(value) if value else ""
    return quoted(text, limit=MAX_REASON_CHARS) or None
