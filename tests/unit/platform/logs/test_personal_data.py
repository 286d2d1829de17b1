"""Personal data with a recognisable format, and numbers that identify no person."""

import random
import string
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.logs.redaction import redact_text
from tests.support.canaries import account_number, card_number
from tests.unit.platform.logs.examples import HARMLESS, PERSONAL


@pytest.mark.req("002/19.2", "002/19.3")
@pytest.mark.parametrize(("text", "shown"), PERSONAL.values(), ids=PERSONAL.keys())
def test_personal_data_is_marked(text: str, shown: str) -> None:
    """A mark replaces the data; the words around it stay."""
    assert redact_text(text) == shown


@pytest.mark.req("002/19.5")
@pytest.mark.parametrize("text", HARMLESS)
def test_numbers_and_words_of_questions_stay(text: str) -> None:
    """The content of cases must be readable in a trace."""
    assert redact_text(text) == text


_LETTERS = string.ascii_letters + string.digits
_EMAILS = st.from_regex(
    r"[a-zA-Z0-9](?:[a-zA-Z0-9._%+-]{0,20}[a-zA-Z0-9])?@[a-zA-Z0-9]{1,20}(?:\.[a-z]{2,6}){1,3}",
    fullmatch=True,
)
_CARDS = st.builds(
    lambda seed, gap: gap.join(
        card_number(random.Random(seed))[start : start + 4] for start in (0, 4, 8, 12)
    ),
    st.integers(),
    st.sampled_from(["", " ", "-", ".", "\u00a0"]),
)
_ACCOUNTS = st.builds(
    lambda seed, gap: gap.join(
        account_number(random.Random(seed))[start : start + 4] for start in range(0, 22, 4)
    ),
    st.integers(),
    st.sampled_from(["", " "]),
)


@pytest.mark.req("002/19.3")
@given(st.text(), _EMAILS | _CARDS | _ACCOUNTS, st.text())
def test_no_address_card_or_account_survives_in_any_text(
    before: str, secret: str, after: str
) -> None:
    """The exception is data joined to more digits or letters."""
    joined = before[-1:].isalnum() or before[-1:] in "-.," or after[:1].isalnum()

    shown = redact_text(before + secret + after, max_chars=10_000)

    assert secret not in shown or (joined and "@" not in secret)


_NUMBERS = (
    st.integers(0, 10**12 - 1).map(str)
    | st.integers(0, 10**12).map(lambda number: f"{number:,}")
    | st.decimals(0, 10**9, places=2).map(str)
    | st.decimals(0, 10**9, places=2).map(lambda number: f"${number:,}")
    | st.integers(0, 100).map(lambda number: f"{number}%")
)
_SIGNS = st.sampled_from([" + ", " - ", " * ", " / ", "*", "/", "+", " ^ ", " +", ", ", " and "])


@pytest.mark.req("002/19.5")
@given(st.lists(st.tuples(_NUMBERS, _SIGNS), min_size=1, max_size=8), _NUMBERS)
def test_arithmetic_survives(terms: list[tuple[str, str]], last: str) -> None:
    """Numbers of up to twelve digits, amounts and percentages survive, with their operators.

    Only minus signs without spaces can make a sum look like a phone number: 415-555-2671.
    """
    question = "What is " + "".join(number + sign for number, sign in terms) + last + "?"

    assert redact_text(question) == question


@pytest.mark.req("002/19.5")
@given(st.dates(), st.datetimes(timezones=st.just(UTC)), st.uuids(), st.sampled_from(["AAPL", "F"]))
def test_dates_ids_and_symbols_survive(
    day: date, at: datetime, number: object, symbol: str
) -> None:
    """All formats that the service writes survive."""
    text = f"{symbol} from {day.isoformat()} {at.isoformat()} to {at} in run {number}, ({day})"

    assert redact_text(text) == text


@pytest.mark.req("002/19.5")
@pytest.mark.parametrize(
    "number",
    [
        *("4111111111111112", "1111111111111117", "411111111111116", "0.4111111111111111"),
        *("GB82 WEST 1234 5698 7654 33", "GB82 WEST 1234 5698 7654 3", "XX82 WEST 1234 5698 7654"),
        *("000-12-3456", "+999 123 456 789", "0151 12345678", "555 0199"),
    ],
)
def test_a_number_that_does_not_check_stays(number: str) -> None:
    """Cards and accounts need valid check digits, and phone numbers a valid numbering plan."""
    assert redact_text(f"It was {number}") == f"It was {number}"
