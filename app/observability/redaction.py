"""Takes secrets and personal data out of what is logged or stored for people to read.

Names decide first. Values under names on the allowlist are identifiers and words that the service
makes itself: they pass. Values under names that say "secret" never pass. Every other text passes
through the patterns below, and is cut to a length. (seed 002, requirement 19)

The patterns take linear time: every repetition has an upper bound, and no two repetitions side by
side can match the same character.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from app.observability.card_numbers import is_card_number

MAX_TEXT_CHARS = 2000
"""Where a text is cut unless the caller says otherwise."""

SAFE_NAMES = frozenset(
    {
        *("ts", "level", "logger", "type", "kind", "status", "version", "code", "at"),
        *("run_id", "tenant", "tenant_id", "node_id", "step_id", "parent_id", "call_key"),
        *("request_id", "trace_id", "span_id", "worker_id", "process_id", "sha256"),
        *("tier", "step_type", "mode", "decision", "finish_reason", "terminate_reason"),
        *("dimension", "error_class", "media_type", "method", "status_code"),
    }
)
"""Names whose values the service makes itself."""

_SAFE_VALUE_CHARS = 200
_REMEMBERED_NAMES = 4096
"""The names of a service are few; those that callers make up push one another out."""

_MAX_INTEGER_BITS = 256
_SMALLEST_CARD_NUMBER = 10**12
_MAX_DEPTH = 12
_MAX_ITEMS = 200
_TORN_CHARS = 256
"""How much before a cut may be the beginning of a secret that the cut tore apart."""

_SECRET_NAME = re.compile(
    r"passw|secret|apikey|privatekey|credential|authorization|cookie|goldanswer"
    r"|(?:^|access|refresh|auth|bearer|id|session|csrf)token$"
)

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def redact_value(value: Any, *, name: str = "", max_chars: int = MAX_TEXT_CHARS) -> Any:
    """Return a copy of ``value`` that may be shown; ``name`` is what it is called.

    Mappings, sequences and dataclasses are walked to a depth and length; what is neither text nor
    number is shown as text.
    """
    return _redact(value, name, max_chars, _MAX_DEPTH)


def redact_text(text: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return ``text`` without the secrets and personal data that can be told by their form.

    A mark such as ``[email]`` stands where something was. At most ``max_chars`` characters are
    kept, and a note of how many were cut.
    """
    kept = text if len(text) <= max_chars else _cut(text, max_chars)
    lowered = kept.lower()
    if _ANY_HINT.search(lowered):
        for hints, pattern, mark in _HINTED:
            if any(hint in lowered for hint in hints):
                kept = pattern.sub(mark, kept)
    for shortest, pattern, judge in _UNHINTED:
        if len(kept) >= shortest:
            kept = pattern.sub(judge, kept)
    kept = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", kept)
    cut_chars = len(text) - max_chars
    return f"{kept[:max_chars]} [{cut_chars} more characters]" if cut_chars > 0 else kept


def _redact(value: Any, name: str, max_chars: int, depth: int) -> Any:
    if _names_a_secret(name):
        return None if value is None else "[secret]"
    if value is None or isinstance(value, bool | int | float):
        return _redact_number(value)
    if isinstance(value, str):
        safe = name in SAFE_NAMES and len(value) <= _SAFE_VALUE_CHARS and value.isprintable()
        return value if safe else redact_text(value, max_chars=max_chars)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    if depth == 0:
        return "[too deep]"
    return _redact_parts(value, name, max_chars, depth - 1)


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


@lru_cache(maxsize=_REMEMBERED_NAMES)
def _names_a_secret(name: str) -> bool:
    plain = name.replace("_", "").replace("-", "").lower()
    return bool(plain) and _SECRET_NAME.search(plain) is not None


def _cut(text: str, max_chars: int) -> str:
    """Cut a text and drop its torn last word, which no pattern may recognise any more."""
    kept = text[: max_chars + _TORN_CHARS]
    space = max(kept.rfind(" ", max_chars), kept.rfind("\n", max_chars))
    return kept[: space if space >= 0 else max_chars]


def _long_token(match: re.Match[str]) -> str:
    """Judge a long word by its mixture: random ones have digits among letters of both cases."""
    token = match.group()
    digits = sum(character.isdigit() for character in token)
    letters = sum(character.isalpha() for character in token)
    both_cases = token.lower() != token != token.upper()
    random_looking = (digits and both_cases) or (digits >= 4 and letters >= 4)
    return "[secret]" if random_looking and not _UUID.fullmatch(token) else token


def _card(match: re.Match[str]) -> str:
    return "[card number]" if is_card_number(match.group()) else match.group()


_Mark = str | Callable[[re.Match[str]], str]

_SECRET_WORDS = ("password", "passwd", "pwd", "secret", "apikey", "api_key", "api-key", "token")

_HINTED: tuple[tuple[tuple[str, ...], re.Pattern[str], _Mark], ...] = (
    (
        ("private key",),
        re.compile(
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END[A-Z ]{0,40}-----|\Z)", re.S
        ),
        "[private key]",
    ),
    (("://",), re.compile(r"(?<=://)[^\s/@]{1,300}@"), "[secret]@"),
    (
        ("bearer", "basic"),
        re.compile(r"\b(bearer|basic)(\s{1,4})[A-Za-z0-9._~+/=-]{8,3000}", re.IGNORECASE),
        r"\1\2[secret]",
    ),
    (
        _SECRET_WORDS,
        re.compile(
            rf"({'|'.join(_SECRET_WORDS)})"
            r"([\"']?\s{0,3}[:=]\s{0,3}[\"']?)(?!\[secret\])[^\s\"',;&}\]]{1,500}",
            re.IGNORECASE,
        ),
        r"\1\2[secret]",
    ),
    (
        ("-", "_"),
        re.compile(r"\b(?:sk|pk|rk|xox[a-z]|gh[a-z]|github_pat|glpat|hf)[-_][A-Za-z0-9_-]{10,300}"),
        "[secret]",
    ),
    (("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,40}"), "[secret]"),
    (("aiza",), re.compile(r"\bAIza[A-Za-z0-9_-]{20,60}"), "[secret]"),
    (
        ("eyj",),
        re.compile(
            r"\beyJ[A-Za-z0-9_-]{5,2000}\.[A-Za-z0-9_-]{5,4000}(?:\.[A-Za-z0-9_-]{0,2000})?"
        ),
        "[secret]",
    ),
    (("@",), re.compile(r"[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "[email]"),
)
"""(a text in lower case that is there wherever the pattern matches, the pattern, its mark)."""

_ANY_HINT = re.compile("|".join(re.escape(hint) for hints, *_ in _HINTED for hint in hints))

_UNHINTED: tuple[tuple[int, re.Pattern[str], _Mark], ...] = (
    (13, re.compile(r"(?<!\d)[2-6](?:[ -]?\d){12,18}(?!\d)"), _card),
    (32, re.compile(r"[A-Za-z0-9_+=-]{32,3000}"), _long_token),
)
"""(the length of the shortest match, the pattern, what judges a match)."""
