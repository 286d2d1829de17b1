"""Redaction takes linear time for any text, measured in steps."""

import re
from dataclasses import replace
from typing import cast

import pytest

from caseworker.platform.logs import redaction, secret_mask
from caseworker.platform.logs.personal_data import PERSONAL_DATA
from caseworker.platform.logs.rules import Rule
from caseworker.platform.logs.secrets import CREDENTIALS
from tests.support.regex_steps import CountingPattern

RULES = (
    *CREDENTIALS,
    *PERSONAL_DATA,
    Rule(redaction._ESCAPED, lambda _: "x"),
    Rule(secret_mask._ESCAPE, lambda _: "x"),
)

FRAGMENTS = (
    *("a", "1", " ", "a@", "a.b@c.", "eyJ.", "sk-a-", "://a:b"),
    *("-----BEGIN PRIVATE KEY-----", "bearer a", "password is ", "token: '", "\\"),
    *("app:x!y@", "4 ", "123-45-", "+1 (2) ", "0 1", "tel: 1-", "GB82WEST", "1.1.1.1.", "::"),
    *("Mr Ada ", "1 Ada Street", "?a=b+", "&#64;", "\\u0041", "a\u0430", "<a:password"),
    *("seed phrase: abc ", "%25", "&amp;", "\\u00", "\\", "&#38;"),
)
MORE_FRAGMENTS = (
    *("A", "-", ".", ":", "x@y", "%40", "a%40b.", "eyJ", "eyJ-", "sk-", "ghp_", "://"),
    *("://a", "AKIA", "SG.a.", "-----END", "bearer ", "basic YTpi", "password="),
    *('password="', "token", "api key ", "authorization: ", "DB_PASS=", "pass: ", "a:b@"),
    *("pin ", "4111 ", "4111-", "411111 ", "1:AA", "+1", "+1 ", "+", "(", "00 1 ", "01 "),
    *("0151/", "(415) ", "415-", "call ", "call is ", "tel no 1 ", "fax: ((", "GB82"),
    *("GB82 ", "LC00 a", "1.1.", "a:", "ab:cd:", "Mr ", "Mr A. ", "Ada ", "1 Ada "),
    *("Dear Ada ", "name: Ada ", "Aweg", "?a=", "&a=%41", "%41", "\u0430-", "\u0430 b"),
    *("<password>", "password, ", "password (", "pass,a;b&c", "--password ", "-u a:"),
    *("Private-Lines: 1\nAB ", "date of birth: ", "a [at] b", '"a"@b.', "a@[1", "name:"),
    *("passport id: ", "account number 1", "hooks.slack.com/services/", "ab1C", "ab1C+/"),
)


def steps_of(rule: Rule, text: str) -> int:
    counting = CountingPattern(rule.pattern)
    replace(rule, pattern=cast("re.Pattern[str]", counting)).apply(text)
    return counting.steps


@pytest.mark.req("002/19.3")
@pytest.mark.guarantee(22)
@pytest.mark.parametrize(
    "fragment",
    [*FRAGMENTS, *(pytest.param(each, marks=pytest.mark.proof) for each in MORE_FRAGMENTS)],
)
def test_twice_the_text_takes_twice_the_steps(fragment: str) -> None:
    """Redaction takes a bounded number of steps per character, for every rule and repeated text."""
    short = fragment * max(2, 40 // len(fragment))
    long = 2 * short
    for rule in RULES:
        few, many = steps_of(rule, short), steps_of(rule, long)
        case = f"{fragment!r} {rule.pattern.pattern}"
        assert many <= 2.2 * few + 500, case
        assert many <= 60 * len(long), case


def test_the_counter_sees_a_pattern_that_is_not_linear() -> None:
    """A non-linear pattern must be detected, or the other test would prove nothing."""
    bad = Rule(re.compile(r"(?:a+)+b"), lambda _: "")

    assert steps_of(bad, "a" * 12) > 30 * steps_of(bad, "a" * 6)
