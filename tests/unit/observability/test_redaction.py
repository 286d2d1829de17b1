"""What may be shown and what may not (seed 002, requirement 19)."""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.observability.card_numbers import is_card_number
from app.observability.redaction import redact_text, redact_value

SECRETS = {
    "an email address": "ada.lovelace+test@mail.example.org",
    "a bearer token": "Bearer abc.def-ghi_jkl",
    "a key of a model provider": "sk-proj-abcdEFGH12345678",
    "a key of a code host": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "a cloud access key": "AKIAIOSFODNN7EXAMPLE",
    "a web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "a card number": "4111 1111 1111 1111",
    "a card number with dashes": "5500-0000-0000-0004",
    "a card number without spaces": "378282246310005",
    "a password in a URL": "postgresql://app:hunter2@db.example.org/x",
    "a password in a setting": 'password = "hunter2"',
    "a key in a query": "https://example.org/?api_key=hunter2",
    "a token in JSON": '{"access_token": "hunter2"}',
    "a long random word": "dGhpcyBpcyBhIHNlY3JldCBrZXkgMTIzNDU2Nzg5MA",
    "a private key": "-----BEGIN PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END PRIVATE KEY-----",
}

HARMLESS = [
    "What is 12.5% of 3,482,190.75?",
    "Monday, September 8, 2025 at 14:30:00+02:00",
    "0190a3c4-7b1e-7c3d-9f00-5a8b6c7d8e9f",
    "app.adapters.postgres.embedded.server",
    "/usr/lib/python3.11/site-packages/sqlalchemy/engine/default.py",
    "numeric_analysis_of_closing_prices_v2",
    "1700000000000",
    "tokens_in=812 tokens_out=64",
    "4111 1111 1111 1112",
]


@pytest.mark.req("002/19.2", "002/19.3")
@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
def test_a_secret_is_taken_out_of_a_text(secret: str) -> None:
    """The words around it stay, the secret goes, whatever key it is logged under."""
    shown = redact_value({"detail": [f"before {secret} after"]})["detail"][0]

    assert shown.startswith("before ")
    assert shown.endswith(" after")
    for part in (secret, "hunter2", "MIIEow", "1111 1111", "lovelace"):
        assert part not in shown


@pytest.mark.req("002/19.5")
@pytest.mark.parametrize("text", HARMLESS)
def test_an_ordinary_text_stays_as_it_is(text: str) -> None:
    """A log that hides everything helps nobody."""
    assert redact_text(text) == text


@pytest.mark.req("002/19.2")
@pytest.mark.parametrize(
    "name",
    ["password", "api_key", "X-Api-Key", "Authorization", "cookie", "client_secret", "gold_answer"],
)
def test_a_value_whose_name_says_secret_never_passes(name: str) -> None:
    """Not even a short or nested one that looks like nothing."""
    assert redact_value({"request": {name: {"value": "42"}}}) == {"request": {name: "[secret]"}}


@pytest.mark.req("002/19.2")
def test_names_on_the_allowlist_pass() -> None:
    """Identifiers that the service makes are what a log is read by."""
    line = {"run_id": "0123456789abcdefABCDEF0123456789", "tier": "small", "decision": "escalate"}

    assert redact_value(line) == line


def test_the_allowlist_is_for_identifiers_only() -> None:
    """A text that is too long or not printable is no identifier, whatever its name."""
    assert redact_value({"kind": "ada@example.org\n"}) == {"kind": "[email]\n"}
    assert "ada@example.org" not in redact_value({"kind": "x" * 300 + " ada@example.org"})["kind"]


def test_usage_counters_are_not_mistaken_for_tokens() -> None:
    """``tokens`` are counted, a ``token`` is kept."""
    counters = {"max_tokens": 100, "tokens_in": 812, "token_usage": {"input": 812}}

    assert redact_value(counters) == counters
    assert redact_value({"access_token": "abc", "token": "abc"}) == {
        "access_token": "[secret]",
        "token": "[secret]",
    }


def test_a_cut_never_tears_a_secret_apart() -> None:
    """Half an address is an address to whoever reads it."""
    text = "a " * 995 + "ada.lovelace@mail.example.org and more" * 20

    shown = redact_text(text)

    assert "lovelace" not in shown
    assert shown.endswith(f"[{len(text) - 2000} more characters]")
    assert "ada" not in redact_text("x" * 1990 + "ada.lovelace@mail.example.org" + "y" * 500)[1995:]


def test_a_card_number_that_is_a_number_is_hidden_too() -> None:
    """JSON callers send digits without quotes."""
    assert redact_value({"n": 4111111111111111, "m": 17}) == {"n": "[card number]", "m": 17}


def test_every_kind_of_value_becomes_json() -> None:
    """What is no JSON value is shown as text, bytes by their length, cycles to a depth."""

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


def test_control_characters_cannot_steer_a_terminal() -> None:
    """An escape sequence in a log line is shown, not obeyed."""
    assert "\x1b" not in redact_text("\x1b[2Jgone")


@pytest.mark.parametrize(
    "text",
    [
        *("eyJ-" * 500, "a" * 2000, "4 " * 1000, "a_token=" * 250, "bearer " * 285, "x@" * 1000),
        *("a.b@c." * 300, "=" * 2000, "-----BEGIN PRIVATE KEY-----" * 70, "://" * 600),
    ],
)
def test_hostile_text_costs_little(text: str) -> None:
    """No pattern goes back and forth over a text that was made to hurt it."""
    started = time.process_time()
    redact_text(text)
    assert time.process_time() - started < 0.1


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=20))
def test_redaction_never_fails_and_never_adds_its_own_meaning(value: Any) -> None:
    """Anything goes in, JSON comes out, and doing it again changes nothing."""
    once = redact_value(value)

    json.dumps(once, allow_nan=False)
    assert redact_value(once) == once


@pytest.mark.parametrize(
    ("digits", "valid"),
    [("4111111111111111", True), ("4111111111111112", False), ("6011 0009 9013 9424", True)],
)
def test_the_check_digit_tells_card_numbers(digits: str, valid: bool) -> None:
    """Luhn: every second digit from the right counts twice."""
    assert is_card_number(digits) is valid
