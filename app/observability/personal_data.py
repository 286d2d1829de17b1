"""Finds personal data in a text by its form.

Numbers that stand for people are told from other numbers by check digits, by the way they are
grouped and by the words before them. Names and postal addresses have no form of their own: only
those are found that follow a title, a salutation or a label, or end as streets do.
"""

import ipaddress
import re
from collections.abc import Sequence

from app.observability.bank_accounts import ACCOUNT_NUMBER, is_account_number
from app.observability.card_numbers import is_card_number
from app.observability.phone_numbers import PHONE_NUMBERS
from app.observability.rules import Rule, applied, marked

EMAIL = "[email]"

_GAP = r"[ .\-_/\u00a0\u2010-\u2015]"
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

_DIGITS = re.compile(r"\d(?:\D{0,3}\d){6}")
"""The fewest digits, and the widest gaps, that a number of a person has."""

_NAME = r"[A-Z\u00c0-\u00d6\u00d8-\u00de\u0100-\u017f][a-z\u00df-\u00f6\u00f8-\u017f'\u2019]{1,30}+"
_NAMES = rf"(?:[A-Z]\.[ ]?){{0,2}}{_NAME}(?:[ -]{_NAME}){{0,2}}(?![\w@])"
_NOBODY = frozenset(
    {
        *("Sir", "Madam", "Madame", "Team", "All", "Everyone", "World", "There"),
        *("Customer", "Colleagues"),
    }
)
"""What greetings begin with that greet nobody in particular."""
_STREETS = (
    "Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Way|Court|Ct|Square|Sq|Place|Pl"
    "|Terrace|Parkway|Pkwy|Highway|Hwy|Close|Crescent"
)


def without_personal_data(text: str) -> str:
    """Return ``text`` with marks where personal data was."""
    text = _applied_between(_IDS, ACCOUNTS, applied(FORMED, text))
    if _DIGITS.search(text) is not None:
        text = _applied_between(_IDS, CARDS, text)
        text = _applied_between(_IDS_AND_DATES, GROUPED, text)
    return applied(WORDED, text)


def _applied_between(kept: re.Pattern[str], rules: Sequence[Rule], text: str) -> str:
    """Return ``text`` after rules for what stands between the places that are kept."""
    parts: list[str] = []
    done = 0
    for found in kept.finditer(text):
        parts += (applied(rules, text[done : found.start()]), found.group())
        done = found.end()
    return "".join(parts) + applied(rules, text[done:])


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


def _greeted(found: re.Match[str]) -> str | None:
    first = found.group(2).partition(" ")[0]
    return None if first in _NOBODY else f"{found.group(1)}[name]"


def _grouped_card(*sizes: int) -> Rule:
    groups = _GAP.join(rf"\d{{{size}}}" for size in sizes)
    return Rule(re.compile(rf"(?<!\d){groups}(?!\d)"), _card)


FORMED: tuple[Rule, ...] = (
    Rule(
        re.compile(r"(?<![\w.%+-])[\w.%+-]++@(?:[\w-]++(?:\.[\w-]++)++|[^\W\d_][\w-]++)"),
        _email,
        ("@",),
    ),
    Rule(re.compile(r"(?<![\w.+-])[\w.+-]++%40[\w-]++(?:\.[\w-]++)++"), marked(EMAIL), ("%40",)),
    Rule(
        re.compile(r"\d(?<![\w.]\d)\d{0,2}(?:\.\d{1,3}){3}(?!\w|\.\d)", re.ASCII),
        _address_of_machine,
        (".",),
    ),
    Rule(
        re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])", re.ASCII),
        _address_of_machine,
        (":",),
    ),
)
"""What has a form that nothing else has."""

ACCOUNTS: tuple[Rule, ...] = (Rule(ACCOUNT_NUMBER, _account),)

