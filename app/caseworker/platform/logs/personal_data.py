"""Redaction rules for email addresses, IP addresses and numbers that identify people.

Numbers are recognized by their check digits (python-stdnum), by telephone numbering plans
(phonenumbers) or by the word in front of them.
"""

import ipaddress
import re
from functools import cache

import phonenumbers
from stdnum import iban, luhn, numdb
from stdnum.us import ssn

from caseworker.platform.addresses import is_public
from caseworker.platform.logs.rules import Rule, rule

_GAP = r"(?:[ .\-_/\t]|[ ]{2})"
"""Separators commonly written between groups of digits."""
_LONG_NUMBER = r"\d(?:[ .\-_/\t]{0,2}\d){12}"
"""The shortest card number."""
_NUMBER = r"\d(?:[ .\-/()]{0,3}\d){6}"
"""The shortest telephone number."""

_CARD = re.compile(
    r"4(?:\d{15}|\d{18})|5[0-8]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[0689]\d{12}|35\d{14}|6\d{15}"
    r"|62\d{17}"
)
"""Prefixes and lengths of Visa, Mastercard, Maestro, American Express, Diners Club, JCB, Discover
and UnionPay card numbers."""
_CARD_GROUPS = ((4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 3))

_MAX_NEAR_MISSES = 200
"""Maximum number of telephone-number candidates checked per text; real texts contain fewer."""

_LABELS = (
    "phone|telephone|tel|mobile|cellphone|cell|fax|whatsapp|telefon|handy|mobil|call|dial|sms"
    "|my number|reach me|reach us|contact me|contact us"
)


def _email(match: re.Match[str]) -> str | None:
    """Redact text with an at sign, except versions such as ``name@1.2``."""
    return None if match.group().rpartition(".")[2].isdecimal() else "[email]"


def _ip_address(match: re.Match[str]) -> str | None:
    """Redact public IP addresses; private ones belong to the operator's own machines."""
    try:
        address = ipaddress.ip_address(match.group())
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return "[ip address]" if is_public(mapped or address) else None


def _card(match: re.Match[str]) -> str | None:
    digits = re.sub(r"\D", "", match.group())
    return "[card number]" if _CARD.fullmatch(digits) and luhn.is_valid(digits) else None


@cache
def _iban_length(country: str) -> int | None:
    """Return the length of a country's IBANs in characters (ISO 13616); None if unknown."""
    pattern = numdb.get("iban").info(country)[0][1].get("bban")
    return 4 + sum(map(int, re.findall(r"\d+", pattern))) if pattern else None


def _account(match: re.Match[str]) -> str | None:
    """Redact an IBAN at the start of a match; trailing words may not belong to it."""
    text = match.group()
    length = _iban_length(text[:2].upper())
    while length is not None and text:
        plain = re.sub(r"[ .+-]", "", text)
        if len(plain) <= length:
            is_account = len(plain) == length and iban.is_valid(plain)
            return "[account number]" + match.group()[len(text) :] if is_account else None
        text = text.rpartition(" ")[0].rstrip()
    return None


def _international(match: re.Match[str]) -> str | None:
    """Redact an international telephone number, unless the plus sign belongs to a sum."""
    text = match.group()
    before = match.string[max(0, match.start() - 3) : match.start()].rstrip()
    is_sum = before[-1:].isdecimal() or before.endswith((")", "%"))
    if is_sum and not re.search(r"[ (\u00a0]", text):
        return None
    digits = re.sub(r"\D|^(?:00|011)", "", text)
    return "[phone number]" if _is_possible(digits) else None


def _is_possible(digits: str) -> bool:
    """Return whether the length of a number with country code fits a numbering plan.

    Parsing with phonenumbers would take fifty times as long.
    """
    for end in (1, 2, 3):
        code = int(digits[:end])
        if code in phonenumbers.COUNTRY_CODE_TO_REGION_CODE:
            lengths, rest = _lengths_of(code), digits[end:]
            return len(rest) in lengths or (rest[:1] == "0" and len(rest) - 1 in lengths)
    return False


@cache
def _lengths_of(code: int) -> frozenset[int]:
    """Return the possible lengths of numbers after a country code."""
    lengths: set[int] = set()
    for region in phonenumbers.COUNTRY_CODE_TO_REGION_CODE[code]:
        is_country = region != phonenumbers.REGION_CODE_FOR_NON_GEO_ENTITY
        plan = (
            phonenumbers.PhoneMetadata.metadata_for_region(region, None)
            if is_country
            else phonenumbers.PhoneMetadata.metadata_for_nongeo_region(code, None)
        )
        if plan is not None and plan.general_desc is not None:
            lengths.update(plan.general_desc.possible_length)
            lengths.update(plan.general_desc.possible_length_local_only)
    return frozenset(lengths)


def _grouped(sizes: tuple[int, ...]) -> str:
    groups = _GAP.join(rf"\d{{{size}}}" for size in sizes)
    return rf"(?<![A-Za-z0-9]){groups}(?![A-Za-z0-9])"


PERSONAL_DATA: tuple[Rule, ...] = (
    rule(
        r"(?i)(?<![\w.+-])[\w.+-]{1,64}+ ?[(\[] ?at ?[)\]] ?[\w-]{1,63}+"
        r"(?: ?(?:[(\[] ?dot ?[)\]]|\.) ?[\w-]{1,63}+){1,4}",
        "[email]",
        *("(at)", "[at]", "( at )", "[ at ]"),
    ),
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
        r"(?i)(\b(?:ssn|social security(?: number| no\.?)?)(?: is)?[ :#=]{1,3})"
        r"\d{3}[ -]?\d\d[ -]?\d{4}(?!\d)",
        r"\1[social security number]",
        *("ssn", "social security"),
    ),
    rule(
        r"(?i)(\bpassport(?: (?:no|number|nr|id))?(?: is)?[.:# ]{1,3})"
        r"(?=[A-Z]{0,8}\d)[A-Z0-9]{6,9}(?![A-Z0-9])",
        r"\1[personal data]",
        "passport",
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
        max_rejected=_MAX_NEAR_MISSES,
    ),
    rule(
        r"(?<![\w.+-])(?:1[ .-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[.-])[2-9]\d\d[ .-]\d{4}"
        r"(?![\w-]|\.\d)",
        "[phone number]",
        shape=_NUMBER,
    ),
)
"""Rules for data that identifies a person or a machine and can be recognized by its format."""
