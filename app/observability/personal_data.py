"""Finds personal data in a text by its form.

Numbers that stand for people are told from other numbers by check digits, by the way they are
grouped and by the words before them.
"""

import ipaddress
import re

from app.observability.bank_accounts import ACCOUNT_NUMBER, is_account_number
from app.observability.card_numbers import is_card_number
from app.observability.names_and_places import WORDED
from app.observability.phone_numbers import PHONE_NUMBERS
from app.observability.rules import Rule, RulesBetween, marked, shaped

EMAIL = "[email]"

_GAP = r"(?:[ .\-_/\t]|[ ]{2})"
"""What people put between groups of digits."""

_ID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}"
_INSTANT = (
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"
)
_IDS = re.compile(rf"(?<![\w-])(?:{_ID})(?![\w-])", re.ASCII)
"""UUIDs and digests: what checks in them does so by chance."""
_IDS_AND_DATES = re.compile(rf"(?<![\w-])(?:{_ID}|{_INSTANT})(?![\w-])", re.ASCII)
"""And dates and instants (ISO 8601): the groups in them are no telephone numbers."""

_SEVEN_DIGITS = re.compile(r"\d(?:\D{0,3}\d){6}")
"""The fewest digits, and the widest gaps, that a number of a person has."""
_FAR = "????"
"""A gap that is wider."""

_ACCOUNT_BEGINS = shaped(r"\d\d(?<=[a-z][a-z]\d\d)[ .+-]{0,2}[0-9a-z][ .+-]{0,2}[0-9a-z]")
"""How an account number begins."""


def _has_seven_digits(lowered: str) -> bool:
    """Say whether there are as many digits as a number of a person has, dates aside."""
    if _SEVEN_DIGITS.search(lowered) is None:
        return False
    dateless = _IDS_AND_DATES.sub(_FAR, lowered) if "-" in lowered else lowered
    return _SEVEN_DIGITS.search(dateless) is not None


def _email(found: re.Match[str]) -> str | None:
    """Judge what has an at sign: ``name@1.2`` is a version."""
    return None if found.group().rpartition(".")[2].isdecimal() else EMAIL


def _card(found: re.Match[str]) -> str | None:
    return "[card number]" if is_card_number(found.group()) else None


def _account(found: re.Match[str]) -> str | None:
    return "[account number]" if is_account_number(found.group()) else None


def _address_of_machine(found: re.Match[str]) -> str | None:
    """Judge an IP address: those of private networks stand for no person."""
    try:
        address = ipaddress.ip_address(found.group())
    except ValueError:
        return None
    return "[ip address]" if address.is_global else None


def _grouped_card(*sizes: int) -> Rule:
    groups = _GAP.join(rf"\d{{{size}}}" for size in sizes)
    return Rule(re.compile(rf"(?<!\d){groups}(?!\d)"), _card)


FORMED: tuple[Rule, ...] = (
    Rule(
        re.compile(r"(?<![\w.%+-])[\w.%+-]++@(?:[\w-]++(?:\.[\w-]++)++|[^\W\d_][\w-]++)"),
        _email,
        ("@",),
    ),
    Rule(
        re.compile(r"(?<![\w.+-])(?:[\w.%+-]{1,64}+|\"[^\"\n@]{1,64}\")@\[[\d.:A-Fa-f]{7,45}\]"),
        marked(EMAIL),
        ("@[",),
    ),
    Rule(re.compile(r"\"[^\"\n@]{1,64}\"@[\w-]++(?:\.[\w-]++)++"), marked(EMAIL), ('"@',)),
    Rule(
        re.compile(
            r"(?<![\w.+-])[\w.+-]{1,64}+[ ]?[\[({][ ]?at[ ]?[\])}][ ]?"
            r"[\w-]{1,63}+(?:(?:\.|[ ]?[\[({][ ]?dot[ ]?[\])}][ ]?)[\w-]{1,63}+){1,5}",
            re.IGNORECASE,
        ),
        marked(EMAIL),
        tuple(f"{opening}{gap}at{gap}" for opening in "[({" for gap in ("", " ")),
    ),
    Rule(re.compile(r"(?<![\w.+-])[\w.+-]++%40[\w-]++(?:\.[\w-]++)++"), marked(EMAIL), ("%40",)),
    Rule(
        re.compile(r"\d(?<![A-Za-z0-9.]\d)\d{0,2}(?:\.\d{1,3}){3}(?!\w|\.\d)", re.ASCII),
        _address_of_machine,
        shape=shaped(r"\d\.\d{1,3}\.\d"),
    ),
    Rule(
        re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])", re.ASCII),
        _address_of_machine,
        shape=shaped(r":[0-9a-f]{0,4}:"),
    ),
)
"""What has a form that nothing else has."""

ACCOUNTS: tuple[Rule, ...] = (Rule(ACCOUNT_NUMBER, _account),)

CARDS: tuple[Rule, ...] = (
    Rule(re.compile(r"(?<!\d)\d{13,19}(?!\d)"), _card),
    _grouped_card(4, 4, 4, 4, 3),
    _grouped_card(4, 4, 4, 4),
    _grouped_card(4, 4, 4, 3),
    _grouped_card(4, 6, 5),
    _grouped_card(4, 6, 4),
    _grouped_card(6, 13),
)
"""Looked for beside dates too: no date looks like one."""

GROUPED: tuple[Rule, ...] = (
    Rule(
        re.compile(r"(?<!\d)(?<!\d-)(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?!\d|-\d)"),
        marked("[social security number]"),
        ("-",),
    ),
    Rule(
        re.compile(
            r"(\b(?:ssn|social security(?: number| no)?)\b[^\w\n]{0,4}(?:is:? )?)"
            r"(?!000|666|9)\d{3}[ .-]?(?!00)\d\d[ .-]?(?!0000)\d{4}(?!\d)",
            re.IGNORECASE,
        ),
        marked(r"\1[social security number]"),
        ("ssn", "social"),
    ),
    *PHONE_NUMBERS,
)
"""What only its groups or the word before it give away."""

PERSONAL_DATA: tuple[Rule | RulesBetween, ...] = (
    *FORMED,
    RulesBetween(ACCOUNTS, _IDS, _ACCOUNT_BEGINS),
    RulesBetween(CARDS, _IDS, _has_seven_digits),
    RulesBetween(GROUPED, _IDS_AND_DATES, _has_seven_digits),
    *WORDED,
)
"""All of them, in their order."""
