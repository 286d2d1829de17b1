"""Word problems about interest: ``Simple interest on 2,000 euros at 3.5% for 4 years``.

What is told (the amount, the rate of a year, the years) may stand in any order. Whether interest
bears interest must be said, by ``simple`` or by ``compound``, where it makes a difference.
"""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.spans import in_span, read_span_of_time
from app.adapters.providers.offline.reading.stories.bills import read_percent
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Binding, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number

_YEAR = ("year", 12)
_KIND: Phrases[bool] = Phrases({"simple": False, "(compound|compounded|compounding)": True})
_YEARLY: Phrases[int] = Phrases(
    {
        "(annually|yearly|a year|per year|per annum|every year|each year|once a year)": 1,
        "(semi - annually|semiannually|half - yearly|twice a year)": 2,
        "(quarterly|every quarter|each quarter)": 4,
        "(monthly|every month|each month)": 12,
    }
)
_INTEREST: Phrases[bool] = Phrases({"(the|) interest (rate|)": True})
_WANTS_INTEREST: Phrases[bool] = Phrases(
    {
        "how much (simple|compound|) interest (do|does|will|would|did|is) (i|we|you|it|he|she|"
        "they|) (earn|get|pay|receive|owe|earned|paid|due|)": True,
        "(what is|what's|calculate|find|compute|how much is) (the|) (simple|compound|) interest": (
            True
        ),
    }
)
_WANTS_ALL: Phrases[bool] = Phrases(
    {
        "how much (money|) (do|does|will|would|is|are) (i|we|you|it|he|she|they|there) (have|be|be "
        "worth|get back|owe|in the account|in my account|)": True,
        "(what is|what's|what will be|what will) (the|my) (balance|final amount|total amount|total|"
        "amount|value|final value) (be|)": True,
        "what (is|will|would) (it|that|the money) (be|) worth": True,
        "what do i (have|get back)": True,
    }
)
_FILLERS: Phrases[bool] = Phrases(
    {
        "(i|we|you|he|she|someone) (put|invest|invested|deposit|deposited|borrow|borrowed|lend|"
        "lent|save|saved)": True,
        "(in|into|to) (an|a|my|the) (savings|bank|) account": True,
        "(on|at|with|of|for|over|after|in|from|a|an|the|is|which|that|and|if|,|.|:)": True,
        "(pays|earns|paying|earning|bears|bearing|yields)": True,
        "(annual|yearly) (interest|) (rate|) (of|)": True,
        "(a|the) (loan|deposit|principal|sum|investment|capital) (of|)": True,
        "(rate|rate of)": True,
        "(earned|at the end|in total|by then|be)": True,
    }
)


def read_interest(dates: DateTerms) -> Reading:
    """Read an amount, a rate and a time, and what is asked of them."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    facts = _Facts(cursor)
    while cursor.attempt(lambda _: facts.read()):
        pass
    return solved(expressions, expressions.checked(facts.result))


class _Facts:
    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._amount: Formula | None = None
        self._rate: Formula | None = None
        self._years: Formula | None = None
        self._compound: bool | None = None
        self._yearly = 1
        self._asks: set[bool] = set()
        """True for the amount with its interest, False for the interest alone."""

    def read(self) -> bool:
        """Read one thing that is told or asked."""
        cursor = self._cursor
        return cursor.first_of(
            lambda _: self._question(),
            lambda _: self._read_rate(),
            lambda _: self._read_time(),
            lambda _: self._read_amount(),
            lambda _: self._read_kind(),
            lambda at: _FILLERS.expect(at),
        )

    def _question(self) -> bool:
        started = self._cursor.place()
        if _WANTS_INTEREST.read(self._cursor):
            asks = False
            self._kind_between(started)
        else:
            asks = _WANTS_ALL.expect(self._cursor)
        self._asks.add(asks)
        return True

    def _kind_between(self, started: int) -> None:
        """Take up a ``simple`` or ``compound`` that stood inside the question."""
        read = self._cursor.texts[started : self._cursor.place()]
        if {"simple", "compound"} & set(read):
            self._settle("compound" in read)

    def _settle(self, compound: bool) -> None:
        if self._compound not in {None, compound}:
            raise self._cursor.ambiguous("interest is either simple or compound")
        self._compound = compound

    def _read_kind(self) -> bool:
        kind = _KIND.read(self._cursor)
        if kind is None:
            _INTEREST.expect(self._cursor)
            if self._rate is None and self._compound is not None:
                self._asks.add(False)
            return True
        self._settle(kind)
        self._yearly = _YEARLY.read(self._cursor) or self._yearly
        return True

    def _read_rate(self) -> bool:
        self._once(self._rate)
        self._rate = read_percent(self._cursor)
        yearly = _YEARLY.read(self._cursor)
        if yearly not in {None, 1}:
            raise self._cursor.ambiguous("a rate is told for a year")
        return True

    def _read_time(self) -> bool:
        self._once(self._years)
        count, span = read_span_of_time(self._cursor)
        self._years = in_span(count, span, _YEAR)
        return True

    def _read_amount(self) -> bool:
        self._once(self._amount)
        self._amount = read_number(self._cursor)
        if self._amount.fraction:
            raise self._cursor.misread()
        return True

    def _once(self, known: Formula | None) -> None:
        if known is not None:
            raise self._cursor.misread()

    def result(self) -> Formula:
        """Return what is asked for."""
        amount, rate, years = self._amount, self._rate, self._years
        if amount is None or rate is None or years is None:
            raise self._cursor.misread()
        wants_all = True in self._asks
        if not self._asks:
            raise self._cursor.misread()
        if self._compound is None:
            if years.text != "1":
                raise self._cursor.ambiguous("it does not say whether interest is compounded")
            self._compound = False
        if not self._compound:
            gained = formula.times(formula.times(amount, rate), years)
            return formula.plus(amount, gained) if wants_all else gained
        grown = formula.times(amount, self._growth(rate, years))
        return grown if wants_all else formula.minus(grown, amount)

    def _growth(self, rate: Formula, years: Formula) -> Formula:
        if self._yearly > 1:
            times = Formula(str(self._yearly))
            rate, years = formula.divided(rate, times), formula.times(years, times)
        factor = Formula(f"1 + {rate.inside(Binding.PRODUCT)}", Binding.SUM)
        return formula.power(factor, years)
