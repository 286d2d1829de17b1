"""Checks that the tool arguments contain the numbers and dates in the question.

This detects a plan for a different question, or with an invented number. It cannot detect a wrong
operation on the right numbers. A number counts as used if an action's arguments contain it, or a
fraction derived from it (``17%`` as 0.17, 1.17 or 0.83). A date counts as used if its three parts
occur together in any notation. For a whole month, its month and year are enough.

A number above twelve in the arguments must come from the question or an earlier result, be a common
constant, or be written in words. An ambiguous date such as 03/04/2025 must be passed on unchanged,
so that the calendar rejects it. Text from the question in a failed action, such as a name, must be
used in another action.
"""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from caseworker_cases.agent.evidence import RESPOND, CaseEvidence

MAX_QUESTION_CHARS = 2000
"""Maximum length of a checked question, in characters. A longer input is treated as a document, and
its numbers are not checked."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?P<{}>(?:" + "|".join(_MONTHS) + r")[a-z]{{0,6}})\b\.?"
_DAY, _YEAR = r"(?P<{}>\d\d?)(?:st|nd|rd|th)?", r",? (?P<{}>\d{{4}})\b"
_DATE = re.compile(
    r"\b(?P<a>\d{1,4})([-/.])(?P<b>\d\d?)\2(?P<c>\d{1,4})\b"
    rf"|{_MONTH.format('m1')} {_DAY.format('d1')}{_YEAR.format('y1')}"
    rf"|\b{_DAY.format('d2')} (?:of )?{_MONTH.format('m2')}{_YEAR.format('y2')}",
    re.IGNORECASE | re.ASCII,
)
_NUMBER = re.compile(r"(?<![A-Za-z])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?(?:%|percent\b)")
_HUNDRED = Decimal(100)
_SMALL = Decimal(12)
_COMMON = frozenset(
    map(Decimal, (24, 52, 60, 100, 252, 360, 365, 366, 1000, 3600, 86_400, 604_800, 1_000_000))
)
"""Common constants, such as hours in a day, that a question need not contain."""
_WORDS = re.compile(
    r"teen\b|(?:twen|thir|for|fif|six|seven|eigh|nine)ty\b|hundred|thousand|dozen|illion"
)
"""Words for numbers above twelve."""

Parts = tuple[int, ...]
"""Year, month and day of a date, sorted by value, so that all notations of the date are equal."""


def misused(question: str, evidence: Sequence[CaseEvidence]) -> list[str] | None:
    """Compare numbers and dates in the question with the tool arguments; return mismatches.

    The list contains values as written, in three groups: values in the question that no argument
    contains, argument values without a source, and text that was dropped after an action failed. It
    is empty if everything matches. None means that nothing can be compared: the question contains
    no numbers or dates, or it is too long.
    """
    if len(question) > MAX_QUESTION_CHARS:
        return None
    dates, numbers = _facts(question)
    if not dates and not numbers:
        return None
    ran = [piece for piece in evidence if not piece.failed and not piece.refused]
    pieces = [piece for piece in ran if piece.tool != RESPOND] or ran
    used_text = " ".join(json.dumps(dict(piece.args), ensure_ascii=False) for piece in pieces)
    known_dates, used_numbers = _facts(used_text)
    used_dates = known_dates.values()
    months = [parts for parts in dates.values() if {*map(Decimal, parts[1:])} <= used_numbers]
    used_numbers = used_numbers | {Decimal(part) for parts in used_dates for part in parts}
    return [
        *(
            written
            for written, parts in dates.items()
            if (parts not in used_dates and parts not in months)
            or (_has_two_readings(written, parts) and written not in used_text)
        ),
        *(str(number) for number in sorted(numbers) if used_numbers.isdisjoint(_forms(number))),
        *(
            piece[0]
            for piece in _PERCENT.finditer(question)
            if not _is_a_share(piece[1], used_text, used_numbers)
        ),
        *([] if _WORDS.search(question) else _invented(used_text, dates, numbers, ran)),
        *_dropped(question, used_text, evidence),
    ]


def _dropped(question: str, used_text: str, evidence: Sequence[CaseEvidence]) -> list[str]:
    """Return text that a failed action took from the question and no other action used."""
    failed = (piece.args.values() for piece in evidence if piece.failed and not piece.refused)
    texts = (value for values in failed for value in values if isinstance(value, str))
    return [text for text in texts if len(text) > 1 and text in question and text not in used_text]


def _is_a_share(written: str, used_text: str, used_numbers: set[Decimal]) -> bool:
    """Return whether the arguments use a percentage as a share of a hundred."""
    number = Decimal(written)
    return f"{written}%" in used_text or not used_numbers.isdisjoint(
        {_HUNDRED, *list(_forms(number))[1:]}
    )


def _invented(
    used_text: str, dates: dict[str, Parts], numbers: set[Decimal], ran: Sequence[CaseEvidence]
) -> list[str]:
    """Return the numbers of the arguments that have no source."""
    results_text = " ".join(json.dumps(piece.result, ensure_ascii=False) for piece in ran)
    explained = (
        {form for number in numbers for form in _forms(number)} | _facts(results_text)[1] | _COMMON
    )
    explained |= {Decimal(part) for parts in dates.values() for part in parts}
    return [
        str(one) for one in sorted(_facts(used_text)[1]) if one > _SMALL and one not in explained
    ]


def _facts(text: str) -> tuple[dict[str, Parts], set[Decimal]]:
    """Return the dates in a text, as written and by their parts, and its other numbers."""
    dates = {match[0]: _parts(match) for match in _DATE.finditer(text)}
    rest = _DATE.sub(" ", text)
    return dates, {Decimal(number[0].replace(",", "")) for number in _NUMBER.finditer(rest)}


def _parts(match: re.Match[str]) -> Parts:
    if match["a"]:
        return tuple(sorted(int(match[name]) for name in "abc"))
    form = "1" if match["m1"] else "2"
    month = _MONTHS.index(match[f"m{form}"][:3].lower()) + 1
    return tuple(sorted((month, int(match[f"d{form}"]), int(match[f"y{form}"]))))


def _has_two_readings(written: str, parts: Parts) -> bool:
    numeric = written[0].isdigit() and not written[:4].isdigit() and written[-4:].isdigit()
    return numeric and not re.search("[a-z]", written.lower()) and parts[0] != parts[1] <= 12


def _forms(number: Decimal) -> Iterator[Decimal]:
    share = number / _HUNDRED
    yield from (number, share, 1 + share, 1 - share)
