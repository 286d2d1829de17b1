"""Redaction rules for secrets: keys of known issuers, credentials, and values with secret names."""

import re

from caseworker.platform.logs.rules import SECRET, Rule, rule

_W = r"A-Za-z0-9_"
_NEW = r"(?!\[secret\])"
"""Skip values that are already redacted."""

_PREFIXES = (
    *("sk", "pk", "rk", "xox[a-z]", "xapp", "gh[opusr]", "github_pat", "glpat", "GOCSPX", "xai"),
    *("hf", "gsk", "npm", "pypi", "whsec", "shp[a-z]{2}", "dop_v1", "r8", "tvly", "lsv2", "pplx"),
    *("nvapi", "glsa", "sq0[a-z]{3}", "sntry[su]", "lin_api", "dckr_pat", "AGE-SECRET-KEY"),
)
"""Key prefixes, up to the first dash or underscore: OpenAI, Anthropic, Stripe, Slack, GitHub,
GitLab, Google, xAI, Hugging Face, Groq, npm, PyPI, Shopify, DigitalOcean and more."""


def _issued_key(match: re.Match[str]) -> str:
    """Redact keys, but not identifiers in code, which have neither digits nor long parts."""
    rest = match.group(1)
    is_key = any(map(str.isdecimal, rest)) or max(map(len, re.split("[-_]", rest))) >= 20
    return SECRET if is_key else match.group()


def _web_token(match: re.Match[str]) -> str:
    """Redact a JSON Web Token (RFC 7519) within a word."""
    word = match.group()
    begin = word.find("eyJ")
    return word if begin < 0 or "." not in word[begin + 8 : -1] else word[:begin] + SECRET


