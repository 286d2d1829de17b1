"""Finds secrets in a text by their form, or by the words that stand before them."""

import base64
import binascii
import re

from app.observability.rules import Rule, applied, marked

SECRET = "[secret]"  # noqa: S105 - it stands where one was

_WORD = r"A-Za-z0-9_"
_NEAR_CHARS = 48
"""How far before a random word the word may stand that makes it a secret."""
_RANDOM_CHARS = 32
"""Random words of this length are secrets wherever they stand."""

_KEY_WORDS = re.compile(
    r"pass|secret|token|cred|auth|bearer|signature|private|api|access|(?<![a-z])key|(?<![a-z])pwd"
)
_DIGEST = re.compile(r"[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_HARMLESS_WORDS = frozenset(
    {
        *("a", "an", "the", "not", "no", "too", "wrong", "right", "invalid", "valid", "required"),
        *("expired", "missing", "incorrect", "correct", "empty", "unknown", "set", "unset"),
        *("reset", "changed", "needed", "stored", "never", "always", "being", "refused", "in"),
    }
)
"""What may follow ``password is`` without being one."""


def _key(found: re.Match[str]) -> str | None:
    """Judge what begins as keys do: names in programs may, but have no digits and short parts."""
    rest = found.group(1)
    told = any(character.isdecimal() for character in rest)
    return SECRET if told or max(map(len, re.split("[-_]", rest))) >= 20 else None


def _web_token(found: re.Match[str]) -> str | None:
    """Judge a run of characters that a JSON Web Token (RFC 7519) may stand in."""
    run = found.group()
    begin = run.find("eyJ")
    return None if begin < 0 or "." not in run[begin + 8 : -1] else run[:begin] + SECRET


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
        return b":" in base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        return False


def _said(found: re.Match[str]) -> str | None:
    """Judge what somebody says a password is."""
    word = found.group(2)
    return None if word.lower().rstrip(".,;:!?") in _HARMLESS_WORDS else found.group(1) + SECRET


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
    return SECRET if near or len(word) >= _RANDOM_CHARS else None


def _is_mixed(word: str) -> bool:
    digits = sum(character.isdecimal() for character in word)
    letters = sum(character.isalpha() for character in word)
    both_cases = word.lower() != word != word.upper()
    return bool(digits and both_cases and letters) or (digits >= 4 and letters >= 4)


def _before(found: re.Match[str]) -> str:
    return found.string[max(0, found.start() - _NEAR_CHARS) : found.start()].lower()


def _access_key(found: re.Match[str]) -> str | None:
    """Judge a word as long as a cloud's secret access key, which may hold slashes."""
    word = found.group()
    if len(word) != 40 or word.startswith("/") or _DIGEST.fullmatch(word):
        return None
    return SECRET if _is_mixed(word) else None


_NAMED = (
    r"passw(?:or)?d|passwd|passphrase|passcode|pwd|secret|api[ _-]?key|access[ _-]?key"
    r"|private[ _-]?key|account[ _-]?key|credentials?|token|auth|cookie|session[ _-]?id"
)
_NAMED_HINTS = ("pass", "pwd", "secret", "key", "credential", "token", "auth", "cookie", "session")
_VALUE = (
    r"(?!\[secret\])(?:\"[^\"\n]{1,500}\"|'[^'\n]{1,500}'"
    r"|(?:\\(?![\"'])|[^\s\"',;&}\]\\]){1,500})"
)

