"""Word problems by the rule of three: ``My car uses 6.5 litres per 100 km. How many for 420 km``.

One clause tells how much of one thing goes with how much of another; the question gives a new
number of the one and asks for the other. That holds where both grow together, which a clause about
workers and hours does not promise: a number of those who work is never one of the two things.
"""

from dataclasses import dataclass
from fractions import Fraction

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.spans import UNITS, Span, in_span
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import (
    PLAIN,
    Formula,
    MixedQuantitiesError,
)
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import OWNERS, PRONOUNS, read_holder
from app.adapters.providers.offline.reading.words.numerals import NUMBER_BEGINNINGS, read_number
from app.adapters.providers.offline.reading.words.things import is_name, is_same, read_thing, words
from app.adapters.providers.offline.reading.words.tokens import Kind

_DOES = words(
    "uses use used needs need consumes consume burns burn drinks drink eats eat makes make made "
    "produces produce paints paint painted types type typed reads read writes write prints print "
    "bakes bake picks pick packs pack fills fill earns earn costs cost requires require covers "
    "cover pumps pump assembles assemble washes wash saves save spends spend gets get charges "
    "charge pays pay sells sell rides ride rode drives drive drove flies fly flew travels travel "
    "travelled traveled goes go went walked ran cycles cycle cycled swims swim sails sail walks "
    "walk runs run yields yield takes take calls call hold holds"
)
_NEEDS = words("needs need requires require takes take uses use calls call")
_MAX_WORDS = 4
_FOR: Phrases[bool] = Phrases(
    {"(for|in|with|from|on|per|over|during|to cover|to make|every|each|out of|an|a)": True}
)
_PER_ONE: Phrases[bool] = Phrases({"(per|a|an|every|each|for each|for every|for one)": True})
_CALLS_FOR: Phrases[bool] = Phrases({"for": True})
_HOW_MUCH: Phrases[bool] = Phrases({"how (many|much)": True})
_HOW_LONG: Phrases[bool] = Phrases({"how long": True})
_DO: Phrases[bool] = Phrases({"(do|does|did|will|would|can|could|should|must|is|are)": True})
_NEEDED: Phrases[bool] = Phrases({"(needed|required|used|necessary|consumed|made|produced)": True})


@dataclass(frozen=True, slots=True)
class _Amount:
    """A number of things; of a length of time it also says the unit."""

    count: Formula
    thing: str
    span: Span | None = None

    def matches(self, other: "_Amount") -> bool:
        """Tell whether both are amounts of the same."""
        if self.span is not None and other.span is not None:
            return self.span[0] == other.span[0]
        return self.span is other.span and is_same(self.thing, other.thing)


@dataclass(frozen=True, slots=True)
class _Told:
    """How much of one thing goes with how much of another, and by what verb."""

    one: _Amount
    other: _Amount
    verb: str