CARDS: tuple[Rule, ...] = (
    Rule(re.compile(r"(?<!\d)\d{13,19}(?!\d)"), _card),
    _grouped_card(4, 4, 4, 4, 3),
    _grouped_card(4, 4, 4, 4),
    _grouped_card(4, 6, 5),
    _grouped_card(4, 6, 4),
    _grouped_card(6, 13),
)
"""Looked for beside dates too: no date looks like one."""

GROUPED: tuple[Rule, ...] = (
    Rule(
        re.compile(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\w-])"),
        marked("[social security number]"),
        ("-",),
    ),
    Rule(
        re.compile(
            r"(\b(?:ssn|social security(?: number| no)?)\b[^\w\n]{0,4}(?:is )?)"
            r"(?!000|666|9)\d{3}[ -]?(?!00)\d\d[ -]?(?!0000)\d{4}(?!\d)",
            re.IGNORECASE,
        ),
        marked(r"\1[social security number]"),
        ("ssn", "social"),
    ),
    *PHONE_NUMBERS,
)
"""What only its groups or the word before it give away."""

WORDED: tuple[Rule, ...] = (
    Rule(
        re.compile(
            r"\b((?:passport|national id|tax id|driver'?s licen[cs]e|account|patient|insurance)"
            r"(?: number| no\.?| nr\.?| id)(?: is)?[ :=#]{1,3})(?=[A-Z-]{0,6}\d)[A-Z0-9-]{5,}+",
            re.IGNORECASE,
        ),
        marked(r"\1[id number]"),
        ("passport", "national", "tax", "driver", "account", "patient", "insurance"),
    ),
    Rule(
        re.compile(
            rf"\d(?<!\w\d)\d{{0,4}}[A-Za-z]?[ ](?:{_NAME}[ ]){{1,3}}(?:{_STREETS})\b\.?"
            rf"(?:,?[ ](?:Apt|Suite|Unit|Flat)\.?[ ]\w{{1,6}})?"
            rf"(?:,[ ]{_NAME}(?:[ ]{_NAME})?)?(?:,?[ ][A-Z]{{2}}[ ]\d{{5}}(?:-\d{{4}})?)?"
        ),
        marked("[address]"),
        tuple(f" {ending.lower()}" for ending in _STREETS.split("|")),
    ),
    Rule(
        re.compile(
            r"(?<!\w)[A-Z\u00c4\u00d6\u00dc]\w{1,30}?"
            r"(?:stra\u00dfe|strasse|str\.|weg|allee|platz|gasse)[ ]\d{1,4}[a-z]?\b"
        ),
        marked("[address]"),
        ("str", "weg ", "allee ", "platz ", "gasse "),
    ),
    Rule(
        re.compile(
            rf"\b((?:Mr|Mrs|Ms|Mx|Dr|Prof|Herr|Frau|Mme|Mlle|Lady|Lord|Sir)\b\.?[ ]{{1,2}}){_NAMES}"
        ),
        marked(r"\1[name]"),
        (
            "mr",
            "ms ",
            "ms.",
            "mx",
            "dr",
            "prof",
            "herr",
            "frau",
            "mme",
            "mlle",
            "lady",
            "lord",
            "sir",
        ),
    ),
    Rule(
        re.compile(rf"\b((?:Dear|Hello|Hi|Liebe|Lieber)[ ])({_NAMES})(?=[ ]?(?:[,!:\n]|$))"),
        _greeted,
        ("dear ", "hello ", "hi ", "liebe"),
    ),
    Rule(
        re.compile(
            r"\b((?i:(?:(?:full|first|last|given|family|middle|maiden|customer|patient|client"
            r"|employee|contact|card ?holder)[ _]?)?name|surname|customer|patient)"
            rf"\\?[\"']?[ ]?[:=][ ]?\\?[\"']?|(?i:my name is)[ ])({_NAMES})"
        ),
        _greeted,
        ("name", "customer", "patient"),
    ),
)
"""Names and addresses, as far as a word or an ending gives them away."""
