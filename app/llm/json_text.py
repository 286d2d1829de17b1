"""The JSON in a reply that has words around it. Nothing is mended and nothing is guessed.

It is the whole reply, or the first fenced block that is JSON, or the first complete JSON object.
A reply that breaks off inside an object has none, whatever complete objects stand within that one.
"""

import json
import re

MAX_REPLY_CHARS = 1_000_000
"""A longer reply is not searched."""

_FENCED = re.compile(
    r"^ {0,3}```[A-Za-z0-9]*[ \t]*\n(.*?)^ {0,3}```[ \t]*$", re.DOTALL | re.MULTILINE
)
_DECODER = json.JSONDecoder()


def json_part(reply: str) -> str | None:
    """Return the part of a reply that is JSON, as it was written; None if there is none."""
    if len(reply) > MAX_REPLY_CHARS:
        return None
    if _is_json(reply):
        return reply.strip()
    fenced = (block[1].strip() for block in _FENCED.finditer(reply))
    return next(filter(_is_json, fenced), None) or _first_object(reply)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _first_object(text: str) -> str | None:
    start = text.find("{")
    while start >= 0:
        try:
            _, end = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            if _breaks_off(text, error):
                return None
            start = text.find("{", max(start + 1, error.pos))
        except (ValueError, RecursionError):
            return None
        else:
            return text[start:end]
    return None


def _breaks_off(text: str, error: json.JSONDecodeError) -> bool:
    """Tell whether the reply ends before what it began: then all that follows is inside of it."""
    return error.msg.startswith("Unterminated string") or not text[error.pos :].strip()
