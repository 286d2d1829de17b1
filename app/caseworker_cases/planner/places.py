"""The typed placeholders in a sentence: the text that each one matches, and its value.

Each pattern matches a piece of text without backtracking, so parsing takes time linear in the
length of the sentence. Reading a value only changes its notation. ``2,340`` becomes ``2340``, ``5
March 2024`` becomes ``2024-03-05``, and ``in June 2011`` becomes the first and the last day of the
month. The tools evaluate expressions, dates and distances.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from caseworker_cases.tools.arithmetic.functions import FUNCTIONS
from caseworker_cases.tools.dates.calculation import MONTHS

_CHOICES: Final = """
operator: + = plus; - = minus; * = times, multiplied by, x; / = divided by; % = mod;\
 ^ = to the power of; ^2 = squared; ^3 = cubed
multiple: 1 / 2 = half of, a half of, one half of; 1 / 3 = a third of, one third of; 3 = triple;\
 1 / 4 = a quarter of, one quarter of; 2 / 3 = two thirds of; 3 / 4 = three quarters of;\
 2 = double, twice
power: 2 = square; 3 = cube
function: sqrt = square root; cbrt = cube root; ln = natural logarithm; abs = absolute value;\
 factorial = factorial
figure: mean = average, mean; median = median; sum = sum; product = product;\
 max = largest, greatest, maximum; min = smallest, least, minimum;\
 gcd = greatest common divisor, gcd; lcm = least common multiple, lcm
company: AAPL = AAPL, Apple; FB = FB, Facebook; GOOG = GOOG, Google; IBM = IBM;\
 MSFT = MSFT, Microsoft
weekday: Monday = Monday; Tuesday = Tuesday; Wednesday = Wednesday; Thursday = Thursday;\
 Friday = Friday; Saturday = Saturday; Sunday = Sunday
calendar unit: days = days; weeks = weeks; months = months; years = years
unit: days = days, day; weeks = weeks, week; months = months, month; years = years, year;\
 business_days = business days, business day, working days, working day
clock unit: 604800 = weeks, week; 86400 = days, day; 3600 = hours, hour; 60 = minutes, minute;\
 1 = seconds, second
ordinal: 1 = first, 1st; 2 = second, 2nd; 3 = third, 3rd; 4 = fourth, 4th; 5 = fifth, 5th; -1 = last
direction: add = after, from; subtract = before
ago: add = from now; subtract = ago
price: close = closing price, close; adjusted_close = adjusted closing price, adjusted close;\
 open = opening price, open; high = daily high, high; low = daily low, low;\
 volume = trading volume, volume
close: adjusted = adjusted closing price, adjusted close;\
 raw = raw closing price, raw close, unadjusted closing price, unadjusted close
statistic: mean = average, mean; median = median; max = highest, maximum; min = lowest, minimum
metric: total_return = total return, return; max_drawdown = maximum drawdown, max drawdown;\
 annualized_return = annualised return, annualized return; best_day = best daily return, best day;\
 volatility = annualised volatility, annualized volatility, volatility;\
 worst_day = worst daily return, worst day
"""
"""Word placeholders: each value with the words for it."""
_SMALL: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class PlaceholderMismatchError(ValueError):
    """A text matches a placeholder's pattern but is not a valid value for it."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A type of placeholder: the text that it matches, and how its value is read."""

    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Any]
    """Function that converts a match to a value, or to a mapping of several named values. It raises
    PlaceholderMismatchError if the text is not a valid value."""
    example: str
    """Examples of matching texts, for the documentation."""


def _words(line: str) -> tuple[str, dict[str, str | int]]:
    name, _, values = line.partition(": ")
    pairs = (one.partition(" = ") for one in values.split("; "))
    return name, {
        word.lower(): int(value) if value.lstrip("-").isdigit() else value
        for value, _, words in pairs
        for word in words.split(", ")
    }


