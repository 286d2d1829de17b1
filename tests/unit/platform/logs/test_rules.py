"""Redaction skips rules that cannot match; the result must not depend on that."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caseworker.platform.logs.personal_data import PERSONAL_DATA
from caseworker.platform.logs.redaction import RuleSet
from caseworker.platform.logs.rules import Rule
from caseworker.platform.logs.secrets import CREDENTIALS
from tests.unit.platform.logs.examples import DISGUISED, FRAGMENTS, HARMLESS, PERSONAL, SECRETS

RULES = (*CREDENTIALS, *PERSONAL_DATA)
CHOSEN = RuleSet(RULES)
UNCONDITIONAL = RuleSet([replace(rule, hints=(), shape=None) for rule in RULES])
MARK = re.compile(r"\[[a-z ]+\]+")

SAMPLES = (
    *(text for table in (SECRETS, PERSONAL, DISGUISED) for text, _ in table.values()),
    *HARMLESS,
)


def settled(apply: Callable[[str], str], text: str) -> str:
    """Apply rules until the text is stable, and return it with uniform marks.

    A mark may influence the text after it, and so another mark.
    """
    while (after := apply(text)) != text:
        text = after
    return MARK.sub("[...]", text)


@pytest.mark.req("002/19.3")
@pytest.mark.parametrize("text", SAMPLES)
def test_no_rule_is_left_out_that_finds_something(text: str) -> None:
    """The hint or shape of a rule is present wherever the rule matches, in capitals too."""
    for written in (text, f"so {text}, it was", text.upper()):
        assert CHOSEN.apply(written) == UNCONDITIONAL.apply(written)


@pytest.mark.req("002/19.3")
@given(st.lists(FRAGMENTS | st.text(max_size=3), max_size=8))
@example(["Bearer abcdefgh1", ":", "ada@example.org"])
@example(["Bearer abcdefgh1", ": ", "ada@example.org", "ada@example.org"])
def test_no_rule_is_left_out_of_any_text(fragments: list[str]) -> None:
    """Any combination of fragments gives the same result as with all rules."""
    text = "".join(fragments)

    assert settled(CHOSEN.apply, text) == settled(UNCONDITIONAL.apply, text)


class Recorder:
    """A pattern that records the texts it searches."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def search(self, string: str, pos: int = 0, /) -> None:
        self.texts.append(string[pos:])


def test_a_rule_is_tried_only_where_a_hint_or_its_shape_is() -> None:
    """A rule without conditions is always tried."""
    hinted, shaped, bare = (Recorder() for _ in range(3))
    rules = RuleSet(
        (
            Rule(cast("re.Pattern[str]", hinted), lambda _: "[x]", ("key", "pin")),
            Rule(cast("re.Pattern[str]", shaped), lambda _: "[x]", shape=re.compile(r"\d\d")),
            Rule(cast("re.Pattern[str]", bare), lambda _: "[x]"),
        )
    )

    for text in ("nothing", "my KEY", "PIN 1", "12"):
        assert rules.apply(text) == text

    assert hinted.texts == ["my KEY", "PIN 1"]
    assert shaped.texts == ["12"]
    assert bare.texts == ["nothing", "my KEY", "PIN 1", "12"]


def test_a_rejected_match_is_searched_again_inside() -> None:
    """The search resumes after a rejected match's first character, or after an accepted match."""
    pattern = re.compile("a+")
    inside = Rule(pattern, lambda found: "x" if len(found.group()) < 3 else None)
    whole = Rule(pattern, lambda found: "x" if len(found.group()) < 3 else found.group())

    assert (inside.apply("aaaa"), whole.apply("aaaa aa")) == ("aax", "aaaa x")


def test_a_text_is_read_again_a_bounded_number_of_times() -> None:
    """Overlapping candidates are replaced after too many rejected characters."""
    judged: list[str] = []
    rule = Rule(re.compile("a{1,500}"), lambda found: judged.append(found.group()))

    shown = rule.apply("a" * 5_000)

    assert sum(map(len, judged)) <= 9 * 5_000
    assert shown.endswith("[secret]")
