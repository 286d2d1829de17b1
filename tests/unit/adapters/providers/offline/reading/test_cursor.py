"""Moving through a question."""

import pytest

from app.adapters.providers.offline.reading.words.cursor import (
    AmbiguousError,
    Cursor,
    MisreadError,
    Phrases,
    new_cursor,
)


def test_the_longest_phrase_is_read() -> None:
    """Whatever the order of the entries."""
    phrases = Phrases({"to": 1, "to the power (of|)": 2, "(is|are|) raised to": 3})

    def read(text: str) -> tuple[int | None, str]:
        cursor = new_cursor(text)
        return phrases.read(cursor), cursor.here.text

    assert read("to 5") == (1, "5")
    assert read("to the power 5") == (2, "5")
    assert read("to the power of 5") == (2, "5")
    assert read("are raised to 5") == (3, "5")
    assert read("raised 5") == (None, "raised")


def test_a_rule_that_does_not_fit_leaves_the_place_as_it_was() -> None:
    """But the farthest token that was reached is remembered for the message."""
    cursor = new_cursor("one two four")

    def rule(at: Cursor) -> bool:
        at.expect("one")
        at.expect("two")
        at.expect("three")
        return True

    assert cursor.attempt(rule) is None
    assert cursor.here.text == "one"
    assert cursor.token(cursor.farthest).text == "four"


def test_what_is_ambiguous_is_not_papered_over_by_another_rule() -> None:
    """The first reason stands."""
    cursor = new_cursor("one two")

    def rule(at: Cursor) -> bool:
        raise at.ambiguous("two meanings")

    with pytest.raises(AmbiguousError, match="two meanings"):
        cursor.first_of(rule, lambda _: True)
    with pytest.raises(AmbiguousError):
        raise cursor.ambiguous("another reason")
    assert cursor.reason == "two meanings"


def test_the_end_is_never_passed() -> None:
    """Looking and taking beyond it find it again."""
    cursor = new_cursor("one")
    cursor.take()

    assert cursor.take() is cursor.take() is cursor.ahead(5)
    with pytest.raises(MisreadError):
        cursor.expect("one")
