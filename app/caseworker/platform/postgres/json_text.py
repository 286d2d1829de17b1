"""Serialize values as JSON text that Postgres accepts, and parse its JSON text."""

import gc
import json
import re
from typing import Any, Final

import orjson
from pydantic_core import from_json

_JSON_ALONE: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

LONG_TEXT: Final = 64 * 1024
"""Length of a JSON text, in bytes or characters, up to which it is parsed as usual."""

_MAYBE_UNSTORABLE = re.compile(
    r"\\u0000|\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]|\\\\ud[89ab]"
)
"""Matches the escapes of NUL and of unpaired surrogates in JSON text."""


def dump(value: Any) -> str:
    """Return ``value`` as JSON text that Postgres accepts.

    Postgres rejects NUL and lone surrogates in strings. Requests that contain them are rejected
    earlier. In text from a provider or a tool, U+FFFD replaces them. A NaN becomes null, though
    validated values contain none.

    Raises:
        ValueError: an integer is too long to be parsed again.
        TypeError: the value is not JSON.
    """
    try:
        text = orjson.dumps(value, option=_JSON_ALONE)
    except orjson.JSONEncodeError:  # long integers, keys that are numbers, lone surrogates
        return exact_dump(value)
    if b"\\u0000" in text or b"\\\\ud" in text:
        return exact_dump(value)
    return text.decode()


def load(text: str | bytes) -> Any:
    """Parse a JSON text of the database, with integers of any length.

    A long text is parsed without garbage collection: its many new objects would start several
    collections, which would find nothing and take longer than parsing.
    """
    if len(text) <= LONG_TEXT or not gc.isenabled():
        return from_json(text)
    gc.disable()
    try:
        return from_json(text)
    finally:
        gc.enable()


def exact_dump(value: Any) -> str:
    """Return any value as JSON text, like :func:`dump`, but reject NaN and infinity.

    This is slower than :func:`dump`.

    Raises:
        ValueError: there is a NaN, an infinity, or an integer too long to be parsed again.
        TypeError: the value is not JSON.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if ("\\u0000" in text or "\\ud" in text) and _MAYBE_UNSTORABLE.search(text):
        return json.dumps(storable(value), separators=(",", ":"), allow_nan=False)
    return text


def storable(value: Any) -> Any:
    """Return a JSON value in which U+FFFD replaces NUL and lone surrogates."""
    match value:
        case str():
            repaired = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return repaired.replace("\x00", "\ufffd")
        case dict():
            return {storable(key): storable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [storable(inner) for inner in value]
        case _:
            return value
