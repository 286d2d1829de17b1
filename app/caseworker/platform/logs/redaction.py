"""Redact secrets and personal data in logs and in stored text that people read.

The name of a field is checked first. A value whose name denotes a secret or personal data is never
shown. From a value with an allowlisted name, only API keys are removed. All other texts pass
through the rules and are truncated.
"""

import dataclasses
import html
import math
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from caseworker.platform.logs.personal_data import PERSONAL_DATA
from caseworker.platform.logs.rules import RuleSet
from caseworker.platform.logs.secrets import CREDENTIALS, KEYS

MAX_TEXT_CHARS = 2000
"""Default maximum length of a text in characters; longer ones are truncated."""

_MAX_NAME_CHARS = 200
_MAX_INTEGER_BITS = 256
_SMALLEST_CARD_NUMBER = 10**12
_MAX_DEPTH = 12
_MAX_ITEMS = 200
_MAX_PASSES = 8
_PASSES_OF_LONG = 3
_LONG_CHARS = 1_000
LOOKAHEAD_CHARS = 256
"""Number of characters that are read beyond the shown part, so that a secret at the cut is still
recognized."""
_NAMING = frozenset({"name", "key", "header", "field", "label", "k"})
_NAMED = frozenset({"value", "v"})
"""Keys of mappings that hold a name and its value, such as ``{"name": "password", "value": 1}``."""

_KEYS = RuleSet(KEYS)
_RULES = RuleSet((*CREDENTIALS, *PERSONAL_DATA))
_ORDINARY = re.compile(r"[A-Za-z]{1,15}+|\d{1,6}+(?:\.\d{1,6}+)?|\d{4}-\d\d-\d\d")
"""A single word, number or date; no rule matches it."""
_ID_OR_INSTANT = re.compile(
    r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z"
)
"""IDs and timestamps in the formats that the service generates; they contain no keys."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}|&#?[0-9A-Za-z]{2,8};|\\u(?!d[89a-f])([0-9A-Fa-f]{4})")
_MAX_ESCAPE_LAYERS = 3
"""Maximum nesting of escapes that is decoded: ``%2540`` decodes to an at sign."""
_DASHES = dict.fromkeys(range(0x2010, 0x2016), "-")

SAFE_NAMES = frozenset(
    {
        *("ts", "level", "logger", "type", "kind", "status", "version", "code", "at"),
        *("run_id", "tenant", "tenant_id", "node_id", "step_id", "parent_id", "call_key"),
        *("request_id", "trace_id", "span_id", "worker_id", "process_id", "sha256"),
        *("tier", "step_type", "mode", "decision", "finish_reason", "terminate_reason"),
        *("dimension", "error_class", "media_type", "method", "status_code"),
    }
)
"""Names of fields whose values the service generates, or which hold names that callers chose for
their runs."""

_WORD = re.compile(r"[A-Z]?[^\W\dA-Z_]+|[A-Z]+(?![^\W\dA-Z_])|\d+")
_SECRET = re.compile(
    r"passw|passphrase|passcode|secret|apikey|privatekey|accesskey|credential|authorization|cookie"
    r"|(?:signing|encryption|master|ssh|auth|client|license|account|session|shared)key$"
    r"|goldanswer|^cvv|^cvc|^auth$|^bearer$|connectionstring|mnemonic|seedphrase|kennwort"
    r"|motdepasse|sess(?:ion)?id$|contrase[n\u00f1]|^senha$|\u043f\u0430\u0440\u043e\u043b\u044c"
    r"|(?<!per)(?<!first)(?<!last)token$"
)
_SECRET_WORDS = frozenset({"pass", "pw", "pwd", "pin", "otp", "sid", "session", "jwt", "dsn"})
"""Secret names too short for a substring search; compared with the last word of a name."""
_PERSONAL_ENDINGS = (
    *("mail", "emailaddress", "phone", "mobile", "fax", "phonenumber", "mobilenumber", "dob"),
    *("telephonenumber", "firstname", "lastname", "fullname", "surname", "givenname", "familyname"),
    *("middlename", "maidenname", "customername", "patientname", "cardholder", "cardholdername"),
    *("birthday", "birthdate", "dateofbirth", "ssn", "socialsecuritynumber", "nationalid", "taxid"),
    *("passport", "passportnumber", "driverslicense", "iban", "accountnumber", "creditcard"),
    *("cardnumber", "street", "streetaddress", "homeaddress", "postaladdress", "postalcode"),
    "zipcode",
)
"""Suffixes of personal data names: ``customer_email``, ``workPhone``."""


def redact_value(value: Any, *, name: str = "", max_chars: int = MAX_TEXT_CHARS) -> Any:
    """Return a redacted copy of ``value``; ``name`` is its field name.

    Mappings, sequences and dataclasses are traversed up to a depth and length limit; other objects
    are converted to strings. The allowlist applies only to ``name``, since callers may choose the
    keys of a mapping.
    """
    if name in SAFE_NAMES and isinstance(value, str):
        if _ORDINARY.fullmatch(value) or _ID_OR_INSTANT.fullmatch(value):
            return value
        is_identifier = len(value) <= _MAX_NAME_CHARS and value.isprintable()
        return _KEYS.apply(value) if is_identifier else redact_text(value, max_chars=max_chars)
    return _redact(value, name, max_chars, _MAX_DEPTH)


def redact_text(text: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Replace secrets and personal data in ``text`` with marks such as ``[email]``.

    The result has at most ``max_chars`` characters; a truncated text ends with the number of
    omitted characters.
    """
    if _ORDINARY.fullmatch(text) is not None:
        return _fitted(text, len(text), max_chars)
    return _fitted(_beginning(text, max_chars), len(text), max_chars)


