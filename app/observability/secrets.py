"""Finds secrets in a text by their form, or by the words that stand before them."""

import base64
import binascii
import re

from app.observability.issued_keys import KEYS
from app.observability.rules import SECRET, Rule, marked, shaped

_WORD = r"A-Za-z0-9_"
_NEAR_CHARS = 48
"""How far before a random word the word may stand that makes it a secret."""
_RANDOM_CHARS = 32
"""Random words of this length are secrets wherever they stand."""

_KEY_WORDS = re.compile(
    r"pass|secret|token|cred|auth|bearer|signature|private|api|access|(?<![a-z])key|(?<![a-z])pwd"
)
_DIGEST = re.compile(r"[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}")
_PART = re.compile(r"[a-z]{0,12}|[0-9]{1,8}|[0-9a-f]{1,8}")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_HARMLESS_WORDS = frozenset(
    {
        *("a", "an", "the", "not", "no", "too", "wrong", "right", "invalid", "valid", "required"),
        *("expired", "missing", "incorrect", "correct", "empty", "unknown", "set", "unset"),
        *("reset", "changed", "needed", "stored", "never", "always", "being", "refused", "in"),
        *("now", "to"),
    }
)
"""What may follow ``password is`` without being one."""


def _scheme(found: re.Match[str]) -> str | None:
    """Judge what follows the name of a scheme of HTTP authentication (RFC 9110, 11.6.2)."""
    scheme, credentials = found.group(1), found.group(3)
    if scheme.lower() == "basic":
        secret = _is_basic(credentials)
    else:
        secret = len(credentials) >= 20 or not credentials.isalpha()
    return f"{scheme}{found.group(2)}{SECRET}" if secret else None


def _is_basic(credentials: str) -> bool:
    padded = credentials.rstrip("=") + "=" * (-len(credentials.rstrip("=")) % 4)
    try:
        return b":" in base64.b64decode(padded.translate(_STANDARD), validate=True)
    except (binascii.Error, ValueError):
        return False


_STANDARD = str.maketrans("-_", "+/")
"""From the alphabet of base64 that fits into URLs to the other one."""


def _said(found: re.Match[str]) -> str | None:
    """Judge what somebody says a password is."""
    word = found.group(2)
    return None if word.lower().rstrip(".,;:!?") in _HARMLESS_WORDS else found.group(1) + SECRET


def _mixed_word(found: re.Match[str]) -> str | None:
    """Judge a word that only stands beside a word for secrets: those have digits in them."""
    word = found.group(2)
    told = any(map(str.isdecimal, word)) and any(map(str.isalpha, word))
    return found.group(1) + SECRET if told else None


def _random_word(found: re.Match[str]) -> str | None:
    """Judge a word by its mixture: random ones have digits among letters, mostly of both cases.

    Digests and UUIDs are the ids of this service; near a word for keys a digest is one.
    """
    word = found.group()
    if not _is_mixed(word) or _UUID.fullmatch(word):
        return None
    near = _KEY_WORDS.search(_before(found)) is not None
    if _DIGEST.fullmatch(word):
        return SECRET if near and "sha" not in _before(found)[-12:] else None
    if near:
        return SECRET
    return SECRET if len(word) >= _RANDOM_CHARS and not _is_made_of_parts(word) else None


def _is_made_of_parts(word: str) -> bool:
    """Say whether a word is put together like the name of a run or of a file: ``plot-7-1a2b``."""
    parts = re.split("[-_]", word)
    return len(parts) > 2 and all(_PART.fullmatch(part) is not None for part in parts)


def _is_mixed(word: str) -> bool:
    digits = sum(character.isdecimal() for character in word)
    letters = sum(character.isalpha() for character in word)
    both_cases = word.lower() != word != word.upper()
    return bool(digits and both_cases and letters) or (digits >= 4 and letters >= 4)


def _before(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - _NEAR_CHARS) : found.start()]
    return before.replace(SECRET, "").lower()


def _access_key(found: re.Match[str]) -> str | None:
    """Judge a word as long as a cloud's secret access key, which may hold slashes."""
    word = found.group()
    if len(word) != 40 or word.startswith("/") or _DIGEST.fullmatch(word):
        return None
    return SECRET if _is_mixed(word) else None


