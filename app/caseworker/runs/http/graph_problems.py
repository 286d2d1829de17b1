"""Problems of graphs and agents as invalid fields, with messages that never repeat request data."""

import re
from collections.abc import Sequence

from caseworker.core.graph.problems import Problem
from caseworker.platform.http.problems import INVALID_REQUEST, ProblemError, Violation
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.validation import field_of
from caseworker.runs.errors import GraphRefusedError

MAX_GRAPH_VIOLATIONS = 100
"""Maximum number of graph problems reported in one response."""

_QUOTED = re.compile("'[^']*'")
_ORDINARY = re.compile("'[A-Za-z_-]{0,15}[0-9]{0,4}'", re.ASCII)
"""Names too short to be a secret. Most names are, and redacting all of them would be slow."""
_ODD = ('"', "\\", "...")
"""Signs that a name contains quotes or was truncated, so that its end cannot be found."""
_TORN = re.compile(r"(?<![^\s'\"])[^\s'\"]{1,100}?\.\.\.")
"""A truncated word, which no redaction rule can recognize anymore."""

_INDEX = re.compile("[0-9]{1,9}", re.ASCII)


def graph_refused(error: GraphRefusedError) -> ProblemError:
    """List the problems of a graph, and the number of those beyond the limit."""
    violations = graph_violations(error.problems, error.kind.value)
    unnamed = len(error.problems) - len(violations)
    detail = INVALID_REQUEST.detail
    if unnamed:
        detail = f"{detail} The {error.kind.value} has {unnamed} more problems that are not listed."
    return ProblemError(INVALID_REQUEST, detail, violations=violations)


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


def _path_of(place: str) -> list[str | int]:
    parts = place.split(".") if place else []
    return [int(part) if _INDEX.fullmatch(part) else part for part in parts]


def _name(quoted: re.Match[str]) -> str:
    name = quoted.group()
    return name if _ORDINARY.fullmatch(name) else redact_text(name)
