"""Word problems about an amount that grows and shrinks: ``Anna has 24 sweets and eats 3``.

There is one holder and one kind of thing, or an amount of money. Each clause changes what there is
by a number or by a share of it; then the question asks what there is now. A clause about anybody
or anything else is not understood, and with it the question.
"""

from collections.abc import Callable

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.spans import (
    Span,
    in_span,
    read_per,
    read_span_of_time,
)
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import (
    OWNERS,
    pass_place,
    read_holder,
    read_joint,
    same_holder,
)
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.things import (
    is_same,
    read_thing,
    same_money,
    words,
)

_HAVE = words(
    "has have had owns own owned holds hold held contains contain contained carries carry carried "
    "keeps kept bakes baked makes made picks picked collects collected buys bought gets got "
    "receives received catches caught"
)
_GAIN = words(
    "gets got get buys bought buy finds found find receives received receive wins won win picks "
    "picked pick collects collected collect bakes baked bake makes made make adds added add earns "
    "earned earn gains gained gain catches caught catch borrows borrowed borrow deposits deposited"
)
_LOSE = words(
    "gives gave give eats ate eat loses lost lose sells sold sell uses used use spends spent spend "
    "drinks drank drink breaks broke break donates donated donate throws threw throw drops dropped "
    "leaks leaked pays paid pay reads withdraws withdrew withdraw burns burned removes removed"
)
_BUY = frozenset({"buy", "buys", "bought"})
_COMES: Phrases[int] = Phrases(
    {
        "(get on|gets on|got on|arrive|arrives|arrived|join|joins|joined|board|boarded|come in)": 1,
        "(come|came|enter|entered|are added|were added|is added|was added|move in|moved in)": 1,
        "(get off|gets off|got off|leave|leaves|left|go home|went home|fly away|flew away)": -1,
        "(die|dies|died|break|broke|drop out|dropped out|are sold|were sold|are eaten)": -1,
        "(were eaten|are rotten|were rotten|are broken|were broken|are taken|were taken)": -1,
        "(are removed|were removed|is removed|was removed|are used|were used|melt|melted)": -1,
        "(are lost|were lost|are given away|were given away|are absent|were absent)": -1,
    }
)
_THERE: Phrases[bool] = Phrases({"there (are|were|is|was)": True})
_AWAY = ("away", "up", "out")
_GIVES: Phrases[bool] = Phrases(
    {"(gives|gave|sends|sent|brings|brought|hands) (him|her|me|them|us|it)": True}
)
_THEM: Phrases[bool] = Phrases({"of (them|it|these|those|that|his|her|my|the)": True})
_ASKED: Phrases[bool] = Phrases({"how (many|much)": True})
_DO: Phrases[bool] = Phrases({"(do|does|did|will|would)": True})
_ARE: Phrases[bool] = Phrases(
    {
        "(are|is|were|was|will be) (there|left|still there|still left|still)": True,
        "(remain|remains|are|is|have remained|has remained)": True,
    }
)
_HAVE_NOW: Phrases[bool] = Phrases(
    {"(have|own|hold|contain|keep|still have) (got|)": True, "be (left|there)": True}
)
_LEFT: Phrases[bool] = Phrases(
    {
        "(left|remaining|left over|remain)": True,
        "(now|then|at the end|in the end|after that)": False,
    }
)
_WHAT_LEFT: Phrases[bool] = Phrases(
    {"(what|how much|how many) (is|are|remains|remain) (left|)": True}
)