def read_scaling(dates: DateTerms) -> Reading:
    """Read ``A recipe for 4 people needs 300 g of flour. How much flour for 10 people``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    told = cursor.first_of(_does_for, _for_does)
    read_end(cursor)
    asked, given = _question(cursor, told.verb)
    known, base = told.one, told.other
    if not known.matches(asked):
        known, base = base, known
    if not (known.matches(asked) and base.matches(given)):
        raise cursor.misread()
    return solved(expressions, expressions.checked(lambda: _scaled(known, base, given, asked)))


def _scaled(known: _Amount, base: _Amount, given: _Amount, asked: _Amount) -> Formula:
    """Return ``known`` for as much more of ``base`` as is given, in the unit that is asked for."""
    count = given.count
    if known.span is not None and known.span[0] != "clock":
        _check_whole(known, base, given)
    if given.span is not None and base.span is not None:
        count = in_span(count, given.span, base.span)
    if count.text == base.count.text:
        return known.count
    found = count if known.count.text == "1" else formula.times(known.count, count)
    if base.count.text != "1":
        found = formula.divided(found, base.count)
    if known.span is not None and asked.span is not None:
        found = in_span(found, known.span, asked.span)
    return found


def _check_whole(known: _Amount, base: _Amount, given: _Amount) -> None:
    """Refuse a part of a day or a month: it may be meant as the whole one that it takes.

    Raises:
        MixedQuantitiesError: what comes out is not whole.
    """
    texts = [amount.count.text for amount in (known, given, base)]
    if not all(text.replace(".", "", 1).isdigit() for text in texts) or float(texts[2]) == 0:
        raise MixedQuantitiesError("it is not clear whether parts of a day count")
    numbers = [Fraction(text) for text in texts]
    if (numbers[0] * numbers[1] / numbers[2]).denominator != 1:
        raise MixedQuantitiesError("it does not say whether a part of a day counts as a whole one")


def _does_for(cursor: Cursor) -> _Told:
    """``My car uses 6.5 litres per 100 km``, ``A worker paints 3 rooms in 2 days``."""
    verb = _doing(cursor)
    one = _amount(cursor)
    if one.span is not None:
        raise cursor.misread()
    return _Told(one, _base(cursor), verb)


def _doing(cursor: Cursor) -> str:
    """Read who does something up to the number, ``A snail crawls``; return the verb."""
    if not cursor.accept(*PRONOUNS):
        cursor.accept(*OWNERS)
        if not is_name(cursor.here.text) or cursor.take().kind is not Kind.WORD:
            raise cursor.misread()
    verb = ""
    for _ in range(_MAX_WORDS):
        word = cursor.here
        if word.kind is not Kind.WORD or cursor.at(*NUMBER_BEGINNINGS):
            break
        if word.text not in _DOES and not is_name(word.text):
            raise cursor.misread()
        verb = cursor.take().text
    if not verb:
        raise cursor.misread()
    return verb


def _for_does(cursor: Cursor) -> _Told:
    """``A recipe for 4 people needs 300 g of flour``, ``For 4 people I need 300 g of flour``."""
    if not cursor.at("for"):
        cursor.accept(*OWNERS)
        read_thing(cursor)
    cursor.expect("for")
    base = _amount(cursor)
    cursor.accept(",")
    cursor.accept(*PRONOUNS)
    cursor.expect(*_NEEDS)
    _CALLS_FOR.read(cursor)
    one = _amount(cursor)
    if one.span is not None or base.span is not None:
        raise cursor.misread()
    return _Told(one, base, "need")


def _base(cursor: Cursor) -> _Amount:
    """Read ``per 100 km``, ``in 2 days``, ``an hour``."""
    place = cursor.place()
    if _PER_ONE.read(cursor) and cursor.attempt(lambda at: at.expect(*_DIGITLESS)) is None:
        single = cursor.attempt(_thing)
        if single is not None:
            return _Amount(Formula("1"), *single)
    cursor.back(place)
    _FOR.expect(cursor)
    return _amount(cursor)


_DIGITLESS = ("hundred", "thousand", "dozen")
"""Words with which a number begins, and no name of a thing."""


def _amount(cursor: Cursor) -> _Amount:
    count = read_number(cursor)
    if count.fraction:
        raise cursor.misread()
    if count.quantity != PLAIN:
        return _Amount(count, count.quantity)
    return _Amount(count, *_thing(cursor))


def _thing(cursor: Cursor) -> tuple[str, Span | None]:
    place = cursor.place()
    span = UNITS.read(cursor)
    if span is not None and not cursor.at("of"):
        return cursor.texts[place], span
    cursor.back(place)
    return read_thing(cursor), None


def _question(cursor: Cursor, verb: str) -> tuple[_Amount, _Amount]:
    """Read ``how many litres do I need for 420 km``; what is asked for has no number."""
    if _HOW_LONG.read(cursor):
        raise cursor.misread()
    _HOW_MUCH.expect(cursor)
    if cursor.accept("money"):
        thing: tuple[str, Span | None] = ("dollars", None)
    else:
        thing = _thing(cursor)
    asked = _Amount(Formula("1"), *thing)
    if cursor.attempt(lambda at: _verb(at, verb)) is None:
        _FOR.expect(cursor)
        return asked, _amount(cursor)
    _FOR.read(cursor)
    cursor.accept("a", "the")
    return asked, _amount(cursor)


def _verb(cursor: Cursor, told: str) -> bool:
    """Read ``do I need``, ``does it use``, ``are needed``; another verb must be the one told."""
    _DO.expect(cursor)
    if _NEEDED.read(cursor):
        return True
    stem = told.removesuffix("s")
    read_holder(cursor, _DOES | {told, stem, told.removesuffix("es")})
    cursor.take()
    return True
