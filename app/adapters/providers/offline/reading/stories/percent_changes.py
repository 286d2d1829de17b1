"""Word problems in which an amount changes by percentages, one after the other.

``A laptop was $900. First it dropped 10%, then another 20%. What is the price now?`` Each
percentage is of what the ones before it left, as prices, wages and populations work. The question
asks for what comes out, for what is saved, or for the part of each of those who share it.
"""

from dataclasses import dataclass, field

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.stories.bills import read_named_share, read_percent
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.amounts import read_money
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import OWNERS, pass_place, read_joint
from app.adapters.providers.offline.reading.words.operators import DISCOUNT, SURCHARGE
from app.adapters.providers.offline.reading.words.things import (
    is_same,
    read_amount,
    read_count,
    read_thing,
)

_WAS: Phrases[bool] = Phrases(
    {
        "(is|was|are|were|cost|costs|came to|comes to|come to|amounts to|has|had)": True,
        "(sells for|sold for|is priced at|was priced at|used to cost|normally costs)": True,
        "(is|was) (marked|marked at|listed at|priced at)": True,
        "(stands at|stood at|weighs|weighed|is worth|was worth|earns|earned)": True,
    }
)
_BEFORE: Phrases[bool] = Phrases(
    {"(before|without|excluding) (tax|taxes|vat|sales tax|tip|the tip|discount|the discount)": True}
)
_THERE: Phrases[bool] = Phrases({"(there is|there's|there was|i have|i get|we get|with|at)": True})
_MOVES: Phrases[str] = Phrases(
    {
        "(rises|rose|rise|increases|increased|increase|goes up|went up|grows|grew|climbs) (by|)": (
            "+"
        ),
        "(climbed|jumps|jumped|gains|gained|has risen|has grown|has increased) (by|)": "+",
        "(is|are|was|were|has been|been) (increased|raised|marked up) by": "+",
        "(falls|fell|fall|drops|dropped|drop|decreases|decreased|decrease|goes down) (by|)": "-",
        "(went down|shrinks|shrank|loses|lost|sinks|sank|declined|has fallen) (by|)": "-",
        "(is|are|was|were|has been|been) (reduced|discounted|marked down|lowered|cut) by": "-",
    }
)
_AGAIN: Phrases[bool] = Phrases({"(by|) (another|a further|an additional|again by)": True})
_WHEN: Phrases[bool] = Phrases(
    {
        "(last|this|next|the next|the following|the first|the second) (year|month|week|day)": True,
        "(in|during) (the|a) (sale|year|first year|second year|next year|sales)": True,
        "(today|yesterday|recently|later|at first)": True,
    }
)
_ON_SALE: Phrases[bool] = Phrases({"on sale (for|at|with|) (a|)": True})
_SPLIT: Phrases[bool] = Phrases(
    {
        "(split|shared|divided) (equally|evenly|fairly|) (among|amongst|between|by)": True,
        "(we|they|the friends) (split|share|divide) (it|the bill|the total|this) (equally|evenly|) "
        "(among|between|by)": True,
    }
)
_NOUN = "(price|cost|bill|amount|total|sum|value|salary|rent|wage|fee|fare|weight|population)"
_TOTAL: Phrases[bool] = Phrases(
    {
        f"(what is|what's|how much is|what was|what will be|what would be) (the|my|our|its|his|her)"
        f" (new|final|total|sale|reduced|discounted|current|resulting|full|) {_NOUN}": True,
        "(how much|what) (do|did|does|will|would|must|should) (i|we|you|he|she|they) (have to|) "
        "(pay|earn|spend)": True,
        "(how much|what) (does|do|did|will|would) (it|they|this|that) (cost|weigh)": True,
        "(how much|what) is (it|that) (worth|)": True,
        "what (is|was|will be) the total (to pay|)": True,
    }
)
_SAVES: Phrases[bool] = Phrases(
    {
        "(how much|what) (money|) (do|does|would|will|can|could|did) (i|we|you|he|she|they) save": (
            True
        ),
        "how much is saved": True,
    }
)
_EACH: Phrases[bool] = Phrases(
    {
        "(how much|what) (does|must|should|will|would|did|do) (each|every) (one|person|friend|) "
        "(of them|of us|of the friends|) (have to|) (pay|owe|give)": True,
        "how much (is it|is that|is) (for each|per|each) (person|one|head|of them|of us|)": True,
        "(what is|what's) each (person's|one's|friend's) (share|part)": True,
    }
)
_NOW: Phrases[bool] = Phrases(
    {
        "(now|then|today|in the end|at the end|in total|altogether|in all|after that)": True,
        "(after|with|including) (tax|taxes|the tax|vat|the discount|the tip|both discounts)": True,
        "(live there|are there|there|does it have|are there now|do they have)": True,
    }
)


