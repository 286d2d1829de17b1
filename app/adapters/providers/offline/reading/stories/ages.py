"""Questions about ages: ``how old is someone on 2024-06-15 who was born on 1990-06-16``."""

from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies

_BORN: Phrases[bool] = Phrases(
    {"(that|) (was|is|were|am|are|) (born|built|founded|made|bought)": True}
)
_PERSON: Phrases[bool] = Phrases(
    {
        "(someone|somebody|a person|he|she|it|i|a child|the child|one|this person)": True,
        "(a|the|my) (man|woman|baby|child|boy|girl|house|car|building|company|son|daughter)": True,
    }
)
_OLD: Phrases[str] = Phrases(
    {"how old (in years|)": "years", "(what is|what's) the age (of|)": "years"}
    | {
        f"how (many {unit} old|old in {unit})": unit
        for unit in ("days", "weeks", "months", "years")
    }
)
_AM: Phrases[bool] = Phrases({"(is|was|am|will be|will|are|be|would|were)": True})
_TURNED: Phrases[bool] = Phrases({"(be|old|in years|years old|who|that|,)": True})


def read_age(dates: DateTerms) -> Action:
    """Read ``how old is someone on D who was born on B``, ``I was born on B. How old am I``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    born = cursor.attempt(lambda _: _read_birth_first(dates))
    unit = _OLD.expect(cursor)
    at = None
    while True:
        if _AM.read(cursor) or _PERSON.read(cursor) or _TURNED.read(cursor):
            continue
        if born is None and _BORN.read(cursor):
            cursor.accept("on")
            born = dates.term().reference(cursor)
        elif at is None and (day := cursor.attempt(lambda _: dates.term())) is not None:
            at = day.reference(cursor)
        else:
            break
    if born is None:
        raise cursor.misread()
    end = "today" if at is None else at
    args = {"operation": "until", "date": born, "end_date": end, "unit": unit}
    return calendar_action(cursor, args)


_TURN: Phrases[bool] = Phrases(
    {"(on what date|on which day|on which date|when) (will|do|does|did|would)": True}
)


def read_birthday(dates: DateTerms) -> Action:
    """Read ``when will I turn 30 if I was born on 14 July 1998``, or the birth first."""
    cursor = dates.cursor
    read_courtesies(cursor)
    born = cursor.attempt(lambda _: _read_birth_first(dates))
    _TURN.expect(cursor)
    _PERSON.expect(cursor)
    cursor.expect("turn", "become", "be")
    years = cursor.number()
    cursor.attempt(lambda at: at.expect("years") and at.expect("old"))
    if born is None:
        cursor.expect("if", "when", "who")
        _PERSON.read(cursor)
        _BORN.expect(cursor)
        cursor.accept("on")
        born = dates.term().reference(cursor)
    if not years.isdigit() or len(years) > 3:
        raise cursor.misread()
    args = {"operation": "add", "date": born, "amount": int(years), "unit": "years"}
    return calendar_action(cursor, args)


def _read_birth_first(dates: DateTerms) -> str:
    """Read ``I was born on March 5, 1990`` and the full stop after it."""
    cursor = dates.cursor
    cursor.accept("if")
    _PERSON.expect(cursor)
    _BORN.expect(cursor)
    cursor.accept("on")
    born = dates.term().reference(cursor)
    cursor.expect(".", ",", ";")
    return born
