"""Escapes, full-width and invisible characters do not hide text from redaction."""

import pytest

from caseworker.platform.logs.redaction import normalize, redact_text
from tests.unit.platform.logs.examples import DISGUISED

PLAIN = (
    *("50% off 25%20 off", "100%25", "2000\u20132012: 5 \u2212 3", "\uff11\uff0b\uff11"),
    *("M\u00fcller & S\u00f6hne \u2013 3 \u00d7 4 = 12", "caf\u00e9 cafe\u0301", "a &amp; b"),
    *(
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
        "\u65e5\u672c\u306e\u9996\u90fd",
    ),
    *(r"C:\users\x41\notes", r"\u00e9t\u00e9", "\u0664\u0669 + \u0661", "1\u202f000\u202f000"),
)


@pytest.mark.req("002/19.2", "002/19.3")
@pytest.mark.parametrize(("text", "core"), DISGUISED.values(), ids=DISGUISED.keys())
@pytest.mark.parametrize(("before", "after"), [("before ", " after"), ("(", ")"), ("", "")])
def test_a_secret_is_found_in_the_normalized_text(
    text: str, core: str, before: str, after: str
) -> None:
    """A secret is found in the normalized text, and that text is shown."""
    shown = redact_text(before + text + after)

    assert core not in shown
    assert "[" in shown
    assert redact_text(shown) == shown


@pytest.mark.req("002/19.5")
@pytest.mark.parametrize("text", PLAIN)
def test_a_text_that_hides_nothing_is_shown_as_it_was_written(text: str) -> None:
    """The normalized form is only searched; escapes, dashes and alphabets stay."""
    assert redact_text(text) == text


def test_an_escape_that_makes_no_character_stays() -> None:
    """A lone surrogate could not be stored."""
    assert normalize(r"\ud83d \u0041") == r"\ud83d A"
    assert "\x00" not in redact_text(r"\u0000 ada@example.org")
