"""Compares an answer with the expected one, independently of the service's own verifier.

The service judges itself with its verifier, so the evaluation must not reuse that code. Like the
verifier, this module compares numbers exactly and dates by day. Unlike the verifier, it parses
dates with its own grammar of three written forms, without a date library. A weekday in front of a
date must match the date. Text is compared after NFKC normalisation, without case, and without a
final full stop. Numbers have no tolerance, and words and units are kept: ``42 apples`` is not
``42``.
"""

import re
import unicodedata
from datetime import date
from decimal import Decimal

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MAX_CHARS = 1000

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d{1,3})?", re.ASCII)
_ISO = re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)", re.ASCII)
_WEEKDAY = r"(?:(?P<weekday>[a-z]+),? )?"
_MONTH_FIRST = re.compile(
    _WEEKDAY + r"(?P<month>[a-z]+) (?P<day>\d\d?),? (?P<year>\d{4})", re.ASCII
)
_DAY_FIRST = re.compile(_WEEKDAY + r"(?P<day>\d\d?) (?P<month>[a-z]+),? (?P<year>\d{4})", re.ASCII)


def same_answer(answer: str, gold: str) -> bool:
    """Return whether an answer equals the gold answer as text, as a number or as a date."""
    one, other = _folded(answer), _folded(gold)
    if one == other:
        return True
    number = _number(one)
    if number is not None:
        return number == _number(other)
    day = _date(one)
    return day is not None and day == _date(other)


def _folded(text: str) -> str:
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.replace("\u2212", "-").removesuffix(".")


def _number(text: str) -> Decimal | None:
    if len(text) > _MAX_CHARS or not any(map(str.isdigit, text)) or not _NUMBER.fullmatch(text):
        return None
    return Decimal(text.replace(",", ""))


def _date(text: str) -> date | None:
    for form in (_ISO, _MONTH_FIRST, _DAY_FIRST):
        if match := form.fullmatch(text):
            return _day(match)
    return None


def _day(match: re.Match[str]) -> date | None:
    parts = match.groupdict()
    month = parts["month"]
    try:
        number = int(month) if month.isdecimal() else _MONTHS.index(month[:3]) + 1
        day = date(int(parts["year"]), number, int(parts["day"]))
        weekday = parts.get("weekday")
        fits = weekday is None or _WEEKDAYS.index(weekday[:3]) == day.weekday()
    except ValueError:
        return None
    return day if fits else None
