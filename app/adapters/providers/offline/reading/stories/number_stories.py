"""Questions about numbers told before: ``My scores were 78, 85 and 92. What is the mean``.

What the numbers are does not matter, as long as no word says that some of them are to be left out.
"""

from collections.abc import Callable, Mapping, Sequence

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import OWNERS, PRONOUNS, pass_place
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.things import is_same, read_thing, words

_WERE: Phrases[bool] = Phrases({"(are|were|is|was|came to|have been) (:|)": True})
_TELLS = words("scored got ran walked sold read earned spent measured counted recorded paid had")
_WEEK: Phrases[bool] = Phrases(
    {
        "(this|last|the past|in the last|in the past) (week|month|year|days)": True,
        "(on|in|over|during) (monday|tuesday|the week|the weekend|five days|three days)": True,
        "(at noon|so far|respectively)": True,
    }
)
_WHAT: Phrases[bool] = Phrases(
    {
        "(what is|what's|what was|what were|find|calculate|compute|determine|tell me|give me) "
        "(the|my|their|our|his|her|its)": True,
    }
)
_STATISTIC: Phrases[str] = Phrases(
    {
        "(average|mean|arithmetic mean)": "mean",
        "median": "median",
        "(sum|total)": "sum",
        "(largest|highest|biggest|maximum|greatest|best)": "max",
        "(smallest|lowest|minimum|least)": "min",
        "range": "range",
        "(difference between the highest and the lowest|difference between the largest and the "
        "smallest)": "range",
    }
)
_HOW_MUCH: Phrases[str] = Phrases(
    {
        "(how much|how many|what) (is|are|was|were|did|do) (that|it|they|this|i|we|he|she) "
        "(have|score|sell|run|read|spend|earn|pay|) (in total|altogether|in all)": "sum",
        "(how much|how many|what) (is|are|was|were) (that|it|they|this) on average": "mean",
    }
)
_MANY = 2


def read_number_story(dates: DateTerms) -> Reading:
    """Read ``The temperatures were 12, 15 and 11 degrees. What was the mean temperature``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    thing = cursor.first_of(_they_were, _somebody_did)
    numbers, unit = _numbers(cursor)
    _WEEK.read(cursor)
    read_end(cursor)
    statistic = _asked(cursor, thing, unit)
    return solved(expressions, expressions.checked(lambda: _BUILDS[statistic](numbers)))


def _they_were(cursor: Cursor) -> str:
    """``My test scores were``, ``The temperatures this week were``."""
    cursor.accept(*OWNERS, "these", "those")
    thing = read_thing(cursor)
    _WEEK.read(cursor)
    pass_place(cursor, "of", "in", "on", "for")
    _WEEK.read(cursor)
    _WERE.expect(cursor)
    return thing


def _somebody_did(cursor: Cursor) -> str:
    """``I scored``, ``Tom ran``."""
    if not cursor.accept(*PRONOUNS):
        read_thing(cursor)
    cursor.expect(*_TELLS)
    return ""


def _numbers(cursor: Cursor) -> tuple[list[Formula], str]:
    """Read the numbers and what they count, which may be said once or every time."""
    found = [_number(cursor)]
    units = {cursor.attempt(read_thing) or ""}
    while (more := cursor.attempt(_further)) is not None:
        found.append(more)
        units.add(cursor.attempt(read_thing) or "")
    if len(found) < _MANY + 1 or len(units - {""}) > 1:
        raise cursor.misread()
    return found, max(units)


def _further(cursor: Cursor) -> Formula:
    joined = cursor.accept(",") is not None
    joined |= cursor.accept("and") is not None
    if not joined:
        raise cursor.misread()
    return _number(cursor)


def _number(cursor: Cursor) -> Formula:
    sign = cursor.accept("-", "minus")
    found = read_number(cursor)
    if found.fraction:
        raise cursor.misread()
    return found if sign is None else formula.negative(found)


def _asked(cursor: Cursor, thing: str, unit: str) -> str:
    """Read ``what was the mean temperature``; what it names must be what was told."""
    if (whole := _HOW_MUCH.read(cursor)) is not None:
        return whole
    _WHAT.expect(cursor)
    statistic = _STATISTIC.expect(cursor)
    if cursor.accept("of"):
        cursor.accept("the", "these", "all", "my", "those")
        cursor.accept("the", "these")
    named = cursor.attempt(read_thing)
    known = {thing, unit, "number", "value", "score", "result", "amount"} - {""}
    if named is not None and not any(is_same(told, named) for told in known):
        raise cursor.misread()
    _WEEK.read(cursor)
    return statistic


def _range(numbers: Sequence[Formula]) -> Formula:
    largest = formula.call("max", *numbers, plain=False)
    return formula.minus(largest, formula.call("min", *numbers, plain=False))


def _called(name: str) -> Callable[[Sequence[Formula]], Formula]:
    return lambda numbers: formula.call(name, *numbers, plain=False)


_BUILDS: Mapping[str, Callable[[Sequence[Formula]], Formula]] = {
    name: _called(name) for name in ("mean", "median", "sum", "max", "min")
} | {"range": _range}
