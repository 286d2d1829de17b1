"""Word problems that compare two holders: ``John is 34. His sister is 6 years younger``.

Each clause gives one holder's amount, as a number or by another holder's: so many more, so many
times as many. The question asks for one of them, for all together, or for the difference.
"""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import OWNERS, PRONOUNS, read_joint
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.things import is_name, is_same, read_thing, words
from app.adapters.providers.offline.reading.words.tokens import Kind

_HAVE = words("has have had owns own owned earns earn weighs weigh is are was reads scored scores")
_WOMEN = words("sister mother daughter aunt wife grandmother niece girl woman mum mom")
_MEN = words("brother father son uncle husband grandfather nephew boy man dad")
_BE = frozenset({"is", "are", "was"})
_YEARS: Phrases[bool] = Phrases({"(years|year) (old|)": True, "cm (tall|)": True, "kg": True})
_MORE: Phrases[int] = Phrases(
    {
        "(more|older|taller|heavier|longer)": 1,
        "(fewer|less|younger|shorter|lighter)": -1,
    }
)
_TIMES: Phrases[Formula] = Phrases(
    {
        "(twice|double)": Formula("2"),
        "(three times|triple)": Formula("3"),
        "half": Formula("1 / 2", formula.Binding.PRODUCT),
    }
)
_AS: Phrases[bool] = Phrases({"as (many|much|old|tall|heavy|long)": True})
_TOGETHER: Phrases[bool] = Phrases(
    {"(together|in total|altogether|in all|combined|between them|all together)": True}
)
_ASKS: Phrases[bool] = Phrases({"how (many|much|old|tall|heavy|long)": True})
_DO: Phrases[bool] = Phrases({"(do|does|did|is|are|was|will)": True})
_OWN: Phrases[bool] = Phrases({"(have|own|weigh|earn|be)": True})


def read_relation(dates: DateTerms) -> Reading:
    """Read ``Sam has twice as many marbles as Kim. Kim has 17. How many does Sam have``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    holders = _Holders(expressions)
    holders.tell()
    while cursor.attempt(lambda _: holders.tell_more()):
        pass
    return solved(expressions, holders.answer())


class _Holders:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._cursor = expressions.cursor
        self._known: dict[str, Formula] = {}
        self._relations: dict[str, tuple[str, int, Formula]] = {}
        """By holder: whose amount it is made of, 1 and -1 for more and less, 0 for times."""
        self._thing = ""
        self._verb = ""

    def tell(self) -> bool:
        """Read a clause about one holder."""
        cursor = self._cursor
        name = self._name(_HAVE)
        verb = cursor.expect(*_HAVE)
        if (verb in _BE) != (self._verb in _BE) and self._verb:
            raise cursor.misread()
        self._verb = self._verb or verb
        if name in self._known or name in self._relations:
            raise cursor.misread()
        if (factor := cursor.attempt(_times)) is not None:
            _AS.expect(cursor)
            self._optional_thing()
            cursor.expect("as")
            self._relations[name] = (self._other(name), 0, factor)
            return True
        count = read_number(cursor)
        if count.fraction:
            raise cursor.misread()
        self._unit(verb)
        sign = _MORE.read(cursor)
        if sign is None:
            self._optional_thing()
            sign = _MORE.read(cursor)
        if sign is None:
            self._known[name] = count
            return True
        self._optional_thing()
        other = self._other(name) if cursor.accept("than") else self._only_other(name)
        self._relations[name] = (other, sign, count)
        return True

    def tell_more(self) -> bool:
        """Read a further clause."""
        read_joint(self._cursor)
        return self.tell()

    def _name(self, verbs: frozenset[str]) -> str:
        """Read ``Sam``, ``his sister``, ``the red box``."""
        cursor = self._cursor
        if cursor.at(*PRONOUNS) and cursor.at("i"):
            return cursor.take().text
        cursor.accept(*OWNERS)
        name: list[str] = []
        while cursor.here.kind is Kind.WORD and cursor.here.text not in verbs and len(name) < 3:
            if not is_name(cursor.here.text):
                break
            name.append(cursor.take().text)
        if not name:
            raise cursor.misread()
        return " ".join(name)

    def _other(self, name: str) -> str:
        cursor = self._cursor
        other = cursor.take().text if cursor.at("i", "me") else self._name(frozenset())
        other = "i" if other == "me" else other
        if other == name:
            raise cursor.misread()
        return other

    def _only_other(self, name: str) -> str:
        """Return who is meant by ``6 years younger`` alone: the one told of before."""
        others = [other for other in self._known if other != name]
        if len(others) != 1 or self._relations:
            raise self._cursor.misread()
        return others[0]

    def _unit(self, verb: str) -> None:
        if verb in _BE or verb in {"weighs", "weigh"}:
            _YEARS.read(self._cursor)

    def _optional_thing(self) -> None:
        thing = self._cursor.attempt(read_thing)
        if thing is None:
            return
        if self._thing and not is_same(self._thing, thing):
            raise self._cursor.misread()
        self._thing = self._thing or thing

    def answer(self) -> Formula:
        """Read the question, and return what is asked for."""
        cursor = self._cursor
        if not self._relations and len(self._known) < 2:
            raise cursor.misread()
        cursor.expect(".", ",", ";")
        cursor.accept("so", "and", "now", "then")
        _ASKS.expect(cursor)
        if self._verb not in _BE:
            self._optional_thing()
        _DO.expect(cursor)
        if cursor.accept("they", "both", "we"):
            cursor.accept("all", "both")
            _OWN.read(cursor)
            _TOGETHER.expect(cursor)
            return self._expressions.checked(self._sum)
        name = self._asked_for()
        _OWN.read(cursor)
        cursor.accept("now")
        return self._expressions.checked(lambda: self._value(name, 0))

    def _asked_for(self) -> str:
        """Read whose amount is asked for; a pronoun is the one that was told last."""
        cursor = self._cursor
        if (pronoun := cursor.accept("she", "he")) is not None:
            return self._meant_by(pronoun)
        name = self._name(frozenset({"have", "own", "weigh", "earn", "be"}))
        if name not in self._relations:
            raise cursor.misread()
        return name

    def _meant_by(self, pronoun: str) -> str:
        """Return whom ``she`` means, where only one of those who are told of can be meant."""
        meant = _WOMEN if pronoun == "she" else _MEN
        names = [name for name in self._relations if name in meant]
        if len(names) != 1 or any(name in meant for name in self._known):
            raise self._cursor.misread()
        return names[0]

    def _sum(self) -> Formula:
        names = [*self._known, *(name for name in self._relations if name not in self._known)]
        total = self._value(names[0], 0)
        for name in names[1:]:
            total = formula.plus(total, self._value(name, 0))
        return total

    def _value(self, name: str, depth: int) -> Formula:
        if name in self._known:
            return self._known[name]
        if name not in self._relations or depth > len(self._relations):
            raise self._cursor.misread()
        other, sign, by = self._relations[name]
        base = self._value(other, depth + 1)
        if sign == 0:
            return formula.times(by, base)
        return formula.plus(base, by) if sign > 0 else formula.minus(base, by)


def _times(cursor: Cursor) -> Formula:
    if (factor := _TIMES.read(cursor)) is not None:
        return factor
    count = read_number(cursor)
    cursor.expect("times")
    if count.quantity != PLAIN:
        raise cursor.misread()
    return count
