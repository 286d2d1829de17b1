"""What is wrong with which field, in words that do not repeat what was sent.

The words of the validation library are not used: some of them quote the input. Every message here
is made of our own words and of limits that stand in our own schema.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from caseworker.kernel.problems import Problem
from caseworker.nodes.reading import OWN, field_of, message_of
from caseworker.observability.redaction import redact_text

MAX_VIOLATIONS = 20
"""How many fields at fault are named at once."""
MAX_GRAPH_VIOLATIONS = 100
"""How many places of a graph are."""

_UNKNOWN = "Unknown field. /openapi.json lists the allowed fields."

_PLACES = frozenset({"body", "path", "query", "header"})
_QUOTED = re.compile("'[^']*'")
_ORDINARY = re.compile("'[A-Za-z_-]{0,15}[0-9]{0,4}'", re.ASCII)
"""Too short to be a secret; most names are, and looking closer at all of them would take long."""
_ODD = ('"', "\\", "...")
"""Where names have quotes of their own or were cut, their ends cannot be found."""
_TORN = re.compile(r"(?<![^\s'\"])[^\s'\"]{1,100}?\.\.\.")
"""A word that was cut, which no rule can recognise any more."""

_INDEX = re.compile("[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Violation:
    """One field at fault."""

    field: str
    """Where it is, such as ``budget.max_tokens``; empty for the body as a whole."""
    message: str


def violations_of(errors: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return what pydantic found, in our words."""
    return [
        Violation(field_of(_within(error["loc"])), _message(error))
        for error in islice(errors, MAX_VIOLATIONS)
    ]


def graph_violations(problems: Sequence[Problem], *field: str) -> list[Violation]:
    """Return what is wrong with the graph, or the agent, in a field of a body; none: the body."""
    return [
        Violation(field_of((*field, *_path_of(problem.place))), words_of(problem))
        for problem in problems[:MAX_GRAPH_VIOLATIONS]
    ]


def words_of(problem: Problem) -> str:
    """Return what a problem of a graph says, without secrets in the names that it quotes."""
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
