r"""Tells telephone numbers from sums, dates and amounts.

Taken for a telephone number is: what begins with a plus sign and a country (E.164); the North
American form ``415-555-2671`` or ``(415) 555-2671``; what begins with the trunk digit 0 and stands
in groups or is as long as such numbers are; and any 7 to 15 digits behind a word such as ``phone``.
A number without a plus sign, a zero, a group or a word is kept: it may just as well be an amount.
"""

import re

from app.observability.rules import Rule, marked

PHONE = "[phone number]"

_GAP = r"(?:\)?(?:[ ]{2}|[ .\-/])?\(?)"
_LABELS = (
    "phone|telephone|tel|mobile|cellphone|cell|fax|whatsapp|telefon|handy|mobil|call|dial|sms"
    "|my number|reach me|reach us|contact me|contact us"
)
_FILLERS = "numbers?|nummer|no|nr|is|at|me|us|on|under"
_SHORTEST, _LONGEST = 9, 15
"""Digits of a number with its country."""
_DATE_GROUPS = (2, 2, 4)
_COUNTED = "0123456789"
"""What everybody writes who needs some digits."""
_PLAIN_DECIMAL = re.compile(r"\+?\d{5,}\.\d+")


def _international(found: re.Match[str]) -> str | None:
    text = found.group()
    digits = sum(character.isdecimal() for character in text)
    if not _SHORTEST <= digits <= _LONGEST or _PLAIN_DECIMAL.fullmatch(text):
        return None
    before = found.string[max(0, found.start() - 3) : found.start()].rstrip()
    is_sum = before[-1:].isdecimal() or before.endswith((")", "%"))
    return None if is_sum and not re.search(r"[ (\u00a0]", text) else PHONE


def _national(found: re.Match[str]) -> str | None:
    """Judge groups that begin with a zero; after the first gap all gaps are alike."""
    text = found.group()
    groups, gaps = re.findall(r"\d+", text), re.findall(r"[^\d()]", text)
    sizes = tuple(map(len, groups))
    if not _SHORTEST <= sum(sizes) <= 12 or sizes[:3] == _DATE_GROUPS:
        return None
    return PHONE if len(set(gaps[1:])) <= 1 else None


def _dialled_abroad(found: re.Match[str]) -> str | None:
    """Judge what begins as calls to another country do; in one it is as long as they are."""
    text = found.group()
    return PHONE if re.search(r"\d[ .\-/(]", text[3:]) or len(text) >= _LONGEST - 2 else None


def _in_one(found: re.Match[str]) -> str | None:
    """Judge digits in one that begin with a zero, as no amount does."""
    return None if found.group() == _COUNTED else PHONE


def _labelled(found: re.Match[str]) -> str | None:
    label, number = found.group(1, 2)
    digits = sum(character.isdecimal() for character in number)
    return f"{label}{PHONE}" if 7 <= digits <= _LONGEST else None


PHONE_NUMBERS: tuple[Rule, ...] = (
    Rule(
        re.compile(
            rf"(\b(?:{_LABELS})\b(?:[ :=#.]{{1,2}}(?:{_FILLERS})\b){{0,3}}[\"':=#. ]{{0,4}})"
            r"([+(]{0,2}\d(?:[ ().\-/]{0,2}\d){6,18})(?!\d)",
            re.IGNORECASE,
        ),
        _labelled,
        (
            "phone",
            "tel",
            "mobil",
            "cell",
            "fax",
            "whatsapp",
            "handy",
            "call",
            "dial",
            "sms",
            "my number",
            "reach",
            "contact",
        ),
    ),
    Rule(re.compile(rf"(?<!\+)\+\(?[1-9](?:{_GAP}\d){{8,14}}(?!\d)"), _international, ("+",)),
    Rule(
        re.compile(rf"(?<![\w.,+:-])(?:00|011)[ ]?[1-9](?:{_GAP}\d){{8,14}}(?!\d|[.,]\d)"),
        _dialled_abroad,
        ("00", "011"),
    ),
    Rule(
        re.compile(
            r"(?<![\w.+-])(?:1[ .-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[.-])[2-9]\d\d[ .-]\d{4}"
            r"(?![\w-]|\.\d)"
        ),
        marked(PHONE),
    ),
    Rule(
        re.compile(
            r"(?<![\w.+-])(?:\([1-9]\d\) ?9\d{4}-\d{4}|8 ?\(\d{3}\) ?\d{3}-\d\d-\d\d)(?![\w-]|\.\d)"
        ),
        marked(PHONE),
        ("(",),
    ),
    Rule(
        re.compile(r"(?<![\w.,+:/*^-])0[1-9]\d{8,10}(?!\w|[.,:/-]\d)"),
        _in_one,
        ("0",),
    ),
    Rule(
        re.compile(r"(?<![\w.,+:/-])\(?0[1-9]\d{0,3}\)?(?:[ .\-/]\d{2,8}){1,4}+(?!\w|[.,:/-]\d)"),
        _national,
        ("0",),
    ),
)
"""The words before a number first: they tell the most."""