KEYS: tuple[Rule, ...] = (
    Rule(
        re.compile(
            rf"(?<![A-Za-z0-9])(?:sk|pk|rk|xox[a-z]|xapp|xai|gh[opusr]|github_pat|glpat|hf|gsk|npm"
            rf"|pypi|dop_v1|shp[a-z]{{2}}|whsec|r8|tvly|lsv2)[-_]([{_WORD}-]{{10,}}+)"
        ),
        _key,
        ("-", "_"),
        whole=True,
    ),
    Rule(
        re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}+"),
        marked(SECRET),
        ("akia", "asia"),
    ),
    Rule(re.compile(rf"(?<![A-Za-z0-9])AIza[{_WORD}-]{{20,}}+"), marked(SECRET), ("aiza",)),
    Rule(re.compile(rf"(?<![A-Za-z0-9])ya29\.[{_WORD}-]{{10,}}+"), marked(SECRET), ("ya29.",)),
    Rule(
        re.compile(rf"(?<![A-Za-z0-9])SG\.[{_WORD}-]{{10,80}}\.[{_WORD}-]{{10,}}+"),
        marked(SECRET),
        ("sg.",),
    ),
    Rule(re.compile(rf"(?<!\d)\d{{8,10}}:AA[{_WORD}-]{{30,}}+"), marked(SECRET), (":aa",)),
    Rule(
        re.compile(r"(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{10,}+"),
        marked(SECRET),
        ("hooks.slack.com",),
    ),
    Rule(re.compile(rf"(?<![{_WORD}.-])[{_WORD}.-]{{20,}}+"), _web_token, ("eyj",)),
)
"""What has the form that its issuer gives to keys."""

SECRETS: tuple[Rule, ...] = (
    Rule(
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----"
            r".*?(?:-----END[A-Z0-9 ]{0,60}-----|\Z)",
            re.DOTALL,
        ),
        marked("[private key]"),
        ("private key",),
    ),
    Rule(re.compile(r"(?<=://)[^\s/?#]{1,300}@"), marked(f"{SECRET}@"), ("://",)),
    Rule(
        re.compile(
            r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\\?[\"']?\s{0,2}:\s{0,2}"
            r"\\?[\"']?)(?!\[secret\])[^\s\"'\\][^\r\n\"'\\]{0,3000}",
            re.IGNORECASE,
        ),
        marked(rf"\1\2{SECRET}"),
        ("authorization", "cookie", "x-api-key"),
    ),
    Rule(
        re.compile(
            r"\b(bearer|basic|digest|apikey|token)(\s{1,4})(?!\[secret\])"
            r"([A-Za-z0-9._~+/=-]{8,3000}+)",
            re.IGNORECASE,
        ),
        _scheme,
        ("bearer", "basic", "digest", "apikey", "token"),
    ),
    Rule(
        re.compile(rf"({_NAMED})([\\\"']{{0,3}}\s{{0,3}}[:=]{{1,2}}>?\s{{0,3}}\\?){_VALUE}", re.I),
        marked(rf"\1\2{SECRET}"),
        _NAMED_HINTS,
    ),
    Rule(
        re.compile(
            r"(\b(?:password|passphrase|passcode|passwd|pwd|pin|api key|secret key)(?: code)?"
            r"(?: is| was)\s{1,3}[\"']?)(?!\[secret\])([^\s\"']{1,300}+)",
            re.IGNORECASE,
        ),
        _said,
        ("pass", "pwd", "pin", "key"),
    ),
    Rule(
        re.compile(r"\b(pin|otp|cvv2?|cvc2?|tan)(\s{0,2}[:=#]?\s{0,2})\d{3,8}(?![\d.,:])", re.I),
        marked(rf"\1\2{SECRET}"),
        ("pin", "otp", "cvv", "cvc", "tan"),
    ),
    *KEYS,
)
"""Secrets with a form of their own, and those that their neighbours give away."""

SHORTEST_RANDOM_WORD = 16

RANDOM_WORDS: tuple[Rule, ...] = (
    Rule(re.compile(r"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40,}+"), _access_key),
    Rule(re.compile(rf"(?<![{_WORD}+=-])[{_WORD}+=-]{{16,}}+"), _random_word),
)
"""Long words that nobody would write by hand."""


def without_secrets(text: str) -> str:
    """Return ``text`` with marks where secrets were."""
    text = applied(SECRETS, text)
    longest = max(map(len, text.split()), default=0)
    return text if longest < SHORTEST_RANDOM_WORD else applied(RANDOM_WORDS, text)