@lru_cache(maxsize=1024)
def redact_beginning(text: str, chars: int) -> str:
    """Return the first ``chars`` characters of a text, redacted, without a note on truncation.

    ``text`` may itself have been truncated to ``chars`` plus ``LOOKAHEAD_CHARS`` characters. A
    secret that was cut off there is not shown.
    """
    return _beginning(text, chars)[:chars]


def _beginning(text: str, chars: int) -> str:
    shown = _redacted(_printable(text[: chars + LOOKAHEAD_CHARS]))
    return shown if len(text) < chars + LOOKAHEAD_CHARS else shown[:-LOOKAHEAD_CHARS]


def without_keys(text: str) -> str:
    """Return a text that the service itself wrote, with only API keys redacted."""
    return _KEYS.apply(text)


def normalize(text: str) -> str:
    """Return ``text`` with URL, HTML and JSON escapes decoded.

    Full-width characters are replaced with ordinary ones, and invisible characters are removed.
    """
    for _ in range(_MAX_ESCAPE_LAYERS):
        if _ESCAPED.search(text) is None:
            break
        text = html.unescape(unquote(text))
        text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[0], text)
    if text.isascii():
        return text
    visible = (char for char in text if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", "".join(visible)).translate(_DASHES)


def _redacted(text: str) -> str:
    """Apply the rules to a text and its normalized form; return the form with more matches."""
    shown = _applied(text)
    if text.isascii() and not ("%" in text or "&" in text or "\\" in text):
        return shown
    plain = _printable(normalize(text))
    redacted = shown if plain == text else _applied(plain)
    if redacted in (plain, shown):
        return shown
    return redacted if redacted.count("[") >= shown.count("[") else _applied(normalize(shown))


def _applied(text: str) -> str:
    """Apply the rules until nothing changes: a replacement can enable another match next to it."""
    for _ in range(_MAX_PASSES if len(text) < _LONG_CHARS else _PASSES_OF_LONG):
        before = text
        text = _RULES.apply(before)
        if text == before:
            break
    return text


def _printable(text: str) -> str:
    """Replace control characters, which could affect a terminal."""
    return text if text.isprintable() else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _redact(value: Any, name: str, max_chars: int, depth: int) -> Any:
    mark = _mark_of(name)
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _redact_mapping(value, max_chars, depth - 1)
    if isinstance(value, list | tuple | set | frozenset):
        return _redact_items(list(value), name, max_chars, depth - 1)
    return redact_text(str(value), max_chars=max_chars)


def _redact_items(items: list[Any], name: str, max_chars: int, depth: int) -> list[Any]:
    """Redact a sequence; the first item of a pair may name the second."""
    named = _name_in(items[0]) if len(items) == 2 else None
    parts = [
        _redact(item, named if at and named else name, max_chars, depth)
        for at, item in enumerate(items[:_MAX_ITEMS])
    ]
    more = len(items) - len(parts)
    return [*parts, f"[{more} more items]"] if more else parts


def _redact_mapping(value: Mapping[Any, Any], max_chars: int, depth: int) -> dict[str, Any]:
    shown = list(value.items())[:_MAX_ITEMS]
    named = None
    if not _NAMED.isdisjoint(value):
        named = next((_name_in(item) for key, item in shown if key in _NAMING), None)
    parts = {
        _shown_name(str(key)): _redact(
            item, named if named and key in _NAMED else str(key), max_chars, depth
        )
        for key, item in shown
    }
    return parts if len(shown) == len(value) else {**parts, "...": len(value) - len(shown)}


def _name_in(part: Any) -> str | None:
    """Return ``part`` if it is the name of secret or personal data, else None."""
    if isinstance(part, bytes):
        part = part.decode(errors="replace")
    is_name = isinstance(part, str) and len(part) <= _MAX_NAME_CHARS and _mark_of(part) is not None
    return part if is_name else None


def _redact_number(value: float | None) -> Any:
    """Keep a number unless JSON cannot represent it, it is huge or it is a card number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return f"[integer of {value.bit_length()} bits]"
    if value is not None and abs(value) >= _SMALLEST_CARD_NUMBER:
        text = str(int(value))
        kept = redact_text(text)
        return value if kept == text else kept
    return value


@lru_cache(maxsize=4096)
def _mark_of(name: str) -> str | None:
    """Return the mark that replaces every value of this name; None if the value decides."""
    words = _WORD.findall(normalize(name).rstrip("0123456789"))
    plain = "".join(words).lower()
    if not plain:
        return None
    if words[-1].lower() in _SECRET_WORDS or _SECRET.search(plain):
        return "[secret]"
    return "[personal data]" if plain.endswith(_PERSONAL_ENDINGS) else None


@lru_cache(maxsize=4096)
def _shown_name(name: str) -> str:
    return redact_text(name, max_chars=_MAX_NAME_CHARS)


def _fitted(shown: str, length: int, max_chars: int) -> str:
    """Truncate redacted text to ``max_chars``; ``length`` is that of the original, for the note."""
    if length <= max_chars >= len(shown):
        return shown
    note = f" [{max(length - max_chars, 1)} more characters]"
    return shown[: max(0, max_chars - len(note))] + note
