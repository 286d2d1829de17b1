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
from app.observability.issued_keys import KEYS
from app.observability.personal_data import PERSONAL_DATA
from app.observability.readings import plain_reading
from app.observability.rules import Sieve, applied
from app.observability.secrets import RANDOM_WORDS, SECRETS

MAX_TEXT_CHARS = 2000
"""Where a text is cut unless the caller says otherwise."""

_SAFE_VALUE_CHARS = 200
_REMEMBERED_NAMES = 4096
"""The names of a service are few; those that callers make up push one another out."""

_MAX_INTEGER_BITS = 256
_SMALLEST_CARD_NUMBER = 10**12
_MAX_DEPTH = 12
_PAIR = 2
_NAMING = frozenset({"name", "key", "header", "field"})
"""What mappings call the name of their ``value``, such as ``{"name": "password", "value": 1}``."""
_MAX_ITEMS = 200
_TORN_CHARS = 256
"""How much more than what is shown is read, so that no secret is torn apart where a text is cut."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_MOST_PASSES = 8
_SHORTEST = 5
"""No shorter text can hold anything that a rule knows."""

_SIEVE = Sieve((*SECRETS, *RANDOM_WORDS, *PERSONAL_DATA))
_ORDINARY = re.compile(r"[A-Za-z]{1,15}+|\d{1,6}+(?:\.\d{1,6}+)?|\d{4}-\d\d-\d\d")
"""One word, number or date: what most values are, and nobody's."""


def redact_value(value: Any, *, name: str = "", max_chars: int = MAX_TEXT_CHARS) -> Any:
    """Return a copy of ``value`` that may be shown; ``name`` is what it is called.

    Mappings, sequences and dataclasses are walked to a depth and length; what is neither text nor
    number is shown as text. The allowlist is for ``name`` alone: what a mapping calls its parts may
    come from anybody.
    """
    if name in SAFE_NAMES and isinstance(value, str):
        return _redact_identifier(value, max_chars)
    return _redact(value, name, max_chars, _MAX_DEPTH)


def redact_text(text: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return ``text`` without the secrets and personal data that can be told by their form.

    A mark such as ``[email]`` stands where something was. No more than ``max_chars`` characters
    are returned; of a text that is cut, a note of how many were left out is among them.
    """
    if len(text) <= min(max_chars, _SHORTEST) or _ORDINARY.fullmatch(text) is not None:
        return _fitted(_steady(text), len(text), max_chars)
    torn = len(text) > max_chars + _TORN_CHARS
    shown = _shown(_steady(text[: max_chars + _TORN_CHARS] if torn else text))
    return _fitted(shown[:-_TORN_CHARS] if torn else shown, len(text), max_chars)


def holds_key(text: str) -> bool:
    """Tell whether a short text has the form of a key, so that it should not be repeated."""
    return applied(KEYS, text) != text


def _shown(text: str) -> str:
    """Return a text as it is, or as its plain reading if that gives more away, with its marks."""
    shown = _marked(text)
    reading = _steady(plain_reading(text))
    if reading == text:
        return shown
    plain = _marked(reading)
    if plain == reading:
        return shown
    return plain if plain.count("[") >= shown.count("[") else _marked(plain_reading(shown))


def _marked(text: str) -> str:
    """Return a text with its marks; a mark is the edge of a word, beside which more may begin."""
    if len(text) < _SHORTEST:
        return text
    for _ in range(_MOST_PASSES):
        before = text
        text = _SIEVE.applied(before)
        if text == before:
            break
    return text


def _steady(text: str) -> str:
    """Return a text without characters that would steer a terminal."""
    return text if text.isprintable() else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _redact(value: Any, name: str, max_chars: int, depth: int) -> Any:
    mark = mark_for(name)
    if mark is not None:
        return None if value is None else mark
    if value is None or isinstance(value, bool | int | float):
        return _redact_number(value)
    if isinstance(value, str):
        return redact_text(value, max_chars=max_chars)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    if depth == 0:
        return "[too deep]"
    return _redact_parts(value, name, max_chars, depth - 1)


def _redact_identifier(text: str, max_chars: int) -> str:
    safe = len(text) <= _SAFE_VALUE_CHARS and text.isprintable()
    return applied(KEYS, text) if safe else redact_text(text, max_chars=max_chars)


def _redact_parts(value: Any, name: str, max_chars: int, depth: int) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _redact_mapping(value, max_chars, depth)
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)[:_MAX_ITEMS]
        told = _name_in(items[0]) if len(items) == _PAIR else None
        parts = [
            _redact(item, told if at and told else name, max_chars, depth)
            for at, item in enumerate(items)
        ]
        more = len(value) - len(items)
        return parts if not more else [*parts, f"[{more} more items]"]
    return redact_text(str(value), max_chars=max_chars)


def _redact_mapping(value: Mapping[Any, Any], max_chars: int, depth: int) -> dict[str, Any]:
    shown = list(value.items())[:_MAX_ITEMS]
    told = None
    if "value" in value:
        told = next((_name_in(item) for key, item in shown if key in _NAMING), None)
    parts = {
        _shown_name(str(key)): _redact(
            item, told if told and key == "value" else str(key), max_chars, depth
        )
        for key, item in shown
    }
    return parts if len(shown) == len(value) else {**parts, "...": len(value) - len(shown)}


def _name_in(part: Any) -> str | None:
    """Return the name that the first of a pair gives to the other, if it says what that is."""
    if isinstance(part, bytes):
        part = part.decode(errors="replace")
    named = isinstance(part, str) and len(part) <= _SAFE_VALUE_CHARS and mark_for(part) is not None
    return part if named else None


def _redact_number(value: float | None) -> Any:
    """Keep a number unless JSON has no such number or it is one of a card."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return f"[integer of {value.bit_length()} bits]"
    if value is not None and abs(value) >= _SMALLEST_CARD_NUMBER:
        text = str(int(value))
        kept = redact_text(text)
        return value if kept == text else kept
    return value


@lru_cache(maxsize=_REMEMBERED_NAMES)
def _shown_name(name: str) -> str:
    return redact_text(name, max_chars=_SAFE_VALUE_CHARS)


def _fitted(kept: str, length: int, max_chars: int) -> str:
    """Return what is shown of a text of ``length`` characters, with a note if it is cut."""
    if length <= max_chars >= len(kept):
        return kept
    note = f" [{max(length - max_chars, 1)} more characters]"
    return kept[: max(0, max_chars - len(note))] + note
