"""Questions about the length of things: between two days, of a month, of a year."""

from datetime import date, timedelta
from typing import Any

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.moments import is_timed
from app.adapters.providers.offline.reading.dates.periods import read_month, read_year
from app.adapters.providers.offline.reading.dates.stock_periods import part_of_year, short_part
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.tools.dates import calculation

_FEBRUARY = 2

_COUNT: Phrases[bool] = Phrases(
    {
        "how many": True,
        "(what is|what's|) (the|) number of": True,
        "(what is|what's|) the (difference|distance|gap|time) in": True,
        "(count|calculate|compute|find|work out) (the|) (number of|)": True,
    }
)
_HOW_LONG: Phrases[bool] = Phrases(
    {
        "how long (is it|is|was it|was|has it been|will it be|)": True,
        "how long (is|was) the (time|period|span|stretch)": True,
        "how much time": True,
        "(what is|what's|) (the|) (difference|distance|gap|time)": True,
    }
)
_THERE: Phrases[bool] = Phrases(
    {
        "(are|were|is|was|will be) (there|it|) (left|remaining|in between|away|)": True,
        "will there be": True,
        "there (are|were|is|will be) (left|)": True,
        "(that|) (lie|lies|lay|fall|are|were|is|was)": True,
        "(do|did|will) we have (left|)": True,
        "(left|remain|remaining|away|to go)": True,
        "(have|has|had|did) (passed|elapsed|gone by|it been|been)": True,
        "(passed|elapsed)": True,
        "(does|will) it take": True,
        "(in between|it is)": True,
    }
)
_ONWARD: Phrases[bool] = Phrases({"(until|till|to|before|up to)": True})


def read_distance(dates: DateTerms) -> Action:
    """Read ``how many days between A and B``, ``how many weeks until A``, ``days since A``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    away = cursor.accept("in") is not None
    unit = _read_unit(cursor)
    if unit is not None and (away or cursor.at("away")):
        return _until_it_is(dates, unit)
    while _THERE.read(cursor):
        pass
    args = _read_range(dates)
    if any(is_timed(str(day)) for day in args.values()):
        raise cursor.ambiguous("days between two times can be whole or not; ask for hours")
    if unit is None:
        unit = cursor.attempt(_read_in_unit) or "days"
    if unit == "business_days":
        raise cursor.ambiguous(
            "business days between two dates are counted in several ways; ask for days"
        )
    return calendar_action(cursor, args if unit == "days" else {**args, "unit": unit})


def _until_it_is(dates: DateTerms, unit: str) -> Action:
    """Read the rest of ``in how many days is 1 March 2025`` or ``how many days away is …``."""
    cursor = dates.cursor
    cursor.accept("away")
    cursor.expect("is", "will")
    end = dates.term(towards=1).reference(cursor)
    cursor.accept("be", "come")
    if unit == "business_days":
        raise cursor.misread()
    args = {"operation": "until", "end_date": end}
    return calendar_action(cursor, args if unit == "days" else {**args, "unit": unit})


def _read_in_unit(cursor: Cursor) -> str:
    """Read ``, in days`` at the end."""
    cursor.accept(",")
    cursor.expect("in")
    return _read_unit_named(cursor)


def _read_unit(cursor: Cursor) -> str | None:
    """Read what to count; None if the question leaves it open so far."""
    if not _COUNT.read(cursor) and _HOW_LONG.read(cursor):
        return None
    return _read_unit_named(cursor)


def _read_unit_named(cursor: Cursor) -> str:
    cursor.accept("full", "whole", "complete", "entire")
    factor, unit = date_words.UNITS.expect(cursor)
    if factor != 1:
        raise cursor.ambiguous("a distance is told in days, weeks, months or years")
    return unit


def read_span(dates: DateTerms) -> dict[str, Any]:
    """Read ``days between A and B`` inside a larger question, as the calendar takes it."""
    unit = _read_unit_named(dates.cursor)
    if unit == "business_days":
        raise dates.cursor.misread()
    while _THERE.read(dates.cursor):
        pass
    args = _read_range(dates)
    return args if unit == "days" else {**args, "unit": unit}


def read_days_between(dates: DateTerms) -> dict[str, Any]:
    """Read ``are there between A and B`` inside a larger question, where both are given."""
    while _THERE.read(dates.cursor):
        pass
    if not dates.cursor.at("between", "from"):
        raise dates.cursor.misread()
    return _read_range(dates)


def _read_range(dates: DateTerms) -> dict[str, Any]:
    cursor = dates.cursor
    if (word := cursor.accept("between", "from")) is not None:
        start = dates.term().reference(cursor)
        if word == "between":
            cursor.expect("and")
        else:
            _ONWARD.expect(cursor)
        end = dates.term().reference(cursor)
        return {"operation": "difference", "date": start, "end_date": end}
    if cursor.accept("since"):
        return {"operation": "until", "date": dates.term(towards=-1).reference(cursor)}
    if cursor.accept("ago"):
        cursor.expect("was", "is")
        return {"operation": "until", "date": dates.term().reference(cursor)}
    if _LEFT_IN.read(cursor):
        return {"operation": "until", "end_date": _end_of_now(dates)}
    _ONWARD.expect(cursor)
    end = dates.term(towards=1).reference(cursor)
    if cursor.accept("from"):
        start = dates.term().reference(cursor)
        return {"operation": "until", "date": start, "end_date": end}
    return {"operation": "until", "end_date": end}


_LEFT_IN: Phrases[bool] = Phrases({"in (this|the current)": True})


def _end_of_now(dates: DateTerms) -> str:
    """Read the ``year`` of ``left in this year``, or ``month``; return its last day."""
    today = dates.today
    if dates.cursor.expect("year", "month") == "year":
        return date(today.year, 12, 31).isoformat()
    return calculation.end_of_month(today.year, today.month).isoformat()


_LEAP: Phrases[bool] = Phrases({"(a|) leap year": True})


def read_leap_year(dates: DateTerms) -> Action:
    """Read ``is 2024 a leap year``, ``will next year be a leap year``, ``is it … in 2024``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    cursor.accept("if", "whether", "is", "was", "will")
    if cursor.accept("it"):
        cursor.accept("be")
        _LEAP.expect(cursor)
        cursor.accept("in")
        year = read_year(cursor, dates.today)
    else:
        year = read_year(cursor, dates.today)
        cursor.accept("be", "is", "was")
        _LEAP.expect(cursor)
    return calendar_action(cursor, {"operation": "leap_year", "year": year})