def read_ledger(dates: DateTerms) -> Reading:
    """Read ``I had $50 and spent $12.35 on lunch. How much is left``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    ledger = _Ledger(expressions)
    ledger.open()
    ledger.change()
    while cursor.attempt(lambda _: ledger.change()):
        pass
    ledger.ask()
    return solved(expressions, ledger.balance())


class _Ledger:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._cursor = expressions.cursor
        self._holder = ""
        self._thing = ""
        self._changes: list[tuple[int, Formula, bool]] = []
        """Sign, amount, and whether it is a share of what there is."""
        self._start = Formula("0")
        self._sign = 0
        self._others = False
        """True if somebody else was named, whom a pronoun might mean."""
        self._per: Span | None = None
        """The time that every change is told for, such as an hour."""
        self._during: tuple[Formula, Span] | None = None

    def open(self) -> None:
        """Read what there is in the beginning."""
        cursor = self._cursor
        if not _THERE.read(cursor):
            self._holder = read_holder(cursor, _HAVE | {"holding", "containing", "with"})
            if not cursor.accept(*_HAVE):
                cursor.expect("holding", "containing", "with")
        self._start, self._thing = self._counted()
        pass_place(cursor, "in", "on", "at", "from")

    def _counted(self) -> tuple[Formula, str]:
        """Read ``24 sweets`` or ``$50``."""
        amount = read_number(self._cursor)
        if amount.fraction:
            raise self._cursor.misread()
        if amount.quantity != PLAIN:
            return amount, ""
        return amount, read_thing(self._cursor)

    def change(self) -> bool:
        """Read a clause that changes what there is."""
        if self._changes or self._cursor.at(",", ".", ";", "and"):
            read_joint(self._cursor)
        elif self._cursor.here.text not in _LOSE | _GAIN:
            raise self._cursor.misread()
        self._cursor.first_of(*self._kinds())
        return True

    def _kinds(self) -> tuple[Callable[[Cursor], bool], ...]:
        return (self._given, self._done, self._happened, self._went_on, self._bought)

    def _given(self, cursor: Cursor) -> bool:
        """``His mother gives him 5 more``."""
        read_holder(cursor, words("gives gave sends sent brings brought hands"))
        _GIVES.expect(cursor)
        self._others = True
        return self._by(1)

    def _done(self, cursor: Cursor) -> bool:
        """``She eats 3 of them``, ``and gave a third of them to Ben``."""
        if cursor.here.text not in _GAIN | _LOSE:
            named = read_holder(cursor, _GAIN | _LOSE)
            if not same_holder(self._holder, named):
                raise cursor.misread()
        verb = cursor.take().text
        if verb not in _GAIN | _LOSE:
            raise cursor.misread()
        if not self._thing and verb in _BUY:
            self._sign = 0
            return self._bought(cursor)
        cursor.accept(*_AWAY)
        return self._by(1 if verb in _GAIN else -1)

    def _bought(self, cursor: Cursor) -> bool:
        """``buys a book for $8.90``, ``and a hat for $10``: money goes."""
        if self._thing or self._sign:
            raise cursor.misread()
        cursor.accept(*OWNERS)
        read_thing(cursor)
        cursor.expect("for", "at", "costing")
        self._add(-1, read_number(cursor), share=False)
        return True

    def _happened(self, cursor: Cursor) -> bool:
        """``12 more get on``, ``a third of them are rotten``."""
        self._only_without_time()
        amount, share = self._amount()
        sign = _COMES.expect(cursor)
        self._add(sign, amount, share=share)
        pass_place(cursor, "at", "in", "from", "on")
        return True

    def _went_on(self, cursor: Cursor) -> bool:
        """``and $8.90 on a book``, after a clause whose verb is meant again."""
        if not self._sign:
            raise cursor.misread()
        self._only_without_time()
        amount, share = self._amount()
        cursor.expect("on", "for", "to")
        cursor.accept(*OWNERS)
        read_thing(cursor)
        self._add(self._sign, amount, share=share)
        return True

    def _only_without_time(self) -> None:
        if self._per is not None:
            raise self._cursor.misread()

    def _by(self, sign: int) -> bool:
        cursor = self._cursor
        amount, share = self._amount()
        per = cursor.attempt(read_per)
        if self._changes and per != self._per:
            raise cursor.ambiguous("the changes are not told for the same time")
        self._per = per
        self._sign = sign
        self._add(sign, amount, share=share)
        cursor.accept(*_AWAY)
        while pass_place(cursor):
            self._others = True
        if pass_place(cursor, "for"):
            pass
        return True

    def _add(self, sign: int, amount: Formula, *, share: bool) -> None:
        if share and (self._per or any(taken for _, _, taken in self._changes)):
            raise self._cursor.ambiguous("it is not clear what the second share is a share of")
        self._changes.append((sign, amount, share))

    def _amount(self) -> tuple[Formula, bool]:
        """Read a number of the things, or a share of what there is."""
        cursor = self._cursor
        cursor.accept("another")
        amount = read_number(cursor)
        percent = amount.quantity == PLAIN and not amount.fraction and cursor.accept("%", "percent")
        if percent:
            amount = formula.percentage(amount)
        if amount.fraction:
            _THEM.expect(cursor)
            if cursor.before() is not None and not self._is_pronoun():
                self._same(read_thing(cursor))
            return amount, True
        if amount.quantity != PLAIN:
            return amount, False
        cursor.accept("more", "other")
        if _THEM.read(cursor):
            if not self._is_pronoun():
                self._same(read_thing(cursor))
        elif (thing := cursor.attempt(read_thing)) is not None:
            self._same(thing)
        return amount, False

    def _is_pronoun(self) -> bool:
        last = self._cursor.before()
        return last is not None and last.text in {"them", "it", "these", "those", "that"}

    def _same(self, thing: str) -> None:
        if not self._thing or not is_same(self._thing, thing):
            raise self._cursor.misread()

    def ask(self) -> None:
        """Read ``how many does she have left``, ``how much is left after 12 hours``."""
        cursor = self._cursor
        cursor.expect(",", ".", ";")
        cursor.accept("so", "now", "then", "and")
        _ASKED.expect(cursor)
        if self._thing:
            thing = cursor.attempt(read_thing)
            if thing is not None:
                self._same(thing)
        else:
            cursor.accept("money")
        left = self._asked_of_holder() if _DO.read(cursor) else self._asked_of_things()
        while (more := _LEFT.read(cursor)) is not None or pass_place(cursor, "in", "on"):
            left = left or bool(more)
        if self._others and not left:
            raise cursor.ambiguous("it is not clear whose are asked for")
        if self._per is not None:
            cursor.expect("after", "in")
            self._during = read_span_of_time(cursor)

    def _asked_of_holder(self) -> bool:
        cursor = self._cursor
        named = read_holder(cursor, words("have own hold contain keep still be"))
        if named and not same_holder(self._holder, named):
            raise cursor.misread()
        _HAVE_NOW.expect(cursor)
        return bool(named) and bool(self._holder)

    def _asked_of_things(self) -> bool:
        _ARE.expect(self._cursor)
        last = self._cursor.before()
        return last is not None and last.text in {"left", "remain", "remains", "remained"}

    def balance(self) -> Formula:
        """Return what there is in the end."""
        return self._expressions.checked(self._worked_out)

    def _worked_out(self) -> Formula:
        found = self._start
        for sign, amount, share in self._changes:
            change = formula.times(found, amount) if share else amount
            if self._per is not None and self._during is not None:
                change = formula.times(change, in_span(*self._during, self._per))
            found, change = same_money(found, change)
            found = formula.plus(found, change) if sign > 0 else formula.minus(found, change)
        return found
