"""Personal data with a recognisable format, and numbers that identify no person."""

import random
import string
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.logs.redaction import redact_text
from tests.support.canaries import account_number, card_number

PERSONAL = {
    "an email address": ("ada.lovelace+test@mail.example.org", "[email]"),
    "an email address in a query": ("q=ada.lovelace%40example.org", "q=[email]"),
    "an address with an umlaut": ("j\u00fcrgen@b\u00fccher.example", "[email]"),
    "an address that was cut": ("ada.lovelace@mai...", "[email]..."),
    "a card number": ("4111 1111 1111 1111", "[card number]"),
    "a card number with dashes": ("5500-0000-0000-0004", "[card number]"),
    "a card number in one": ("378282246310005", "[card number]"),
    "a card number grouped its way": ("3782 822463 10005", "[card number]"),
    "a card number grouped like others": ("3782 8224 6310 005", "[card number]"),
    "a card number with wide gaps": ("4111  1111  1111  1111", "[card number]"),
    "a card number in columns": ("4111\t1111\t1111\t1111", "[card number]"),
    "a card number behind other digits": ("2024 4111 1111 1111 1111", "2024 [card number]"),
    "two card numbers": ("4111111111111111,5500000000000004", "[card number],[card number]"),
    "a card number in wide digits": (
        "\uff14" + "\uff11" * 15,
        "[card number]",
    ),
    "an account": ("GB82WEST12345698765432", "[account number]"),
    "an account in groups": ("GB82 WEST 1234 5698 7654 32 please", "[account number] please"),
    "an account in small letters": ("de89370400440532013000", "[account number]"),
    "an account with its name": ("IBANDE89370400440532013000", "IBAN[account number]"),
    "an account with wide gaps": ("DE89  3704  0044  0532  0130  00", "[account number]"),
    "one behind a word": ("id_219-09-9998", "id_[social security number]"),
    "a social security number": ("SSN 219-09-9998", "SSN [social security number]"),
    "a social security number without dashes": (
        "ssn 078051120",
        "ssn [social security number]",
    ),
    "a passport": ("passport no C01X00T47", "passport no [personal data]"),
    "a masked email address": ("john (at) example (dot) com", "[email]"),
    "an international number": ("+49 30 901820-12", "[phone number]"),
    "one with brackets": ("+44 (0)20 7946 0958", "[phone number]"),
    "one in one": ("+4915112345678", "[phone number]"),
    "one behind a digit": ("room 5 +1 415 555 2671", "room 5 [phone number]"),
    "one with zeros": ("0049 30 901820", "[phone number]"),
    "a number of the Americas": ("(415) 555-2671", "[phone number]"),
    "one with dots": ("415.555.2671", "[phone number]"),
    "one with a one": ("1-800-555-0199", "[phone number]"),
    "a number of abroad from the Americas": ("011 49 151 12345678", "[phone number]"),
    "a number with wide gaps": ("+49  151  12345678", "[phone number]"),
    "a number that is told": ("my number is 4155552671", "my number is [phone number]"),
    "a number with a label": ("call me at 555 0199", "call me at [phone number]"),
    "a number with a label in one": ("Tel.: 02079460958", "Tel.: [phone number]"),
    "an address of a machine": ("from 93.184.215.14:80", "from [ip address]:80"),
    "a long address of a machine": ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", "[ip address]"),
    "a machine behind a word": ("ip_93.184.215.14", "ip_[ip address]"),
}

HARMLESS = (
    "What is 12.5% of 3,482,190.75?",
    "the passport office is open at 9; who was born on 1990-06-16?",
    "meet (at) noon, or at 5 dot 30; mdpi.com: journals; 123456789 ssn_count",
    "is the password field required? The pass = 5 of 7, tokens -> words",
    "12 +345-678 * (4 - 15) / 7.25",
    "(2) +3456789012 - +1234567890.50",
    "1,234,567,890 + 4,111,111,111,111,111",
    "sum of 4 8 15 16 23 42 4 8 15 16 23 42",
    "415, 555, 2671 and 200 300 4000",
    "Monday, September 8, 2025 at 14:30:00+02:00",
    "2025-09-08T14:30:00.123456+02:00 to 2025-12-24 18:00",
    "08.09.2025, 09/08/2025, 08-09-2025 14:30",
    "2025-09-08 2025-09-15 2025-09-22",
    "1700000000000 1700000000000000 20250908143000",
    "4111 1111 1111 1112",
    "AAPL, MSFT, BRK.B rose $1,234.56 (+12.5 %) in 2012",
    "call option at 1500000, dial 7",
    "order 10012345678, invoice 2025/000123, ISBN 978-3-16-148410-0",
    "127.0.0.1, 10.0.0.7 and ::1 are machines of ours; 18.1 is a version",
    "be70ed8c-991b-599f-31c4-4244f71d8d51 b09dd44e-8e57-ee36-b095-666afb71e0ff",
    "1d7d4160-3976-3637-6665-5b97891561bc",
    "GB82 is no account, and neither is DE00 1234",
    "Dear Sir, Hello World! Hi all,",
    "How did Wall Street do in 2008?",
    "the name of the tool: calculator",
    "postgresql://db.example.org:5432/x",
    "0123456789 are the digits, 0755 is a mode, 0012 of 0034 orders",
    "reach 10000000 customers, contact 2 of 7",
    "How old is who was born on 1990-06-16, and who was born in 1990?",
    "12-345-6789 is a part, 256.1.1.1 is no address, v1.2.3 is a version",
    "DE 10 2024, AT 2024 US 2025",
    "a ratio of 16:9 and 4:3:2 at 12:34:56",
    "@decorator, a@b, graph@12 and calculator@1.2",
)


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