def _any(*words: str) -> str:
    """Match the longest of ``words``, up to a word boundary."""
    longest_first = sorted(map(re.escape, words), key=len, reverse=True)
    return rf"(?>{'|'.join(longest_first)})\b"


def _named_month(group: str) -> str:
    """Match ``the 9th of November 1989`` or ``Nov 9, 1989``; ``group`` opens each of its groups."""
    day, year = rf"{group}\d\d?)(?:st|nd|rd|th)?+", rf",?+ {group}\d{{4}})"
    return rf"(?:the )?+{day} (?:of )?+{group}{_MONTH}){year}|{group}{_MONTH}) {day}{year}"


_WORDS: Final = dict(map(_words, _CHOICES.strip().splitlines()))
_OPERATORS, _COMPANIES = _WORDS.pop("operator"), _WORDS.pop("company")

_DIGITS = r"(?>\d{1,3}(?:,\d{3})++(?!\d)|\d++)"
_NUMBER = rf"(?>[-+]?(?:{_DIGITS}(?:\.\d++)?+|\.\d++))"
_COUNT = rf"(?>{_DIGITS}|{_any('a', 'an', *_SMALL)})"
_MONTH = "(?>" + "|".join(rf"{name[:3]}(?:{name[3:]}\b|[.]|\b)" for name in MONTHS) + ")"
_NAMED_MONTH = re.compile(_named_month("("), re.ASCII | re.IGNORECASE)
_DATE = (
    rf"(?>(?:{_any(*_WORDS['weekday'])},?+ )?+(?:\d{{4}}-\d\d-\d\d|\d\d?[./]\d\d?[./]\d{{4}}|"
    rf"{_named_month('(?:')})\b|{_any('today', 'tomorrow', 'yesterday')})"
)
_EXPRESSION = (
    rf"(?>(?: ?+(?:[-+*/^%!(),.0-9]|(?<![a-z])(?:(?:{'|'.join(FUNCTIONS)})(?=\()|(?:pi|e)\b)"
    rf"|(?<= ){_any(*_OPERATORS)}))++)"
)
_DATE_LIKE = re.compile(r"\b(?:\d{4}([-/])\d\d?\1\d\d?|\d\d?([-/.])\d\d?\2\d{4})\b")
_SIGNED_POWER = re.compile(r"(?:^|[-+*/^%(,]) ?- ?[\d.]+ ?\^")
_CALCULATES = re.compile(r"[a-z]|.[-+*/^%!]")
_PAUSE = re.compile(r"[-+*/^%] ?,|, ?[*/^%]|, ?[-+] ")
"""A comma next to an operator: "10 + 5, * 2" may mean 20 or 30."""


def _number(match: re.Match[str]) -> str:
    return match[1].replace(",", "")


def _numbers(match: re.Match[str]) -> str:
    return ", ".join(one.replace(",", "") for one in re.split(r",? and |, ", match[0]))


def _expression(match: re.Match[str]) -> str:
    """Replace words by operators and remove thousands separators.

    Raises:
        PlaceholderMismatchError: it contains no calculation, it may be a date, or a sign or comma
            in it is ambiguous.
    """
    written = match[0].strip().lower()
    if _DATE_LIKE.search(written) or not _CALCULATES.search(written):
        raise PlaceholderMismatchError
    for word, sign in _OPERATORS.items():
        space = " ?" if sign in {"^2", "^3"} else "(?<= )"
        written = re.sub(rf"{space}\b{word}\b(?!\()", str(sign), written)
    plain = re.sub(rf"(?<![\d.]){_DIGITS}", lambda digits: digits[0].replace(",", ""), written)
    if _PAUSE.search(plain) or _SIGNED_POWER.search(plain):
        raise PlaceholderMismatchError
    if plain != written and re.search(r"[a-z]", plain):
        raise PlaceholderMismatchError
    return plain


def _count(match: re.Match[str]) -> int:
    word = match[1].lower()
    if word in _SMALL:
        return _SMALL.index(word) + 1
    return 1 if word in {"a", "an"} else int(word.replace(",", ""))


