"""Our own messages for pydantic errors, which never quote the input.

All messages consist of fixed texts and limits from our schemas.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, LiteralString

from pydantic_core import PydanticCustomError

OWN: Final = "caseworker"
"""Pydantic error type that marks our own messages."""

MESSAGES: Mapping[str, str] = {
    "missing": "This field is required.",
    "extra_forbidden": "This field is unknown; remove it.",
    "unexpected_keyword_argument": "This field is unknown; remove it.",
    "string_type": "This must be a string.",
    "string_unicode": "This must be valid Unicode text.",
    "string_too_short": "This must have at least {min_length} characters.",
    "string_too_long": "This must have at most {max_length} characters.",
    "string_pattern_mismatch": "This must match {pattern}",
    "too_short": "This must have at least {min_length} items.",
    "too_long": "This must have at most {max_length} items.",
    "int_type": "This must be a whole number.",
    "int_from_float": "This must be a whole number.",
    "int_parsing": "This must be a whole number.",
    "int_parsing_size": "This must be a whole number.",
    "float_type": "This must be a number.",
    "finite_number": "This must be a finite number.",
    "bool_type": "This must be true or false.",
    "greater_than_equal": "This must be at least {ge}.",
    "less_than_equal": "This must be at most {le}.",
    "literal_error": "This must be one of: {expected}.",
    "enum": "This must be one of: {expected}.",
    "dict_type": "This must be a JSON object.",
    "dataclass_type": "This must be a JSON object.",
    "model_type": "This must be a JSON object.",
    "model_attributes_type": "This must be a JSON object.",
    "list_type": "This must be a JSON array.",
    "recursion_loop": "This is nested too deeply.",
}
"""Maps pydantic error types to our messages."""
OTHER = "This value is not accepted here."

_WORD = "[A-Za-z]{1,24}[0-9]{0,2}"
_NAME = f"{_WORD}(?:_{_WORD}){{0,4}}"
_PLAIN_NAME = re.compile(rf"{_NAME}(?:\.{_NAME})?", re.ASCII)
"""Words joined by underscores, with at most one dot. Tokens and keys do not match, because they mix
letters and digits."""


def refusal(message: str) -> PydanticCustomError:
    """Return an error with our own message, for validators to raise."""
    template: LiteralString = "{message}"
    return PydanticCustomError(OWN, template, {"message": message})


def field_of(names: Iterable[str | int]) -> str:
    """Return the given names and indexes as a dotted path.

    A key chosen by the caller is included only if it looks like a name, so that data sent by
    mistake is not echoed.
    """
    return ".".join(
        str(name) if isinstance(name, int) or _PLAIN_NAME.fullmatch(name) else "*" for name in names
    )


def message_of(error: Mapping[str, Any]) -> str:
    """Return our message for a pydantic error."""
    if error["type"] == OWN:
        return str(error["msg"])
    return MESSAGES.get(error["type"], OTHER).format_map(error.get("ctx") or {})
