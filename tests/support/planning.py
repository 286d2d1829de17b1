"""Rebuilds the document of a planner from the messages of one prompt."""

import json
import re
from collections.abc import Iterable
from typing import Any

_FUNCTION = re.compile(r"^([\w.-]+)\(", re.MULTILINE)


def prompt_document(messages: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the document of all user messages, given the role and content of every message.

    ``evidence`` contains all evidence ever shown; of repeated fields the last value counts.
    ``functions`` are those in the system message, ``previous_plan`` is the last reply.
    """
    document: dict[str, Any] = {"evidence": [], "functions": []}
    for role, content in messages:
        if role == "system":
            document["functions"] = _FUNCTION.findall(content)
        elif role == "assistant":
            document["previous_plan"] = _plan(content)
        else:
            document.pop("failure", None)
            said = json.loads(content)
            document["evidence"] += said.pop("evidence", [])
            document |= said
    return document


def _plan(reply: str) -> Any:
    try:
        return json.loads(reply)
    except ValueError:
        return reply
