"""Validation errors by field, with messages that never repeat request data.

Messages of the validation library are not used, because some quote the input. All messages consist
of fixed texts and of limits from the schema.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from caseworker.core.graph.problems import Problem
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.validation import OWN, field_of, message_of

MAX_VIOLATIONS = 20
"""Maximum number of invalid fields reported in one response."""
MAX_GRAPH_VIOLATIONS = 100
"""Maximum number of graph problems reported in one response."""

_UNKNOWN = "Unknown field. /openapi.json lists the allowed fields."

_PLACES = frozenset({"body", "path", "query", "header"})
_QUOTED = re.compile("'[^']*'")
_ORDINARY = re.compile("'[A-Za-z_-]{0,15}[0-9]{0,4}'", re.ASCII)
"""Names too short to be a secret. Most names are, and redacting all of them would be slow."""
_ODD = ('"', "\\", "...")
"""Signs that a name contains quotes or was truncated, so that its end cannot be found."""
_TORN = re.compile(r"(?<![^\s'\"])[^\s'\"]{1,100}?\.\.\.")
"""A truncated word, which no redaction rule can recognize anymore."""

_INDEX = re.compile("[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Violation:
    """An invalid field of a request, and the reason."""

    field: str
    """Path of the invalid field, such as ``budget.max_tokens``; empty for the body as a whole."""
    message: str


def violations_of(errors: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Convert pydantic errors to violations; return at most ``MAX_VIOLATIONS``."""
    return [
        Violation(field_of(_within(error["loc"])), _message(error))
        for error in islice(errors, MAX_VIOLATIONS)
    ]


def graph_violations(problems: Sequence[Problem], *field: str) -> list[Violation]:
    """Convert problems of a graph or agent to violations.

    ``field`` is the path of the body field that holds the graph or agent; without it, the body
    itself is the graph or agent.
    """
    return [
        Violation(field_of((*field, *_path_of(problem.place))), words_of(problem))
        for problem in problems[:MAX_GRAPH_VIOLATIONS]
    ]


def words_of(problem: Problem) -> str:
    """Return the message of a graph problem, with secrets in quoted names redacted."""
    message = problem.message
    if any(odd in message for odd in _ODD):
        return redact_text(_TORN.sub("...", message))
    return _QUOTED.sub(_name, message)


def _within(loc: Sequence[str | int]) -> Sequence[str | int]:
    return loc[1:] if loc and loc[0] in _PLACES else loc


def _path_of(place: str) -> list[str | int]:
    parts = place.split(".") if place else []
    return [int(part) if _INDEX.fullmatch(part) else part for part in parts]


def _name(quoted: re.Match[str]) -> str:
    name = quoted.group()
    return name if _ORDINARY.fullmatch(name) else redact_text(name)


def _message(error: Mapping[str, Any]) -> str:
    if error["loc"] == ("body",) and error["type"] != OWN:
        return "The body must be a JSON object."
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _UNKNOWN
    return message_of(error)