_HEADERS = r"(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{0,20}(?:key|token|secret)"
_PASSWORDS = (
    r"passw(?:or)?[dt]|passwd|passphrase|passcode|pwd|kennwort|wachtwoord|mot de passe"
    r"|contrase\u00f1a|contrasena|senha|\u043f\u0430\u0440\u043e\u043b\u044c|\u5bc6\u7801"
    r"|\u30d1\u30b9\u30ef\u30fc\u30c9"
)
_PASSWORD_HINTS = (
    *("pass", "pwd", "kennwort", "wachtwoord", "contrase\u00f1a", "contrasena", "senha"),
    *("\u043f\u0430\u0440\u043e\u043b\u044c", "\u5bc6\u7801", "\u30d1\u30b9\u30ef\u30fc\u30c9"),
)
_NAMED = (
    rf"{_PASSWORDS}|secret|api[ _-]?key|access[ _-]?key|private[ _-]?key|account[ _-]?key"
    r"|signing[ _-]?key|credentials?|token|auth|authorization|cookie|session[ _-]?id"
)
_NAMED_HINTS = (
    *_PASSWORD_HINTS,
    "secret",
    "key",
    "credential",
    "token",
    "auth",
    "cookie",
    "session",
)
_IS = (
    r"(?:[\\\"'\])]{0,3}\s{0,3}[:=]{1,2}>?|[\"'],)\s{0,8}"
    r"(?:[|>][+-]?\s{1,40})?(?:b(?=[\"']))?\\?"
)
"""What stands between a name and its value in programs, in JSON, in YAML and in lists of pairs."""
_ON = r"[,;&](?=[^\s,;&=:\"'{}\[\]]{1,40}(?:[\s,;&\"'{}\[\]]|$))"
"""A sign that ends a value, unless what follows it is no name of another one."""
_VALUE = (
    r"(?!\[secret\])(?:\"(?:\\.|[^\"\\\n]){1,500}+(?:\"|$)|'(?:\\.|[^'\\\n]){1,500}+(?:'|$)"
    rf"|(?:\\(?![\"'])|{_ON}|[^\s\"',;&}}\]\\]){{1,500}})"
)

