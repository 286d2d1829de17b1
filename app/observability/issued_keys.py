"""Finds keys by the form that those who issue them give to theirs."""

import re

from app.observability.rules import SECRET, Rule, Shape, marked, shaped

_WORD = r"A-Za-z0-9_"


def _key(found: re.Match[str]) -> str | None:
    """Judge what begins as keys do: names in programs may, but have no digits and short parts."""
    rest = found.group(1)
    told = any(character.isdecimal() for character in rest)
    return SECRET if told or max(map(len, re.split("[-_]", rest))) >= 20 else None


def _noted(found: re.Match[str]) -> str | None:
    """Judge what begins as names do: keys have digits and letters of both cases."""
    rest = found.group(1)
    mixed = any(map(str.isdecimal, rest)) and rest.lower() != rest != rest.upper()
    return SECRET if mixed else None


def _web_token(found: re.Match[str]) -> str | None:
    """Judge a run of characters that a JSON Web Token (RFC 7519) may stand in."""
    run = found.group()
    begin = run.find("eyJ")
    return None if begin < 0 or "." not in run[begin + 8 : -1] else run[:begin] + SECRET


def _rule(pattern: str, *hints: str, shape: Shape | None = None) -> Rule:
    return Rule(re.compile(pattern), marked(SECRET), hints, shape=shape)


_PREFIXES = (
    *("sk", "pk", "rk", "xox[a-z]", "xapp", "xai", "gh[opusr]", "github_pat", "glpat", "hf", "gsk"),
    *("npm", "pypi", "dop_v1", "shp[a-z]{2}", "whsec", "r8", "tvly", "lsv2", "pplx", "ntn", "figd"),
    *("sq0[a-z]{3}", "sntry[su]", "glsa", "lin_api", "sbp", "tskey", "dckr_pat", "nvapi"),
    *("GOCSPX", "NRAK", "PMAK", "AGE-SECRET-KEY"),
)
"""What stands before the first dash or underscore of a key."""

_LOWER = r"[a-z0-9_-]"

KEYS: tuple[Rule, ...] = (
    Rule(
        re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXES)})[-_]([{_WORD}-]{{10,}}+)"),
        _key,
        whole=True,
        shape=shaped(rf"[-_]{_LOWER}{{10}}"),
    ),
    Rule(
        re.compile(r"(?<![A-Za-z0-9])(?:secret_|s\.)([A-Za-z0-9]{20,}+)"),
        _noted,
        shape=shaped(r"(?:secret_|s\.)[a-z0-9]{20}"),
    ),
    _rule(
        rf"(?:sk-(?:proj|ant|svcacct|or)-|gh[opusr]_|github_pat_)[{_WORD}-]{{16,}}+",
        *("sk-proj-", "sk-ant-", "sk-svcacct-", "sk-or-", "github_pat_"),
        *("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    ),
    _rule(
        r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}+"
        r"|(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        *("akia", "asia", "abia", "acca"),
        shape=shaped(r"a[ksbc][ic]a[a-z0-9]{12}"),
    ),
    _rule(rf"(?<![A-Za-z0-9])AIza[{_WORD}-]{{20,}}+", "aiza"),
    _rule(rf"(?<![A-Za-z0-9])ya29\.[{_WORD}-]{{10,}}+", "ya29."),
    _rule(
        rf"(?<![A-Za-z0-9])(?:SG\.[{_WORD}-]{{10,80}}\.|hv[sb]\.|dp\.[a-z]{{2,4}}\.)[{_WORD}-]{{10,}}+",
        *("sg.", "hvs.", "hvb.", "dp."),
    ),
    _rule(
        r"(?<![A-Za-z0-9])pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
        "pat",
        shape=shaped(r"pat[a-z0-9]{14}\."),
    ),
    _rule(rf"(?<!\d)\d{{8,10}}:AA[{_WORD}-]{{30,}}+", ":aa"),
    _rule(r"(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{10,}+", "hooks.slack.com"),
    _rule(
        rf"(?<![{_WORD}-])[MNO][A-Za-z0-9]{{22,27}}\.[{_WORD}-]{{6,7}}\.[{_WORD}-]{{27,40}}"
        rf"(?![{_WORD}-])",
        shape=shaped(rf"\.{_LOWER}{{6,7}}\.{_LOWER}{{27}}"),
    ),
    Rule(re.compile(rf"(?<![{_WORD}.-])[{_WORD}.-]{{20,}}+"), _web_token, ("eyj",)),
)
"""What has the form that its issuer gives to keys."""