def _month(name: str) -> int:
    return 1 + [month[:3].lower() for month in MONTHS].index(name[:3].lower())


def _date(text: str) -> str:
    """Return a date with a month name as ISO, and any other unchanged for the tool to parse."""
    match = _NAMED_MONTH.fullmatch(text)
    if match is None:
        return text
    day, month, year = match.group(1, 2, 3) if match[1] else match.group(5, 4, 6)
    try:
        return date(int(year), _month(month), int(day)).isoformat()
    except ValueError:
        return text


def _period(match: re.Match[str]) -> Mapping[str, Any]:
    """Return ``start`` and ``end``; ``flexible`` is true for a month or a year."""
    if match["start"]:
        return {"start": _date(match["start"]), "end": _date(match["end"]), "flexible": False}
    year = int(match["year"])
    first, last = (_month(match["month"]),) * 2 if match["month"] else (1, 12)
    start, end = date(year, first, 1), date(year, last, monthrange(year, last)[1])
    return {"start": start.isoformat(), "end": end.isoformat(), "flexible": True}


def _place(
    pattern: str,
    example: str,
    read: Callable[[re.Match[str]], Any] = lambda match: match[0],
    flags: re.RegexFlag = re.IGNORECASE,
) -> Placeholder:
    return Placeholder(re.compile(pattern, re.ASCII | flags), read, example)


def _choice(words: Mapping[str, str | int]) -> Placeholder:
    return _place(_any(*words), "; ".join(words), lambda match: words[match[0].lower()])


PLACES: Final[Mapping[str, Placeholder]] = {
    "number": _place(f"({_NUMBER})", "2340; 2,340; -7.5", _number),
    "numbers": _place(rf"{_NUMBER}(?:(?:,? and|,) {_NUMBER})++", "12, 15 and 25", _numbers),
    "percent": _place(rf"({_NUMBER})(?: ?+%| percent\b)", "17%; 7.5 percent", _number),
    "expression": _place(
        _EXPRESSION, "(18 + 6) * 4 / 3; 2^10; 12 times 7; sqrt(144) + 5!", _expression
    ),
    "rounding": _place(
        rf"(?:({_COUNT}) (?:decimals?(?: places?)?+|places?)|the nearest whole number)\b",
        "2 decimals; two decimal places; the nearest whole number",
        lambda found: _count(found) if found[1] else 0,
    ),
    "count": _place(f"({_COUNT})", "45; 1,000; a; two", _count),
    "count back": _place(f"({_COUNT})", "45; 1,000; a; two", lambda found: -_count(found)),
    "date": _place(
        _DATE,
        "2024-03-15; March 15, 2024; Friday, 15 March 2024; 24.12.2025; 25/12/2025; today",
        lambda found: _date(found[0]),
    ),
    "month": _place(_MONTH, "February; Feb", lambda found: _month(found[0])),
    "year": _place(r"(?!0000)\d{4}\b", "2024", lambda found: int(found[0])),
    "period": _place(
        rf"(?:in|for|during) (?:(?P<month>{_MONTH}) )?+(?P<year>(?!0000)\d{{4}})\b|"
        rf"(?:from|between) (?P<start>{_DATE}) (?:to|and|until) (?P<end>{_DATE})",
        "in 2009; in June 2011; from 2010-01-04 to 2012-12-31",
        _period,
    ),
    "zone": _place(
        r"(?:[A-Z][A-Za-z]++(?:/[A-Z][A-Za-z_]++){1,2}|UTC)\b",
        "Asia/Tokyo; UTC",
        flags=re.ASCII,
    ),
    "symbol": _place(
        rf"(?:(?i:{_any(*_COMPANIES)})|[A-Z]{{1,5}}\b)",
        "AAPL; Apple",
        lambda found: _COMPANIES.get(found[0].lower(), found[0]),
        flags=re.ASCII,
    ),
    **{name: _choice(words) for name, words in _WORDS.items()},
}
"""All placeholder types, keyed by name."""