SECRETS: tuple[Rule, ...] = (
    Rule(
        re.compile(
            r"-----BEGIN[ +][A-Z0-9 +]{0,40}PRIVATE[ +]KEY[A-Z +]{0,20}-----"
            r".*?(?:-----END[A-Z0-9 ]{0,60}-----|\Z)",
            re.DOTALL | re.IGNORECASE,
        ),
        marked("[private key]"),
        ("private key", "private+key"),
    ),
    Rule(
        re.compile(r"(\bPrivate-Lines: ?\d{1,3})(?:\s{1,2}[A-Za-z0-9+/=]{1,64}){1,200}"),
        marked(r"\1 [private key]"),
        ("private-lines",),
    ),
    Rule(re.compile(r"(?<=://)[^\s/?#]{1,300}@"), marked(f"{SECRET}@"), ("://",)),
    Rule(
        re.compile(r"(?<=://)[^\s:/?#@]{0,60}+:(?!\d{1,5}[/?#])[^\s\"'<>@]{1,60}+@(?=[\w\[])"),
        marked(f"{SECRET}@"),
        ("://",),
    ),
    Rule(
        re.compile(
            rf"\b({_HEADERS})(\\?[\"']?\s{{0,2}}:\s{{0,2}}(?:b(?=['\"]))?\\?[\"']?)"
            r"(?!\[secret\])[^\s\"'\\][^\r\n\"'\\]{0,3000}",
            re.IGNORECASE,
        ),
        marked(rf"\1\2{SECRET}"),
        ("authorization", "cookie", "x-"),
    ),
    Rule(
        re.compile(
            r"\b(bearer|basic|digest|apikey|token)(:?[\s+]{1,4}[\"']?)(?!\[secret\])"
            r"([A-Za-z0-9._~+/=-]{8,3000}+)",
            re.IGNORECASE,
        ),
        _scheme,
        ("bearer", "basic", "digest", "apikey", "token"),
    ),
    Rule(
        re.compile(rf"({_NAMED}|{_HEADERS})({_IS}){_VALUE}", re.I),
        marked(rf"\1\2{SECRET}"),
        (*_NAMED_HINTS, "x-"),
    ),
    Rule(
        re.compile(
            rf"(<(?:[\w.:-]{{0,30}}[_.:-])?(?:{_NAMED})(?:[_.:-][\w.:-]{{0,30}})?>\s{{0,8}})"
            r"(?!\[secret\])[^<>]{1,500}(?=<)",
            re.IGNORECASE,
        ),
        marked(rf"\1{SECRET}"),
        _NAMED_HINTS,
    ),
    Rule(
        re.compile(
            r"(\b(?:password|passphrase|passcode|passwd|pwd|passwort|kennwort|pin|api key"
            r"|secret key)(?: code)?(?: for [^\n:=\"']{1,40}?)?"
            r"(?:(?: is| was| ist)(?: now| set to| changed to)?:?|:)\s{1,3}[\"']?)"
            r"(?!\[secret\])([^\s\"']{1,300}+)",
            re.IGNORECASE,
        ),
        _said,
        (*_PASSWORD_HINTS, "pin", "key"),
        shape=shaped(r"(?:pass|pwd|kennwort|\bpin|key)[^\n]{0,70}(?: is| was| ist|:)"),
    ),
    Rule(
        re.compile(
            rf"((?:{_PASSWORDS}|\btoken|\bsecret|\bapi[ _-]?key)(?: is| was)?[\s(\[]{{1,3}}[\"']?)"
            r"(?!\[secret\])([^\s\"'()\[\]]{6,300}+)",
            re.IGNORECASE,
        ),
        _mixed_word,
        (*_PASSWORD_HINTS, "token", "secret", "key"),
    ),
    Rule(
        re.compile(
            r"((?<!\w)--?(?:password|passwd|pass|token|secret|api-key|apikey)[ ]{1,3}[\"']?)"
            r"(?!\[secret\]|-)[^\s\"']{1,300}+"
        ),
        marked(rf"\1{SECRET}"),
        ("-pass", "-token", "-secret", "-api"),
    ),
    Rule(
        re.compile(
            r"((?<!\w)(?:-u|--user)[ =]?[\"']?[^\s:\"']{1,100}:)(?!\[secret\])[^\s\"']{1,300}+"
        ),
        marked(rf"\1{SECRET}"),
        ("-u",),
        shape=shaped(r"(?:-u|--user)[ =]?[\"']?[^\s:\"']{1,100}:"),
    ),
    Rule(
        re.compile(
            r"([?&](?:sig|signature|hmac|x-amz-signature)=)(?!\[secret\])[^\s&#\"'<>]{1,500}+", re.I
        ),
        marked(rf"\1{SECRET}"),
        ("sig=", "signature=", "hmac="),
    ),
    Rule(
        re.compile(r"([?&](?:key|code|sid|jwt|ticket)=)(?!\[secret\])([^\s&#\"'<>]{6,500}+)", re.I),
        _mixed_word,
        ("key=", "code=", "sid=", "jwt=", "ticket="),
    ),
    Rule(
        re.compile(
            r"\b(pin|otp|cvv2?|cvc2?|(?-i:TAN))([\\\"']{0,3}\s{0,2}[:=#]?\s{0,2}[\\\"']{0,2})"
            r"\d{3,8}(?![\d.,:])",
            re.I,
        ),
        marked(rf"\1\2{SECRET}"),
        hints=("pin", "otp", "cvv", "cvc", "tan"),
        shape=shaped(r"\b(?:pin|otp|cv[vc]2?|tan)\W{0,12}\d{3}"),
    ),
    Rule(
        re.compile(
            r"\b((?:verification|security|confirmation|one-time|login|access|sms|2fa)"
            r" (?:code|password|passcode|pin)(?: is)?:?[ ]{1,2})\d{4,8}(?![\d.,:])",
            re.I,
        ),
        marked(rf"\1{SECRET}"),
        (" code", " password", " passcode", " pin"),
        shape=shaped(r" (?:code|password|passcode|pin)(?: is)?:?[ ]{1,2}\d{4}"),
    ),
    Rule(
        re.compile(
            r"\b((?:(?:seed|recovery|backup) (?:phrase|words)|mnemonic)(?: is)?[: \"']{1,4})"
            r"(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8}\b",
            re.I,
        ),
        marked(rf"\1{SECRET}"),
        ("phrase", "words", "mnemonic"),
    ),
    *KEYS,
)
"""Secrets with a form of their own, and those that their neighbours give away."""

_SHORTEST_RANDOM_WORD = 16
_MIXED = re.compile(r"(?=[a-z_+=/-]{0,15}\d)[a-z0-9_+=/-]{16}")


def _has_long_word(lowered: str) -> bool:
    """Say whether a word is long enough for a random one and has a digit in it."""
    longest = max(map(len, lowered.split()), default=0)
    return longest >= _SHORTEST_RANDOM_WORD and _MIXED.search(lowered) is not None


RANDOM_WORDS: tuple[Rule, ...] = (
    Rule(
        re.compile(
            r"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40,}+|(?<==)[A-Za-z0-9/+]{40}+(?![A-Za-z0-9/+])"
        ),
        _access_key,
        shape=_has_long_word,
    ),
    Rule(re.compile(rf"(?<![{_WORD}+=-])[{_WORD}+=-]{{16,}}+"), _random_word, shape=_has_long_word),
)
"""Long words that nobody would write by hand."""