KEYS: tuple[Rule, ...] = (
    rule(
        rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXES)})[-_]([{_W}-]{{10,}}+)",
        _issued_key,
        shape=r"[-_][a-z0-9_-]{10}",
    ),
    rule(
        rf"cw[ar]_[{_W}-]++(?:=|%3D){{0,2}}\.[{_W}-]{{16,}}+"  # of a step; the run is in base64
        rf"|(?:sk-(?:proj|ant|svcacct|or)-|gh[opusr]_|github_pat_|cw[akr]_)[{_W}-]{{16,}}+",
        SECRET,
        *("sk-proj-", "sk-ant-", "sk-svcacct-", "sk-or-", "github_pat_"),
        *("cwk_", "cwa_", "cwr_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    ),
    rule(
        r"(?<![A-Z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}+"  # AWS
        rf"|(?<![A-Za-z0-9])(?:AIza[{_W}-]{{20,}}+|ya29\.[{_W}-]{{10,}}+"  # Google
        rf"|SG\.[{_W}-]{{10,80}}\.[{_W}-]{{10,}}+|hv[sb]\.[{_W}-]{{10,}}+)"  # SendGrid, Vault
        rf"|(?<!\d)\d{{8,10}}:AA[{_W}-]{{30,}}+"  # Telegram
        r"|IQoJb3JpZ2lu[A-Za-z0-9+/=]{10,}+",  # session tokens of AWS
        SECRET,
        *("akia", "asia", "abia", "acca", "aiza", "ya29.", "sg.", "hvs.", "hvb.", ":aa"),
        "iqojb3jpz2lu",
    ),
    rule(  # Slack, Discord, Teams
        r"((?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks"
        r"|webhook\.office\.com/webhookb2)/)[A-Za-z0-9_@/-]{10,}+",
        rf"\1{SECRET}",
        *("hooks.slack", "/api/webhooks", "webhookb2"),
    ),
    rule(rf"(?<![{_W}.-])[{_W}.-]{{20,}}+", _web_token, "eyj"),
)
"""Rules for API keys with an issuer-specific format."""


def _mixed(match: re.Match[str]) -> str | None:
    """Redact a word next to a word such as "password" only if it mixes letters and digits."""
    before, word = match.groups()
    is_mixed = any(map(str.isdecimal, word)) and any(map(str.isalpha, word))
    return before + SECRET if is_mixed else None


_ID = re.compile(r"[0-9a-f]{32,128}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_NAME_PART = re.compile(r"[a-z]{0,12}|[0-9]{1,8}|[0-9a-f]{1,8}")


def _random_word(match: re.Match[str]) -> str | None:
    """Redact long random words; keep digests, UUIDs and names such as ``plot-7-1a2b``."""
    word = match.group()
    if "/" in word and (len(word) != 40 or word.startswith("/")):
        return None  # a path; secret access keys of AWS have 40 characters
    digits = sum(map(str.isdecimal, word))
    has_both_cases = word.lower() != word != word.upper()
    is_mixed = digits >= (1 if has_both_cases else 4) and sum(map(str.isalpha, word)) >= 4
    parts = re.split("[-_]", word)
    is_name = len(parts) > 2 and all(_NAME_PART.fullmatch(part) is not None for part in parts)
    return SECRET if is_mixed and not is_name and not _ID.fullmatch(word) else word


_PASSWORDS = (
    r"passw(?:or)?[dt]|passwd|passphrase|passcode|pwd|kennwort|mot de passe|contrase[n\u00f1]a"
    r"|senha|\bmdp|\u043f\u0430\u0440\u043e\u043b\u044c|\u5bc6\u7801|\u5bc6\u78bc"
    r"|\u30d1\u30b9\u30ef\u30fc\u30c9|\ube44\ubc00\ubc88\ud638"
)
"""Includes Russian, Chinese, Japanese and Korean words."""
_PASSWORD_HINTS = (
    *("pass", "pwd", "kennwort", "contrase", "senha", "mdp", "\u043f\u0430\u0440\u043e\u043b"),
    *("\u5bc6\u7801", "\u5bc6\u78bc", "\u30d1\u30b9\u30ef\u30fc\u30c9", "\ube44\ubc00\ubc88\ud638"),
)
_NAMES = (
    rf"{_PASSWORDS}|secret|(?:api|access|private|account|signing)[ _-]?key|credentials?|token|auth"
    r"|authorization|cookie|session[ _-]?id"
)
_HINTS = (*_PASSWORD_HINTS, "secret", "key", "credential", "token", "auth", "cookie", "session")
_SHORT_NAMES = r"pass|pw|sid|session|pin|otp|cv[vc]2?"
_HEADERS = r"(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{0,20}(?:key|token|secret)"
_IS = (
    r"(?:(?:[\\\"'\])]{0,3}\s{0,3}[:=]{1,2}>?|[\"'],)\s{0,8}"
    r"(?:[|>][+-]?\s{1,40})?(?:b(?=[\"']))?\\?|>\s{0,8}(?=[^<>]{1,300}</))"
)
"""Separators between a name and its value in code, JSON, YAML, XML and lists of pairs."""
_ON = r"[,;&](?=[^\s,;&=:\"'{}\[\]]{1,40}(?:[\s,;&\"'{}\[\]]|$))"
"""A separator that is part of the value because no other name follows it."""
_VALUE = (
    rf"{_NEW}(?:(?:\"\"\"|\")(?:\\.|[^\"\\\n]){{1,500}}+(?:\"|$)|'(?:\\.|[^'\\\n]){{1,500}}+(?:'|$)"
    rf"|(?:\\(?![\"'])|{_ON}|<(?!/)|[^\s\"',;&}}\]\\<]){{1,500}})"
)

CREDENTIALS: tuple[Rule, ...] = (
    rule(
        r"(?is)-----BEGIN[ +][A-Z0-9 +]{0,40}PRIVATE[ +]KEY[A-Z +]{0,20}-----"
        r".*?(?:-----END[A-Z0-9 ]{0,60}-----|\Z)",
        "[private key]",
        *("private key", "private+key"),
    ),
    rule(
        r"(\bPrivate-Lines: ?\d{1,3})(?:\s{1,2}[A-Za-z0-9+/=]{1,64}){1,200}",
        r"\1 [private key]",
        "private-lines",
    ),
    rule(  # a user and a password in a URL; the password may contain a slash
        r"(?<=://)(?:[^\s/?#]{1,300}|[^\s:/?#@]{0,60}+:(?!\d{1,5}[/?#])[^\s\"'<>@]{1,60}+)"
        r"@(?=[\w\[])",
        f"{SECRET}@",
        "://",
    ),
    rule(  # the same without a scheme, except email addresses
        r"(?<![\w.@/+-])(?!mailto:|sips?:|xmpp:)([A-Za-z][\w.+-]{0,60}+:)"
        rf"{_NEW}(?![\w.%+-]{{1,60}}@[^\W\d_][\w.-])[^\s:/@\"'<>]{{1,60}}+(?=@[\w\[])",
        rf"\1{SECRET}",
        "@",
    ),
    rule(
        rf"(?i)\b((?:{_HEADERS})\\?[\"']?\s{{0,2}}:\s{{0,2}}(?:b(?=['\"]))?\\?[\"']?)"
        rf"{_NEW}[^\s\"'\\][^\r\n\"'\\]{{0,3000}}",
        rf"\1{SECRET}",
        *("authorization", "cookie", "x-"),
    ),
    rule(  # an ordinary word after it is kept
        rf"(?i)(\b(?:bearer|basic|digest|apikey|token|flyv1):?[\s+]{{1,4}}[\"']?){_NEW}"
        r"(?-i:(?![A-Za-z][a-z]{7,18}(?![A-Za-z0-9._~+/=-])))[A-Za-z0-9._~+/=-]{8,3000}+",
        rf"\1{SECRET}",
        *("bearer", "basic", "digest", "apikey", "token", "flyv1"),
    ),
    rule(rf"(?i)((?:{_NAMES}|{_HEADERS}){_IS}){_VALUE}", rf"\1{SECRET}", *_HINTS, "x-"),
    rule(
        rf"(?i)((?<![A-Za-z])(?:{_SHORT_NAMES})(?:\\?[\"']\s{{0,2}}[:=]\s{{0,2}}\\?|=)"
        r"|(?<=[A-Za-z0-9][_-])(?:pass|pw):\s{0,2}"
        r"|\b(?:pin|otp|cv[vc]2?)(?: code)?(?: is| was)?[:=#]?\s{1,2}(?=\d{3,8}\b(?![.,:]\d)))"
        rf"{_VALUE}",
        rf"\1{SECRET}",
        shape=rf"(?:{_SHORT_NAMES})(?:\\?[\"']|\s?[:=#\d]| code| is| was)",
    ),
    rule(
        rf"(?i)((?:(?:{_PASSWORDS}|\btoken|\bsecret|\bapi[ _-]?key)(?: is| was| lautet| ist|\s?->)?"
        r"[\s(\[]{1,3}|\b(?:pass|pw)\s=\s?)[\"']?)"
        rf"{_NEW}([^\s\"'()\[\]]{{6,300}}+)",
        _mixed,
        *(*_PASSWORD_HINTS, "token", "secret", "api key", "api_key", "api-key", "apikey", "pw ="),
    ),
    rule(
        r"(?i)(?<![^\s\"'(\[])()([^\s\"'()\[\]]{6,100}+)"
        r"(?= is (?:the|my|our|your) pass(?:word|phrase|code))",
        _mixed,
        *("is the pass", "is my pass", "is our pass", "is your pass"),
    ),
    rule(
        r"((?<!\w)--?(?:password|passwd|pass|token|secret|api-?key)[ ]{1,3}[\"']?"
        rf"|(?<!\w)(?:-u|--user)[ =]?[\"']?[^\s:\"']{{1,100}}:){_NEW}(?!-)[^\s\"']{{1,300}}+",
        rf"\1{SECRET}",
        *("-pass", "-token", "-secret", "-api", "-u"),
    ),
    rule(
        r"(?i)([?&](?:key|code|sid|jwt|ticket|sig|signature|hmac|x-amz-signature)=)"
        rf"{_NEW}([^\s&#\"'<>]{{6,500}}+)",
        _mixed,
        *("?", "&"),
    ),
    *KEYS,
    rule(
        rf"(?<![{_W}+=/-])[{_W}+=-]{{32,}}+(?!/)|(?<![A-Za-z0-9/+])[A-Za-z0-9/+]{{40,}}+",
        _random_word,
        shape=r"(?=[a-z_+=/-]{0,31}+\d)[a-z0-9_+=/-]{32}",
    ),
)
"""Rules for secrets in a recognizable format, and for values that follow a secret's name."""
