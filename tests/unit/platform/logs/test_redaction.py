"""Redaction of values of every kind, by name and by content."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.logs.redaction import MAX_TEXT_CHARS, SAFE_NAMES, redact_text, redact_value
from tests.unit.platform.logs.examples import FRAGMENTS


@pytest.mark.req("002/19.2", "002/19.3")
def test_what_a_text_holds_is_taken_out_wherever_the_text_stands() -> None:
    """Texts are redacted under any name, in lists, keys, numbers and other values."""
    given = {
        "detail": ["mail to ada@example.org", {"ada@example.org": Decimal(1)}],
        "when": datetime(2025, 9, 8, tzinfo=UTC),
        "n": [4111111111111111, 4111111111111111.0, 4111111111111112.0],
        "m": 17,
    }

    assert redact_value(given) == {
        "detail": ["mail to [email]", {"[email]": "1"}],
        "when": "2025-09-08 00:00:00+00:00",
        "n": ["[card number]", "[card number]", 4111111111111112.0],
        "m": 17,
    }


@pytest.mark.req("002/19.2")
@pytest.mark.parametrize(
    "name",
    [
        *("password", "api_key", "X-Api-Key", "Authorization", "cookie", "client_secret"),
        *("gold_answer", "cvv", "refreshToken", "private-key"),
        *("pass", "db_pass", "dbPass", "DB-PASS", "pw", "pwd", "sid", "session", "user_pw"),
    ],
)
def test_a_value_whose_name_says_secret_never_passes(name: str) -> None:
    """Short, nested and harmless-looking values are hidden too."""
    assert redact_value({"request": {name: {"value": "42"}}}) == {"request": {name: "[secret]"}}


@pytest.mark.req("002/19.2")
@pytest.mark.parametrize("name", ["email", "Phone-Number", "date_of_birth", "last name", "iban"])
def test_a_value_whose_name_says_whose_it_is_never_passes(name: str) -> None:
    """A birthday is recognised only by its name."""
    assert redact_value({name: "2000-01-01", "x": None}) == {name: "[personal data]", "x": None}


@pytest.mark.req("002/19.2")
def test_names_on_the_allowlist_pass() -> None:
    """Identifiers made by the service must be readable in logs."""
    line = {"run_id": "0123456789abcdefABCDEF0123456789", "tier": "small", "decision": "escalate"}

    for name, value in line.items():
        assert redact_value(value, name=name) == value


@pytest.mark.req("002/19.2")
@pytest.mark.parametrize("name", sorted(SAFE_NAMES))
def test_the_allowlist_is_not_for_names_that_others_give(name: str) -> None:
    """Arguments and results of tools may have any names."""
    assert redact_value({name: "ada@example.org"}, name="args") == {name: "[email]"}


@pytest.mark.req("002/19.2")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["X-Api-Key", "hunter2"], ["X-Api-Key", "[secret]"]),
        ([(b"authorization", b"hunter2")], [["[13 bytes]", "[secret]"]]),
        (
            {"name": "password", "value": "hunter2"},
            {"name": "password", "value": "[secret]"},
        ),
        ({"key": "email", "value": {"of": "Ada"}}, {"key": "email", "value": "[personal data]"}),
        ({"name": "price", "value": 42}, {"name": "price", "value": 42}),
        ({"k": "password", "v": "hunter2"}, {"k": "password", "v": "[secret]"}),
        ({"pwd1": "x", "pw_2": "x"}, {"pwd1": "[secret]", "pw_2": "[secret]"}),
        (["password", "email"], ["password", "[secret]"]),
        (["price", 42], ["price", 42]),
    ],
)
def test_a_name_beside_a_value_counts_like_one_above_it(value: Any, shown: Any) -> None:
    """Headers and variables are stored as pairs of name and value."""
    assert redact_value({"said": value}) == {"said": shown}


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        *((name, "[secret]") for name in ("github_token", "slackToken", "jwt", "dsn", "ssh.key")),
        *((name, "[secret]") for name in ("Kennwort", "pass\u200bword", "pass%77ord", "auth")),
        *((name, "[personal data]") for name in ("customer_email", "workPhone", "billing.email")),
        *((name, None) for name in ("tokens", "cost_per_token", "time_to_first_token", "key")),
        *((name, None) for name in ("signature", "author", "price", "keyword", "mailing", "")),
        *((name, None) for name in ("compass", "session_count", "sessions", "passed", "spin")),
    ],
)
def test_names_that_tell_are_known_in_every_form(name: str, mark: str | None) -> None:
    """Camel case, snake case, disguised names and compounds are recognised."""
    assert redact_value({name: 42}) == {name if mark is None else redact_text(name): mark or 42}


@pytest.mark.req("002/19.2")
def test_a_key_does_not_pass_under_any_name() -> None:
    """Callers choose run and request IDs and may paste a key there."""
    assert redact_value("sk-proj-abcdEFGH12345678", name="run_id") == "[secret]"


def test_the_allowlist_is_for_identifiers_only() -> None:
    """A text that is too long or not printable is not an identifier."""
    assert redact_value("ada@example.org\n", name="kind") == "[email]\n"
    assert "ada@example.org" not in redact_value("x" * 300 + " ada@example.org", name="kind")


def test_usage_counters_are_not_mistaken_for_tokens() -> None:
    """``tokens`` is a counter, ``token`` is a secret."""
    counters = {"max_tokens": 100, "tokens_in": 812, "token_usage": {"input": 812}}

    assert redact_value(counters) == counters
    assert redact_value({"access_token": "abc", "token": "abc"}) == {
        "access_token": "[secret]",
        "token": "[secret]",
    }


def test_a_cut_never_tears_a_secret_apart() -> None:
    """Half an email address still identifies a person."""
    text = "a " * 980 + "ada.lovelace@mail.example.org and more" * 20

    shown = redact_text(text)

    assert "lovelace" not in shown
    assert len(shown) <= MAX_TEXT_CHARS
    assert shown.endswith(f"[{len(text) - MAX_TEXT_CHARS} more characters]")
    torn = redact_text("x" * 1950 + "ada.lovelace@mail.example.org" + "y" * 500)
    assert "ada" not in torn


def test_marks_that_shorten_a_text_do_not_bring_a_torn_secret_into_sight() -> None:
    """Text that was read beyond the limit to find a whole secret is not shown."""
    key = f"-----BEGIN PRIVATE KEY-----\n{'A' * 900}\n-----END PRIVATE KEY-----"
    for shift in range(40):
        text = f"{key} {'x ' * 630}{'x' * shift} 4111 1111 1111 1111 {'y ' * 400}"
        assert "4111" not in redact_text(text)


@pytest.mark.parametrize("glue", ["", '","', "&", "\n"])
def test_a_text_without_spaces_is_cut_as_carefully(glue: str) -> None:
    """JSON and URLs without spaces are cut the same way."""
    for length in range(1900, 2001, 4):
        text = "x" * length + glue + "ada.king.countess.of.lovelace@mail.example.org" + "," * 900
        assert "countess" not in redact_text(text)


@pytest.mark.parametrize("length", [1990, 2000, 2001, 2010, 5000])
def test_no_text_is_longer_than_asked_for(length: int) -> None:
    """Marks do not make the text longer than the limit, and a second cut changes nothing."""
    shown = redact_text(("a@b.cd " * 1000)[:length])

    assert len(shown) <= MAX_TEXT_CHARS
    assert redact_text(shown) == shown


def test_every_kind_of_value_becomes_json() -> None:
    """Every value becomes JSON: objects become text, bytes their length, and cycles end."""

    @dataclass
    class Point:
        x: int
        secret: str

    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    odd = {
        "bytes": b"abc",
        "point": Point(1, "p"),
        "nan": float("nan"),
        "huge": 10**5000,
        "set": {1},
        "many": list(range(1000)),
        "error": ValueError("mail to ada@example.org"),
        "cycle": cycle,
        "surrogate": "\ud800",
        1: "integer key",
    }

    shown = redact_value(odd)

    json.dumps(shown, allow_nan=False)
    assert shown["bytes"] == "[3 bytes]"
    assert shown["point"] == {"x": 1, "secret": "[secret]"}
    assert shown["error"] == "mail to [email]"
    assert shown["many"][-1] == "[800 more items]"


@pytest.mark.req("002/19.5")
@pytest.mark.parametrize(
    "message",
    [
        "No function 'shout' is registered here.",
        "The name: None of the 3 tools answered within 30 s.",
        "Dear Smith Street 12 is no stock symbol.",
        "Step 'ask' has passed 2 of 3 tries; 1 token left of max_tokens=100.",
    ],
)
def test_messages_of_the_service_stay_as_they_are(message: str) -> None:
    """A word before a name does not cause redaction of the name."""
    assert redact_text(message) == message


def test_control_characters_cannot_steer_a_terminal() -> None:
    """An escape sequence in a log line is shown and not executed."""
    assert "\x1b" not in redact_text("\x1b[2Jgone")


@pytest.mark.req("002/19.3")
@given(st.lists(FRAGMENTS | st.text(max_size=3), max_size=12))
def test_what_was_redacted_once_stays_as_it_is(fragments: list[str]) -> None:
    """Logs are redacted again when written, and traces when shown."""
    once = redact_text("".join(fragments))

    assert redact_text(once) == once


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=20))
def test_redaction_never_fails_and_never_adds_its_own_meaning(value: Any) -> None:
    """Any input gives JSON, and a second redaction changes nothing."""
    once = redact_value(value)

    json.dumps(once, allow_nan=False)
    assert redact_value(once) == once
