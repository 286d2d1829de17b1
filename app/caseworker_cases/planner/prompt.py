"""Parses a planning prompt for the built-in planner."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from caseworker.models.ports import Message, ModelRequest

MAX_PROMPT_CHARS: Final = 200_000
MAX_REASON_CHARS: Final = 300
_COVERED = re.compile(r"The prices of (\S{1,20}) cover (\d{4}-\d\d-\d\d) to ", re.ASCII)
"""Message of the stock tools that states the first day with prices."""


class UnreadablePromptError(ValueError):
    """The user messages are not the JSON documents of a planning prompt."""


@dataclass(frozen=True, slots=True)
class PlanningPrompt:
    """The parts of a planning prompt that the built-in planner uses."""

    question: str
    tools: frozenset[str] | None
    """Names of the allowed tools; None if the prompt does not list them."""
    expected_tools: tuple[str, ...]
    """Names of the tools that the request expects the plan to use."""
    evidence: tuple[Mapping[str, Any], ...]
    """Results of earlier actions, each as ``{"tool", "args", "result"}``."""
    failure: str
    """Why an earlier plan failed; empty if none failed."""

    @classmethod
    def of(cls, request: ModelRequest) -> "PlanningPrompt":
        """Parse the user messages of a planning request.

        The first message contains the question. Later ones contain evidence and failures. The tools
        are the functions that the reply schema allows.

        Raises:
            UnreadablePromptError: the question is missing; the message names the problem without
                quoting the prompt.
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
        """Return the last error message; empty if nothing failed."""
        for found in reversed(self.evidence):
            result = found.get("result", found)
            if isinstance(result, Mapping) and (reason := _reason(result.get("error"))):
                tool = found.get("tool")
                return f"{tool}: {reason}" if isinstance(tool, str) else reason
        return self.failure

    def first_days(self) -> Mapping[str, str]:
        """Return each symbol's first day with prices, if all errors were too early start dates.

        The mapping is empty if there was any other error.
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
        """Return whether a call with these arguments was already executed."""
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
    """Return the tool names in the schema of plans: the titles of the action's alternatives."""
    try:
        branches = (schema or {})["properties"]["actions"]["items"]["anyOf"]
        return frozenset(str(branch["title"]) for branch in branches)
    except (KeyError, TypeError):
        return None


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _reason(value: object) -> str:
    """Return a failure as one line of printable text, whatever form it has."""
    text = value if isinstance(value, str) else json.dumps(value) if value else ""
    line = " ".join(text.split())[:MAX_REASON_CHARS]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
