"""Rules for mail and IP addresses, and for numbers that stand for people.

Numbers of people are known by their check digits (python-stdnum), by the numbering plans of
telephones (phonenumbers) and by the word before them.
"""

import ipaddress
import re

import phonenumbers
from stdnum import iban, luhn
from stdnum.us import ssn

from app.observability.rules import Rule, rule

_GAP = r"(?:[ .\-_/\t]|[ ]{2})"
"""What people put between groups of digits."""
_LONG_NUMBER = r"\d(?:[ .\-_/\t]{0,2}\d){12}"
"""The shortest card number."""
_NUMBER = r"\d(?:[ .\-/()]{0,3}\d){6}"
"""The shortest telephone number."""

_CARD = re.compile(
    r"4(?:\d{15}|\d{18})|5[0-8]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[0689]\d{12}|35\d{14}|6\d{15}"
    r"|62\d{17}"
)
"""How the numbers of Visa, Mastercard, Maestro, American Express, Diners Club, JCB, Discover and
UnionPay begin, and how long they are."""
_CARD_GROUPS = ((4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 3))

_LABELS = (
    "phone|telephone|tel|mobile|cellphone|cell|fax|whatsapp|telefon|handy|mobil|call|dial|sms"
    "|my number|reach me|reach us|contact me|contact us"
)


def _email(found: re.Match[str]) -> str | None:
    """Judge what has an at sign: ``name@1.2`` is a version."""
    return None if found.group().rpartition(".")[2].isdecimal() else "[email]"


def _ip_address(found: re.Match[str]) -> str | None:
    """Judge an IP address: those of private networks are the operator's own machines."""
    try:
        address = ipaddress.ip_address(found.group())
    except ValueError:
        return None
    return "[ip address]" if address.is_global else None


def _card(found: re.Match[str]) -> str | None:
    digits = re.sub(r"\D", "", found.group())
    return "[card number]" if _CARD.fullmatch(digits) and luhn.is_valid(digits) else None


def _account(found: re.Match[str]) -> str | None:
    """Judge a word and the words behind it, of which some may not belong to the number."""
    text = found.group()
    while text:
        if iban.is_valid(text.replace("+", " ")):
            return "[account number]" + found.group()[len(text) :]
        text = text.rpartition(" ")[0].rstrip()
    return None


def _international(found: re.Match[str]) -> str | None:
    """Judge what has a plus sign, which may also stand between the terms of a sum."""
    text = found.group()
    before = found.string[max(0, found.start() - 3) : found.start()].rstrip()
    is_sum = before[-1:].isdecimal() or before.endswith((")", "%"))
    if is_sum and not re.search(r"[ (\u00a0]", text):
        return None
    return _possible(re.sub(r"^(?:00|011)", "+", text), None)


def _possible(text: str, region: str | None) -> str | None:
    try:
        number = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return None
    return "[phone number]" if phonenumbers.is_possible_number(number) else None


def _grouped(sizes: tuple[int, ...]) -> str:
    groups = _GAP.join(rf"\d{{{size}}}" for size in sizes)
    return rf"(?<![A-Za-z0-9]){groups}(?![A-Za-z0-9])"


PERSONAL_DATA: tuple[Rule, ...] = (
    rule(r"(?<![\w.%+-])[\w.%+-]++@(?:[\w-]++(?:\.[\w-]++)++|[^\W\d_][\w-]++)", _email, "@"),
    rule(
        r"(?a)\d(?<![A-Za-z0-9.]\d)\d{0,2}(?:\.\d{1,3}){3}(?!\w|\.\d)"
        r"|(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])",
        _ip_address,
        shape=r"\d\.\d{1,3}\.\d|:[0-9a-f]{0,4}:",
    ),
    rule(
        r"(?:(?<![A-Za-z0-9])|(?<=IBAN)|(?<=iban))[A-Za-z]{2}\d\d"
        r"(?:[ .\-+]{0,2}[A-Za-z0-9]{4}){2,7}(?:[ .\-+]{0,2}[A-Za-z0-9]{1,3})?(?![A-Za-z0-9])",
        _account,
        shape=r"[a-z]{2}\d\d[ .+-]{0,2}[0-9a-z]{4}[ .+-]{0,2}[0-9a-z]{4}",
    ),
    rule(r"(?<![A-Za-z0-9])(?<!\d[.,])\d{13,19}(?![A-Za-z0-9])", _card, shape=_LONG_NUMBER),
    *(rule(_grouped(sizes), _card, shape=_LONG_NUMBER) for sizes in _CARD_GROUPS),
    rule(
        r"(?<!\d)(?<!\d-)\d{3}-\d\d-\d{4}(?!\d|-\d)",
        lambda found: "[social security number]" if ssn.is_valid(found.group()) else None,
        shape=_NUMBER,
    ),
    rule(
        rf"(?i)(\b(?:{_LABELS})\b(?:[ :=#.]{{1,2}}(?:numbers?|nummer|no|nr|is|at|me|us|on|under)\b)"
        r"{0,3}[\"':=#. ]{0,4})[+(]{0,2}\d(?:[ ().\-/]{0,2}\d){6,14}(?!\d)",
        r"\1[phone number]",
        *_LABELS.split("|"),
    ),
    rule(
        r"(?:(?<!\+)\+|(?<![\w.,+:-])(?!\d{4}-\d\d-\d\d)(?:00|011)[ ]?)"
        r"\(?[1-9](?:\)?(?:[ ]{2}|[ .\-/])?\(?\d){8,14}(?!\d|[.,]\d)",
        _international,
        shape=_NUMBER,
    ),
    rule(
        r"(?<![\w.+-])(?:1[ .-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[.-])[2-9]\d\d[ .-]\d{4}"
        r"(?![\w-]|\.\d)",
        lambda found: _possible(found.group(), "US"),
        shape=_NUMBER,
    ),
)
"""What stands for a person or for a machine, by its form."""
