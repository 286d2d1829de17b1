"""What is wrong with which field, in words that do not repeat what was sent.

The words of the validation library are not used: some of them quote the input. Every message here
is made of our own words and of limits that stand in our own schema.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from app.kernel.validation import Problem
from app.observability.redaction import redact_text

OWN: Final = "caseworker"
"""The type of validation errors whose messages are ours."""

MAX_VIOLATIONS = 20
"""How many fields at fault are named at once."""
MAX_GRAPH_VIOLATIONS = 100
"""How many places of a graph are."""

_UNKNOWN = "This field is not known here; /openapi.json lists those that are."
_MESSAGES: Mapping[str, str] = {
    "missing": "This field is required.",
    "extra_forbidden": _UNKNOWN,
    "unexpected_keyword_argument": _UNKNOWN,
    "string_type": "This must be a string.",
    "string_unicode": "This must be valid Unicode text.",
    "string_too_short": "This must have at least {min_length} characters.",
    "string_too_long": "This must have at most {max_length} characters.",
    "too_long": "This must have at most {max_length} items.",
    "int_type": "This must be a whole number.",
    "int_from_float": "This must be a whole number.",
    "int_parsing": "This must be a whole number.",
    "int_parsing_size": "This must be a whole number.",
    "float_type": "This must be a number.",
    "finite_number": "This must be a finite number.",
    "greater_than_equal": "This must be at least {ge}.",
    "less_than_equal": "This must be at most {le}.",
    "literal_error": "This must be one of: {expected}.",
    "enum": "This must be one of: {expected}.",
    "dict_type": "This must be a JSON object.",
    "model_type": "This must be a JSON object.",
    "dataclass_type": "This must be a JSON object.",
    "model_attributes_type": "This must be a JSON object.",
    "list_type": "This must be a JSON array.",
}
_OTHER = "This value is not accepted here."

_PLACES = frozenset({"body", "path", "query", "header"})
_WORD = "[A-Za-z]{1,24}[0-9]{0,2}"
_PLAIN_NAME = re.compile(f"{_WORD}(?:_{_WORD}){{0,4}}", re.ASCII)
"""Words joined by underscores; tokens and keys, which mix letters and digits, do not fit."""

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


NO_OBJECT = Violation("", "The body must be a JSON object.")


def violations_of(errors: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return what pydantic found, in our words."""
    return [
        Violation(field_of(_within(error["loc"])), _message(error))
        for error in islice(errors, MAX_VIOLATIONS)
    ]


def graph_violations(problems: Sequence[Problem]) -> list[Violation]:
    """Return what is wrong with the graph in a body."""
    return [
        Violation(field_of(("graph", *_path_of(problem.place))), words_of(problem))
        for problem in problems[:MAX_GRAPH_VIOLATIONS]
    ]


def words_of(problem: Problem) -> str:
    """Return what a problem of a graph says, without secrets in the names that it quotes."""
    message = problem.message
    if any(odd in message for odd in _ODD):
        return redact_text(_TORN.sub("...", message))
    return _QUOTED.sub(_name, message)


def field_of(path: Sequence[str | int]) -> str:
    """Return the name of a place in a body.

    A key that a caller made up is shown only if it looks like a name, so that nothing that was
    sent by mistake comes back.
    """
    return ".".join(_part(part) for part in path)


def _within(loc: Sequence[str | int]) -> Sequence[str | int]:
    return loc[1:] if loc and loc[0] in _PLACES else loc


def _path_of(place: str) -> list[str | int]:
    parts = place.split(".") if place else []
    return [int(part) if _INDEX.fullmatch(part) else part for part in parts]


def _name(quoted: re.Match[str]) -> str:
    name = quoted.group()
    return name if _ORDINARY.fullmatch(name) else redact_text(name)


def _part(part: str | int) -> str:
    if isinstance(part, int) or _PLAIN_NAME.fullmatch(part):
        return str(part)
    return "*"


def _message(error: Mapping[str, Any]) -> str:
    kind = error["type"]
    if kind == OWN:
        return str(error["msg"])
    if error["loc"] == ("body",):
        return NO_OBJECT.message
    return _MESSAGES.get(kind, _OTHER).format_map(error.get("ctx") or {})
