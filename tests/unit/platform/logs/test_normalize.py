"""Escapes, full-width and invisible characters do not hide text from redaction."""

import pytest

from caseworker.platform.logs.redaction import normalize, redact_text

DISGUISED = {
    "a key with a letter that cannot be seen": ("sk-proj-abcd\u200bEFGH12345678", "EFGH1234"),
    "a key with a soft hyphen": ("sk-proj-abcd\u00adEFGH12345678", "EFGH1234"),
    "a key in wide letters": ("\uff53\uff4b-proj-abcdEFGH12345678", "EFGH1234"),
    "a key with other dashes": ("sk\u2011proj\u2011abcdEFGH12345678", "EFGH1234"),
    "a password behind a wide word": (
        "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1a hunter2",
        "hunter2",
    ),
    "a password behind a torn word": ("pass\u200bword: hunter2", "hunter2"),
    "a password behind an escaped letter": (r'{"pass\u0077ord": "hunter2"}', "hunter2"),
    "a password in a URL inside a URL": ("u=https%3A%2F%2Fada%3Ahunter2%40example.org", "hunter2"),
    "a setting in a URL": ("password%22%3A%22hunter2", "hunter2"),
    "a bearer token in a URL": ("Authorization%3A%20Bearer%20abcdEFGH12345", "abcdEFGH"),
    "a private key in a URL": (
        "-----BEGIN%20PRIVATE%20KEY-----%0AMIIEow%0A-----END%20PRIVATE%20KEY-----",
        "MIIEow",
    ),
    "an address with a letter that cannot be seen": ("ad\u200ba@exam\u200bple.org", "ple.org"),
    "an address that is turned around": ("ada\u202e@example.org", "ada"),
    "an address with a wide at sign": ("ada\uff20example.org", "example"),
    "an address in a URL in a URL": ("ada%2540example.org", "example"),
    "a setting in a URL in a URL": ("password%253Dhunter2", "hunter2"),
    "an address in HTML in HTML": ("ada&amp;#64;example.org", "example"),
    "an address in HTML": ("ada&#64;example.org", "example"),
    "an address in JSON": (r"ada\u0040example.org", "example"),
    "a card with gaps that cannot be seen": ("4111\u200b1111\u200b1111\u200b1111", "1111"),
    "a card with narrow gaps": ("4111\u202f1111\u202f1111\u202f1111", "1111"),
    "a card in a URL": ("4111%201111%201111%201111", "1111"),
    "an account with gaps in a URL": ("DE89%203704%200044%200532%200130%2000", "0532"),
    "an account in wide letters": ("\uff24\uff2589370400440532013000", "370400"),
    "a number with a plus sign in a URL": ("%2B4915112345678", "15112345"),
    "a social security number with other dashes": ("219\u201309\u20139998", "9998"),
}

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