@dataclass(slots=True)
class _Story:
    """An amount, and what happens to it."""

    base: Formula = field(default_factory=lambda: Formula("0"))
    name: str = ""
    """What has the amount: ``laptop``, ``rent``."""
    thing: str = ""
    """What there are so many of."""
    moves: list[tuple[str, Formula]] = field(default_factory=list)
    surcharges: set[str] = field(default_factory=set)
    """The names of what is added, of which two could each be of the amount or of both."""
    people: Formula | None = None


def read_percent_changes(dates: DateTerms) -> Reading:
    """Read an amount, its changes by percentages, and a question about what comes out."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    teller = _Teller(cursor)
    cursor.first_of(lambda _: teller.share_first(), lambda _: teller.amount_first())
    while cursor.attempt(lambda _: teller.move()):
        pass
    cursor.attempt(lambda _: teller.split())
    cursor.expect(",", ".", ";")
    cursor.accept("so", "now", "and", "then")
    return solved(expressions, expressions.checked(teller.asked()))


class _Teller:
    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._story = _Story()

    def share_first(self) -> bool:
        """``There's a 30% discount on a $250 bike``."""
        cursor, self._story = self._cursor, _Story()
        _THERE.expect(cursor)
        cursor.accept("a", "an")
        self._named_share()
        cursor.expect("on", "for", "off")
        cursor.accept(*OWNERS)
        self._amount_of_thing()
        return True

    def amount_first(self) -> bool:
        """``A laptop was $900``, ``a town of 12,000 people``, ``a $80 coat``."""
        cursor, self._story = self._cursor, _Story()
        cursor.accept(*OWNERS)
        if cursor.attempt(lambda _: self._amount_of_thing()) is None:
            self._thing_of_amount()
        self._first_move()
        return True

    def _amount_of_thing(self) -> bool:
        """``$250 bike``."""
        self._story.base = read_money(self._cursor)
        self._story.name = read_thing(self._cursor)
        return True

    def _thing_of_amount(self) -> None:
        cursor = self._cursor
        self._story.name = read_thing(cursor)
        pass_place(cursor, "of", "in", "for")
        _BEFORE.read(cursor)
        if not cursor.accept("of", "with"):
            _WAS.expect(cursor)
        self._story.base = read_amount(cursor)
        self._story.thing = cursor.attempt(read_thing) or ""

    def _first_move(self) -> None:
        """Read a change that follows directly: ``a town of 12,000 people grew by 4%``."""
        self._cursor.attempt(lambda _: self._moved())

    def move(self) -> bool:
        """Read a further change: ``, then another 20%``, ``and VAT is 20%``."""
        cursor = self._cursor
        if not cursor.at("with", "plus", "is", "was"):
            read_joint(cursor)
        cursor.accept("first")
        cursor.accept(",")
        cursor.first_of(
            lambda _: self._moved(),
            lambda _: self._again(),
            lambda _: self._surcharge_is(),
            lambda _: self._with_share(),
        )
        _WHEN.read(cursor)
        return True

    def _moved(self) -> bool:
        """``it drops by 10%``, ``the rent rises 4%``, ``drops 10%``."""
        cursor = self._cursor
        if not cursor.accept("it", "they", "this"):
            cursor.attempt(lambda _: self._named())
        sign = _MOVES.expect(cursor)
        self._story.moves.append((sign, read_percent(cursor)))
        _WHEN.read(cursor)
        return True

    def _named(self) -> bool:
        """Read ``the rent`` where the rent was told of, or ``the price`` of whatever it was."""
        cursor = self._cursor
        cursor.expect("the", "its", "my", "their", "this", "his", "her", "our")
        named = read_thing(cursor)
        if named not in {"price", "value"} and not is_same(self._story.name, named):
            raise cursor.misread()
        return True

    def _again(self) -> bool:
        """``another 20%``, ``by 5%``, after a change whose verb is meant again."""
        if not self._story.moves:
            raise self._cursor.misread()
        if not _AGAIN.read(self._cursor):
            self._cursor.expect("by")
        share = read_percent(self._cursor)
        self._cursor.accept("off")
        self._story.moves.append((self._story.moves[-1][0], share))
        return True

    def _surcharge_is(self) -> bool:
        """``VAT is 20%``, ``there is a discount of 20%``."""
        cursor = self._cursor
        cursor.accept("if")
        _THERE.read(cursor)
        cursor.accept("the", "a", "an")
        name = cursor.here.text
        sign = "+" if SURCHARGE.read(cursor) else "-" if DISCOUNT.read(cursor) else ""
        if not sign:
            raise cursor.misread()
        cursor.expect("is", "of", "at", "was")
        self._surcharged(sign, name)
        self._story.moves.append((sign, read_percent(cursor)))
        return True

    def _with_share(self) -> bool:
        """``with a 15% tip``, ``there is a 20% discount``, ``is 25% off``."""
        cursor = self._cursor
        if not (_THERE.read(cursor) or _AGAIN.read(cursor)):
            cursor.accept("plus", "add", "including")
        cursor.accept("a", "an", "the")
        if cursor.accept("it"):
            cursor.expect("is", "was")
        cursor.accept("is", "are", "was")
        _ON_SALE.read(cursor)
        self._named_share()
        return True

    def _named_share(self) -> None:
        sign, share = read_named_share(self._cursor)
        last = self._cursor.before()
        self._surcharged(sign, "" if last is None else last.text)
        self._story.moves.append((sign, share))

    def _surcharged(self, sign: str, name: str) -> None:
        if sign == "+":
            self._story.surcharges.add(name)
        if len(self._story.surcharges) > 1:
            raise self._cursor.ambiguous("one percentage can be of the amount or of all before it")

    def split(self) -> bool:
        """Read ``, split evenly among 3 people``."""
        cursor = self._cursor
        cursor.accept(",", ".")
        cursor.accept("and")
        _SPLIT.expect(cursor)
        self._story.people = read_count(cursor)
        cursor.attempt(read_thing)
        cursor.accept("equally", "evenly")
        return True

    def asked(self) -> "_Build":
        """Read the question, and return what works it out."""
        cursor, story = self._cursor, self._story
        if not story.moves:
            raise cursor.misread()
        if story.people is not None:
            _EACH.expect(cursor)
            return _Build(story, each=True)
        if _SAVES.read(cursor):
            if {sign for sign, _ in story.moves} != {"-"}:
                raise cursor.misread()
            _NOW.read(cursor)
            return _Build(story, saved=True)
        if not _TOTAL.read(cursor):
            self._counted()
        while _NOW.read(cursor):
            pass
        return _Build(story)

    def _counted(self) -> None:
        """``how many people are there now``, ``what is the new rent``."""
        cursor, thing = self._cursor, self._story.thing
        cursor.expect("how")
        cursor.expect("many")
        if not thing or not is_same(thing, read_thing(cursor)):
            raise cursor.misread()


@dataclass(frozen=True, slots=True)
class _Build:
    """Works out what a story comes to."""

    story: _Story
    saved: bool = False
    each: bool = False

    def __call__(self) -> Formula:
        """Return what is asked for."""
        base, moves = self.story.base, self.story.moves
        if self.saved and len(moves) == 1:
            return formula.times(base, moves[0][1])
        found = base
        for sign, share in moves:
            found = formula.scaled(found, sign, share)
        if self.saved:
            return formula.minus(base, found)
        if self.each and self.story.people is not None:
            return formula.divided(found, self.story.people)
        return found
