"""Word problems in which several share something: ``Four friends share a bill of $86.40``."""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies
from app.adapters.providers.offline.reading.words.things import (
    is_same,
    read_amount,
    read_count,
    read_thing,
)

_SHARE: Phrases[bool] = Phrases(
    {"(share|split|divide|split up|divide up|shared|divided) (up|)": True}
)
_SHARED: Phrases[bool] = Phrases(
    {"(is|are|was|were|to be|) (shared|split|divided|distributed) (up|out|)": True}
)
_EQUALLY: Phrases[bool] = Phrases(
    {"(equally|evenly|fairly|equally between them|evenly between them|among themselves)": True}
)
_AMONG: Phrases[bool] = Phrases({"(among|amongst|between|by|with) (the|)": True})
_EACH: Phrases[bool] = Phrases(
    {
        "(how much|what) (does|must|should|will|would|do|did) (each|every) (one|person|) "
        "(of them|of us|of the|)": True,
        "how much (is it|is that|is) (for each|per|each) (person|one|head|of them|)": True,
        "(what is|what's|how much is) each (person's|one's|friend's) (share|part)": True,
        "how much per (person|head)": True,
    }
)
_HOW_MANY: Phrases[bool] = Phrases({"how many": True})
_DOES_EACH: Phrases[bool] = Phrases(
    {"(does|will|would|do|did|can) (each|every) (one|person|) (of them|of us|of the|)": True}
)
_GETS: Phrases[bool] = Phrases(
    {"(have to|) (pay|owe|get|receive|contribute|have|give|cost)": True, "(be paid|be given)": True}
)


def read_sharing(dates: DateTerms) -> Reading:
    """Read what is shared by how many, and the question what each of them pays or gets."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    asked_first = cursor.attempt(_asked) is not None
    if asked_first:
        cursor.expect("if", "when")
    what, people, thing = cursor.first_of(_they_share, _it_is_shared)
    told = cursor.mentions("equally", "evenly")
    if not asked_first and not (told and cursor.attempt(_closes)):
        read_end(cursor)
        _asked(cursor, thing)
    return solved(expressions, expressions.checked(lambda: formula.divided(what, people)))


def _closes(cursor: Cursor) -> bool:
    """Tell whether nothing is asked besides; stay where we are."""
    place = cursor.place()
    read_closing(cursor)
    cursor.back(place)
    return True


def _they_share(cursor: Cursor) -> tuple[Formula, Formula, str]:
    """``Four friends share a bill of $86.40 equally``."""
    people = read_count(cursor)
    read_thing(cursor)
    _EQUALLY.read(cursor)
    _SHARE.expect(cursor)
    what, thing = _shared(cursor)
    _EQUALLY.read(cursor)
    return what, people, thing


def _it_is_shared(cursor: Cursor) -> tuple[Formula, Formula, str]:
    """``60 sweets are shared equally among 12 children``, ``split $90 between 4 people``."""
    imperative = _SHARE.read(cursor)
    what, thing = _shared(cursor)
    if imperative:
        _EQUALLY.read(cursor)
    else:
        _SHARED.expect(cursor)
        _EQUALLY.read(cursor)
    _AMONG.expect(cursor)
    people = read_count(cursor)
    read_thing(cursor)
    _EQUALLY.read(cursor)
    return what, people, thing


def _shared(cursor: Cursor) -> tuple[Formula, str]:
    """Read ``a bill of $86.40``, ``a $90 bill``, ``$90`` or ``60 sweets``."""
    cursor.accept("a", "an", "the", "their", "our")
    amount = cursor.attempt(read_amount)
    thing = cursor.attempt(read_thing) or ""
    if amount is None:
        cursor.expect("of", "for", "worth")
        amount = read_amount(cursor)
    return amount, thing


def _same(cursor: Cursor, thing: str) -> None:
    if not is_same(thing, read_thing(cursor)):
        raise cursor.misread()


def _asked(cursor: Cursor, thing: str = "") -> bool:
    """Read ``how much does each of them pay`` or ``how many sweets does each child get``."""
    if _HOW_MANY.read(cursor):
        if not cursor.at("does", "will", "would", "do", "did", "can"):
            _same(cursor, thing)
        _DOES_EACH.expect(cursor)
    else:
        _EACH.expect(cursor)
    cursor.attempt(read_thing)
    _GETS.read(cursor)
    return True
