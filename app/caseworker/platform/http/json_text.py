"""Parse untrusted JSON with limits, and reject values that the database cannot store.

Python's parser accepts more than JSON allows (NaN, duplicate keys, integers of any length), and
Postgres stores less (no NUL, no unpaired surrogates). Both differences are rejected here.
"""

import json
import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

from caseworker.platform.http.problems import MAX_VIOLATIONS, Violation
from caseworker.platform.validation import field_of

_BOM = b"\xef\xbb\xbf"
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
"""Matches a string as a whole, even if unterminated, so that brackets in it do not count.

The pattern is unambiguous, so matching takes linear time for any text.
"""

_LONG_NUMBER = re.compile(r"\d{19}|[eE]\+?\d{3}")
"""Matches every number that may be too large; texts without a match skip the check per number."""
_INT64_DIGITS = 19
_INT64 = 2**63


class MalformedJsonError(ValueError):
    """The text is not acceptable JSON; the message explains how to correct it."""


class UnstorableTextError(ValueError):
    """The text is valid JSON, but contains strings that the database cannot store."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("Strings must not contain NUL characters or unpaired surrogates.")
        self.violations = violations


def read_json(body: bytes, *, max_depth: int) -> Any:
    """Parse a request body and return its value.

    Raises:
        MalformedJsonError: it is not JSON, is nested deeper than ``max_depth``, or holds duplicate
            keys or numbers beyond 64 bits.
        UnstorableTextError: it holds NUL characters or unpaired surrogates.
    """
    if body.startswith(_BOM):
        raise MalformedJsonError("The body must not start with a byte order mark.")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise MalformedJsonError("The body is not valid UTF-8.") from None
    if is_nested_deeper(text, max_depth):
        raise MalformedJsonError(f"The body exceeds {max_depth} levels of nesting.")
    try:
        value = (_CAREFUL if _LONG_NUMBER.search(text) else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise MalformedJsonError(f"The body is not valid JSON: {place}.") from None
    if "\\u" in text:  # NUL and unpaired surrogates can only come from escapes
        _require_storable(value)
    return value


def is_nested_deeper(text: str, limit: int) -> bool:
    """Return whether arrays and objects in a JSON text are nested deeper than ``limit``."""
    if text.count("[") + text.count("{") <= limit:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        match match.group()[0]:
            case "[" | "{":
                depth += 1
                if depth > limit:
                    return True
            case "]" | "}":
                depth -= 1
                if depth < 0:
                    return False  # invalid JSON; the parser gives a better message
    return False


def is_storable(text: str) -> bool:
    """Return whether the database can store a text."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _require_storable(value: Any) -> None:
    message = "Strings must not contain NUL characters or unpaired surrogates."
    places = islice(_unstorable(value, ()), MAX_VIOLATIONS)
    violations = [Violation(field_of(path), message) for path in places]
    if violations:
        raise UnstorableTextError(violations)


def _unstorable(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of strings and keys that cannot be stored."""
    match value:
        case str():
            if not is_storable(value):
                yield path
        case list():
            for index, item in enumerate(value):
                yield from _unstorable(item, (*path, index))
        case dict():
            for key, item in value.items():
                if not is_storable(key):
                    yield (*path, key)
                yield from _unstorable(item, (*path, key))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedJsonError("The body contains an object with a duplicate key.")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _INT64_DIGITS + 1 or not -_INT64 <= int(digits) < _INT64:
        raise MalformedJsonError(
            "The body contains an integer of more than 64 bits. Send it as a string."
        )
    return int(digits)


def _fraction(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise MalformedJsonError(
            "The body contains a number that is too large. Send it as a string."
        )
    return number


def _constant(_: str) -> NoReturn:
    raise MalformedJsonError("NaN and Infinity are not valid JSON. Omit the field or send null.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_CAREFUL = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_constant,
)
