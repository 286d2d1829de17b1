"""The prompt that every planner gets, as far as the built-in one needs it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from caseworker.llm.ports import Message, ModelRequest

MAX_PROMPT_CHARS: Final = 200_000
MAX_REASON_CHARS: Final = 300
_COVERED = re.compile(r"The prices of (\S{1,20}) cover (\d{4}-\d\d-\d\d) to ", re.ASCII)
"""How the tools for stocks say from which day on they know prices."""


class UnreadablePromptError(ValueError):
    """The messages of the user are not the JSON documents that planners are given."""


@dataclass(frozen=True, slots=True)
class PlanningPrompt:
    """The parts of the prompt that matter here; it holds more."""

    question: str
    tools: frozenset[str] | None
    """The tools that may be used; None if the prompt does not say."""
    expected_tools: tuple[str, ...]
    """The tools that the asker wants to see used."""
    evidence: tuple[Mapping[str, Any], ...]
    """What earlier actions brought: ``{"tool", "args", "result"}``."""
    failure: str
    """Why an earlier plan failed, in words; empty if none did."""

    @classmethod
    def of(cls, request: ModelRequest) -> "PlanningPrompt":
        """Read the documents of the user: the first has the question, others what came of it.

        The tools are those of the functions that a reply may call by its schema.

        Raises:
            UnreadablePromptError: there is none; the message says what is wrong, without quoting.
        """
        documents = [_document(each) for each in request.messages if each.role == "user"]
        first, *later = documents or [{}]
        if not isinstance(first.get("question"), str):
            raise UnreadablePromptError("the prompt has no question")
        return cls(
            question=first["question"],
            tools=_tools_in(request.json_schema),
            expected_tools=_names(first.get("expected_tools")),
            evidence=tuple(one for document in documents for one in _evidence(document)),
            failure=_reason((later or [first])[-1].get("failure")),
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


def _document(message: Message) -> Mapping[str, Any]:
    if len(message.content) > MAX_PROMPT_CHARS:
        raise UnreadablePromptError("the prompt is too long")
    try:
        document = json.loads(message.content)
    except (ValueError, RecursionError):
        raise UnreadablePromptError("the prompt is not a JSON document") from None
    if not isinstance(document, dict):
        raise UnreadablePromptError("the prompt has no question")
    return document


def _evidence(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = document.get("evidence")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _tools_in(schema: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Return the titles of the branches of an action in the schema of plans."""
    try:
        branches = (schema or {})["properties"]["actions"]["items"]["anyOf"]
        return frozenset(str(branch["title"]) for branch in branches)
    except (KeyError, TypeError):
        return None


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _reason(value: object) -> str:
    """Return a failure in words on one line of characters that print, whatever form it has."""
    text = value if isinstance(value, str) else json.dumps(value) if value else ""
    line = " ".join(text.split())[:MAX_REASON_CHARS]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
