"""The document that every planner gets as its prompt, as far as the built-in one needs it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.llm.ports import Message

MAX_PROMPT_CHARS: Final = 200_000
MAX_REASON_CHARS: Final = 300
_COVERED = re.compile(r"The prices of (\S{1,20}) cover (\d{4}-\d\d-\d\d) to ", re.ASCII)
"""How the tools for stocks say from which day on they know prices."""


class UnreadablePromptError(ValueError):
    """The last user message is not the JSON document that planners are given."""


@dataclass(frozen=True, slots=True)
class PlanningPrompt:
    """The parts of the document that matter here; it may hold more."""

    question: str
    tools: tuple[str, ...] | None
    """The tools that may be used; None if the document does not say."""
    expected_tools: tuple[str, ...]
    """The tools that the asker wants to see used."""
    evidence: tuple[Mapping[str, Any], ...]
    """What earlier actions brought: ``{"tool", "args", "result"}``."""
    failure: str
    """Why an earlier plan failed, in words; empty if none did."""

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
        evidence = document.get("evidence")
        evidence = evidence if isinstance(evidence, list) else []
        return cls(
            question=document["question"],
            tools=_names(document.get("tools")),
            expected_tools=_names(document.get("expected_tools")) or (),
            evidence=tuple(one for one in evidence if isinstance(one, dict)),
            failure=_reason(document.get("failure")),
        )

    def error(self) -> str:
        """Return what went wrong before; empty if nothing did."""
        for found in reversed(self.evidence):
            result = found.get("result", found)
            if isinstance(result, Mapping) and (reason := _reason(result.get("error"))):
                tool = found.get("tool")
                return f"{tool}: {reason}" if isinstance(tool, str) else reason
        return self.failure

    def first_days(self) -> Mapping[str, str]:
        """Return the first days with prices, by symbol, if that they are late is all that failed.

        Empty if anything else went wrong.
        """
        days: dict[str, str] = {}
        for result in (found.get("result") for found in self.evidence):
            if not isinstance(result, Mapping) or "error" not in result:
                continue
            covered = _COVERED.match(str(result["error"]))
            if result.get("code") != "out_of_range" or covered is None:
                return {}
            days[covered[1]] = covered[2]
        return days

    def tried(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Tell whether this very action was taken before."""
        return (tool, args) in [(found.get("tool"), found.get("args")) for found in self.evidence]


def _names(value: object) -> tuple[str, ...] | None:
    """Return the names of tools that are listed as objects with a name, or by name alone."""
    if not isinstance(value, list):
        return None
    named = (tool.get("name") if isinstance(tool, dict) else tool for tool in value)
    return tuple(name for name in named if isinstance(name, str))


def _reason(value: object) -> str:
    """Return a failure in words on one line of characters that print, whatever form it has."""
    text = value if isinstance(value, str) else json.dumps(value) if value else ""
    line = " ".join(text.split())[:MAX_REASON_CHARS]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
