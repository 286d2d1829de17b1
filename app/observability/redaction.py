"""Takes secrets and personal data out of what is logged or stored for people to read.

Names decide first. Values under names on the allowlist are identifiers and words that the service
makes itself: of them only what has the unmistakable form of a key is taken out. Values under names
that say "secret" or name a person's data never pass. Every other text passes through the rules of
:mod:`secrets` and :mod:`personal_data`, and is cut to a length. (seed 002, requirement 19)
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.observability.field_names import SAFE_NAMES, mark_for
from app.observability.personal_data import without_personal_data
from app.observability.rules import applied
from app.observability.secrets import KEYS, without_secrets

MAX_TEXT_CHARS = 2000
"""Where a text is cut unless the caller says otherwise."""

_SAFE_VALUE_CHARS = 200
_REMEMBERED_NAMES = 4096
"""The names of a service are few; those that callers make up push one another out."""

_MAX_INTEGER_BITS = 256
_SMALLEST_CARD_NUMBER = 10**12
_MAX_DEPTH = 12
_MAX_ITEMS = 200
_TORN_CHARS = 256
"""How much before a cut may be the beginning of a secret that the cut tore apart."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_MOST_PASSES = 8
_SHORTEST = 5
"""No shorter text can hold anything that a rule knows."""


def redact_value(value: Any, *, name: str = "", max_chars: int = MAX_TEXT_CHARS) -> Any:
    """Return a copy of ``value`` that may be shown; ``name`` is what it is called.

    Mappings, sequences and dataclasses are walked to a depth and length; what is neither text nor
    number is shown as text.
    """
    return _redact(value, name, max_chars, _MAX_DEPTH)


def redact_text(text: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return ``text`` without the secrets and personal data that can be told by their form.

    A mark such as ``[email]`` stands where something was. No more than ``max_chars`` characters
    are returned; of a text that is cut, a note of how many were left out is among them.
    """
    kept = text if len(text) <= max_chars else _cut(text, max_chars)
    kept = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", kept)
    return _fitted(_marked(kept), len(text), max_chars)


def holds_key(text: str) -> bool:
    """Tell whether a short text has the form of a key, so that it should not be repeated."""
    return applied(KEYS, text) != text


def _marked(text: str) -> str:
    """Return a text with its marks; a mark is the edge of a word, beside which more may begin."""
    for _ in range(_MOST_PASSES):
        before = text
        text = without_personal_data(without_secrets(before)) if len(text) >= _SHORTEST else text
        if text == before:
            break
    return text


def _redact(value: Any, name: str, max_chars: int, depth: int) -> Any:
    mark = mark_for(name)
    if mark is not None:
        return None if value is None else mark
    if value is None or isinstance(value, bool | int | float):
        return _redact_number(value)
    if isinstance(value, str):
        return _redact_named_text(value, name, max_chars)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    if depth == 0:
        return "[too deep]"
    return _redact_parts(value, name, max_chars, depth - 1)


def _redact_named_text(text: str, name: str, max_chars: int) -> str:
    safe = name in SAFE_NAMES and len(text) <= _SAFE_VALUE_CHARS and text.isprintable()
    return applied(KEYS, text) if safe else redact_text(text, max_chars=max_chars)


def _redact_parts(value: Any, name: str, max_chars: int, depth: int) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        shown = list(value.items())[:_MAX_ITEMS]
        parts = {
            _shown_name(str(key)): _redact(item, str(key), max_chars, depth) for key, item in shown
        }
        return parts if len(shown) == len(value) else {**parts, "...": len(value) - len(shown)}
    if isinstance(value, list | tuple | set | frozenset):
        items = [_redact(item, name, max_chars, depth) for item in list(value)[:_MAX_ITEMS]]
        more = len(value) - len(items)
        return items if not more else [*items, f"[{more} more items]"]
    return redact_text(str(value), max_chars=max_chars)


def _redact_number(value: float | None) -> Any:
    """Keep a number unless JSON has no such number or it is one of a card."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return f"[integer of {value.bit_length()} bits]"
    if isinstance(value, int) and value >= _SMALLEST_CARD_NUMBER:
        text = str(value)
        kept = redact_text(text)
        return value if kept == text else kept
    return value


@lru_cache(maxsize=_REMEMBERED_NAMES)
def _shown_name(name: str) -> str:
    return redact_text(name, max_chars=_SAFE_VALUE_CHARS)


def _cut(text: str, max_chars: int) -> str:
    """Cut a text and drop its torn last word, which no pattern may recognise any more."""
    kept = text[: max_chars + _TORN_CHARS]
    space = max(kept.rfind(" ", max_chars), kept.rfind("\n", max_chars))
    return kept[: space if space >= 0 else max_chars]


def _fitted(kept: str, length: int, max_chars: int) -> str:
    """Return what is shown of a text of ``length`` characters, with a note if it is cut."""
    if length <= max_chars >= len(kept):
        return kept
    note = f" [{max(length - max_chars, 1)} more characters]"
    return kept[: max(0, max_chars - len(note))] + note