_DAYS_IN: Phrases[bool] = Phrases(
    {
        "how many days (are there|are|were there|were|will be there|is there|) in": True,
        "how many days (does|did|do|will|has|is|was)": True,
        "(what is|what's|) (the|) number of days (there are|) in": True,
        "days in": True,
        "how long (is|was|will)": True,
    }
)


def read_days_in(dates: DateTerms) -> Action:
    """Read ``how many days are in February 2023``, ``how many days does 2024 have``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    _DAYS_IN.expect(cursor)
    args = read_whole(dates)
    cursor.accept("have", "be", "long")
    return calendar_action(cursor, args)


def read_length(dates: DateTerms) -> dict[str, Any]:
    """Read ``days in February 2024`` inside a larger question, as the calendar takes it."""
    cursor = dates.cursor
    cursor.expect("days")
    _THERE.read(cursor)
    cursor.expect("in", "of")
    return read_whole(dates)


def read_whole(dates: DateTerms) -> dict[str, Any]:
    """Read a month or a year whose days are counted."""
    cursor = dates.cursor
    cursor.accept("the")
    cursor.accept("month")
    cursor.accept("of")
    return cursor.first_of(
        lambda at: _days_in_month(*read_month(at, dates.today)),
        lambda at: _days_in_month(*_month_had_in_year(at, dates.today)),
        lambda at: _days_in_any(at, dates.today),
        lambda at: _days_in_part(at, dates.today),
        lambda at: {"operation": "days_in_year", "year": read_year(at, dates.today)},
    )


def _month_had_in_year(cursor: Cursor, today: date) -> tuple[int, int]:
    """Read ``February have in 2023``."""
    month = date_words.month(cursor)
    cursor.expect("have", "has", "had")
    cursor.expect("in")
    return read_year(cursor, today), month


def _days_in_part(cursor: Cursor, today: date) -> dict[str, Any]:
    """Read ``Q1 of 2024`` or ``the first half of 2023``: from its first day to the next part's."""
    part = cursor.first_of(lambda at: part_of_year(at, today), lambda at: short_part(at, today))
    if part.start is None or part.end is None:
        raise cursor.misread()
    following = part.end + timedelta(days=1)
    return {
        "operation": "difference",
        "date": part.start.isoformat(),
        "end_date": following.isoformat(),
    }


def _days_in_month(year: int, month: int) -> dict[str, Any]:
    return {"operation": "days_in_month", "year": year, "month": month}


def _days_in_any(cursor: Cursor, today: date) -> dict[str, Any]:
    """Read a month without a year: every one but February is always of the same length."""
    month = date_words.month(cursor)
    if month == _FEBRUARY:
        raise cursor.ambiguous("the length of February depends on the year")
    return _days_in_month(today.year, month)
