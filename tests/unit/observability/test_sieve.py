"""Redaction leaves out rules that cannot find anything; that must never change what it shows."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.observability import personal_data, secrets
from app.observability.rules import Rule, RulesBetween, Sieve, marked, shaped
from tests.unit.observability.test_disguises import DISGUISED
from tests.unit.observability.test_personal_data import HARMLESS, PERSONAL
from tests.unit.observability.test_redaction import FRAGMENTS
from tests.unit.observability.test_secrets import SECRETS

RULES: tuple[Rule | RulesBetween, ...] = (
    *secrets.SECRETS,
    *secrets.RANDOM_WORDS,
    *personal_data.PERSONAL_DATA,
)
EVERY = Sieve(RULES)
MARK = re.compile(r"\[[a-z ]+\]+")

SAMPLES = (
    *(text for table in (SECRETS, PERSONAL, DISGUISED) for text, _ in table.values()),
    *HARMLESS,
)


def thorough(text: str) -> str:
    """Return a text after all rules, none of which is left out."""
    for rule in RULES:
        text = unhurried(rule).applied(text, "")
    return text


def settled(apply: Callable[[str], str], text: str) -> str:
    """Return a text once nothing more is found, whatever the marks in it are called.

    A mark may tell of what follows it, and so of another mark.
    """
    while (after := apply(text)) != text:
        text = after
    return MARK.sub("[...]", text)


def unhurried(rule: Rule | RulesBetween) -> Rule | RulesBetween:
    """Return a rule that looks at every text."""
    if isinstance(rule, Rule):
        return replace(rule, hints=(), shape=None)
    return replace(rule, rules=tuple(replace(each, hints=()) for each in rule.rules))


@pytest.mark.req("002/19.3")
@pytest.mark.parametrize("text", SAMPLES)
def test_no_rule_is_left_out_that_finds_something(text: str) -> None:
    """Hints and shapes are there wherever a rule matches, in capitals too."""
    for written in (text, f"so {text}, it was", text.upper()):
        assert EVERY.applied(written) == thorough(written)


@pytest.mark.req("002/19.3")
@given(st.lists(FRAGMENTS | st.text(max_size=3), max_size=8))
@example(["Bearer abcdefgh1", "name: Ada"])
@example(["Bearer abcdefgh1", ":", "ada@example.org"])
def test_no_rule_is_left_out_of_any_text(fragments: list[str]) -> None:
    """Whatever stands beside whatever."""
    text = "".join(fragments)

    assert settled(EVERY.applied, text) == settled(thorough, text)


class Awaited:
    """A pattern that tells which texts it was searched for in."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def search(self, string: str, pos: int = 0, /) -> None:
        self.texts.append(string[pos:])


def test_a_rule_is_tried_only_where_its_hint_or_its_shape_is() -> None:
    """One without either is tried always; one with both, where both are."""
    hinted, formed, both, bare = (Awaited() for _ in range(4))
    judge = marked("[x]")
    sieve = Sieve(
        (
            Rule(hinted, judge, ("key", "pin")),
            Rule(formed, judge, shape=shaped(r"\d\d")),
            Rule(both, judge, ("pin",), shape=shaped(r"pin \d")),
            Rule(bare, judge),
        )
    )

    for text in ("nothing", "my KEY", "PIN 1", "pin 12", "12"):
        assert sieve.applied(text) == text

    assert hinted.texts == ["my KEY", "PIN 1", "pin 12"]
    assert formed.texts == ["pin 12", "12"]
    assert both.texts == ["PIN 1", "pin 12"]
    assert bare.texts == ["nothing", "my KEY", "PIN 1", "pin 12", "12"]
