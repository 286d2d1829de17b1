"""Arrays of tokens in the bodies of embeddings, which clients send instead of texts.

A body may hold millions of tokens. They are cut out of the JSON text before it is parsed, and kept
as arrays of eight bytes each: as Python numbers they would take ten times the memory, and parsing
them at once would stop the event loop. One array is parsed after the other, so that other threads
run in between.
"""

import re
import secrets
from array import array
from collections.abc import Callable
from typing import Any, Final

import orjson

from caseworker.models.fields.table import RefusedBodyError

MAX_ARRAY_TOKENS: Final = 100_000
"""Tokens of one array. Parsing them takes about two milliseconds."""
MAX_TOKENS: Final = 4_000_000
"""Tokens of a body. Reading and hashing them takes about half a second of a thread."""
TOKEN_BYTES: Final = 8
"""Bytes of memory for a token."""

_TYPE: Final = "q"
"""Type code of :mod:`array` for 64-bit integers."""
_INPUT: Final = re.compile(rb'"input"\s*:\s*(\[[\d\s,\[\]]*\])')
"""The field ``input`` with numbers alone; the JSON parser checks that it is a field of the body."""
_ARRAY: Final = re.compile(rb"\[[^\[\]]*\]")


def document_with_tokens(content: bytes, parse: Callable[[bytes], Any]) -> Any:
    """Return the JSON document of a body in which the arrays of tokens in ``input`` are arrays.

    ``parse`` parses JSON. A body without such arrays is parsed as usual.

    Raises:
        RefusedBodyError: the body has too many tokens.
    """
    match = _INPUT.search(content)
    tokens = None if match is None else _tokens_in(match[1])
    if match is not None and tokens is not None:
        mark = secrets.token_hex(16)
        rest = b'%s"%s"%s' % (content[: match.start(1)], mark.encode(), content[match.end(1) :])
        document = parse(rest)
        # A place in another object has the mark elsewhere.
        if isinstance(document, dict) and document.get("input") == mark:
            return {**document, "input": tokens}
    return parse(content)


def _tokens_in(text: bytes) -> "array[int] | list[array[int]] | None":
    """Return the array of tokens, or the list of arrays, in a JSON text; None if it is neither.

    Raises:
        RefusedBodyError: there are too many tokens.
    """
    if text.count(b",") >= MAX_TOKENS:
        raise _too_many(MAX_TOKENS, "The body")
    if text.find(b"[", 1) < 0:
        return _array_in(text)
    inner, end, between = text[1:-1], 0, list[bytes]()
    arrays: list[array[int]] = []  # not subscriptable before Python 3.12
    for match in _ARRAY.finditer(inner):
        if (tokens := _array_in(match[0])) is None:
            return None
        arrays.append(tokens)
        between.append(inner[end : match.start()].strip())
        end = match.end()
    is_list = between == [b"", *[b","] * (len(arrays) - 1)] and not inner[end:].strip()
    return arrays if is_list else None


def _array_in(text: bytes) -> "array[int] | None":
    if text.count(b",") >= MAX_ARRAY_TOKENS:
        raise _too_many(MAX_ARRAY_TOKENS, "An array of tokens")
    try:
        return array(_TYPE, orjson.loads(text))
    except (ValueError, TypeError, OverflowError):
        return None


def _too_many(limit: int, subject: str) -> RefusedBodyError:
    message = f"{subject} must not have more than {limit} tokens."
    return RefusedBodyError("invalid_request", message, "input")
