"""Word problems with a before and an after: ``I bought it for 400 and sold it for 460``.

Also prices that rose or fell, with the question before or behind: ``By what percent did the rent go
up if it rose from $1,200 to $1,290``.
"""

from dataclasses import dataclass

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import OWNERS, PRONOUNS
from app.adapters.providers.offline.reading.words.things import read_amount, read_thing, same_money

_HUNDRED = Formula("100")
_BOUGHT: Phrases[bool] = Phrases({"(buy|bought|buys|purchased|got)": True})
_SOLD: Phrases[bool] = Phrases(
    {"(sell|sold|sells|resold) (it|them|the thing|) (again|on|) (for|at)": True}
)
_GAIN: Phrases[bool] = Phrases(
    {
        "(what is|what's|what was|how much is|how much was) (my|the|his|her|their|our) (profit|"
        "gain)": True,
        "how much (profit|money|) (do|did|does) (i|we|you|he|she|they) (make|gain|earn)": True,
        "(what is|what's|what was|how much is|how much was) (my|the|his|her|their|our) loss": False,
        "how much (money|) (do|did|does) (i|we|you|he|she|they) lose": False,
    }
)
_PERCENT: Phrases[bool] = Phrases(
    {"(in|as a) (percent|percentage|%)": True, "in percent of the (price|cost)": True}
)
_PERCENT_GAIN: Phrases[bool] = Phrases(
    {
        "(what is|what's|what was) (my|the|his|her|their|our) (percentage|percent|%) (profit|gain)"
        " (percentage|)": True,
        "(what is|what's|what was) (my|the|his|her|their|our) (percentage|percent|%) loss": False,
    }
)
_ROSE: Phrases[bool] = Phrases(
    {
        "(rises|rose|rise|goes up|went up|go up|increases|increased|increase|grows|grew|grow)": (
            True
        ),
        "(climbs|climbed|jumped|gain|gained|has risen|has gone up|has increased)": True,
        "(falls|fell|fall|goes down|went down|go down|drops|dropped|drop|decreases|decreased)": (
            False
        ),
        "(decrease|sinks|sank|shrank|lose|lost|has fallen|has dropped|has gone down)": False,
    }
)
_ASKED: Phrases[bool] = Phrases(
    {
        "by (what|how many|which) (percent|percentage|per cent|%) (did|does|has|have)": True,
        "how (many percent|much in percent) (did|does|has)": True,
        "by how much (did|does|has)": False,
        "how much (did|does|has)": False,
    }
)
"""True where the answer is in percent."""


@dataclass(frozen=True, slots=True)
class _Change:
    before: Formula
    after: Formula
    rises: bool


def read_trade(dates: DateTerms) -> Reading:
    """Read a purchase and a sale, or a question about a rise with both of its ends."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    change, percent = cursor.first_of(_bought_and_sold, _asked_first)
    return solved(expressions, expressions.checked(lambda: _difference(change, percent=percent)))


def _difference(change: _Change, *, percent: bool) -> Formula:
    before, after = same_money(change.before, change.after)
    gap = formula.minus(after, before) if change.rises else formula.minus(before, after)
    if not percent:
        return gap
    return formula.times(formula.divided(gap, before), _HUNDRED)


def _bought_and_sold(cursor: Cursor) -> tuple[_Change, bool]:
    if not cursor.accept(*PRONOUNS):
        cursor.accept(*OWNERS)
        read_thing(cursor)
    _BOUGHT.expect(cursor)
    cursor.accept(*OWNERS)
    read_thing(cursor)
    cursor.expect("for", "at")
    before = read_amount(cursor)
    cursor.accept(",", ".")
    cursor.accept("and", "then")
    cursor.accept("then", "later")
    cursor.accept(*PRONOUNS)
    cursor.accept("later", "then")
    _SOLD.expect(cursor)
    after = read_amount(cursor)
    read_end(cursor)
    rises = _PERCENT_GAIN.read(cursor)
    if rises is not None:
        return _Change(before, after, rises), True
    rises = _GAIN.expect(cursor)
    return _Change(before, after, rises), _PERCENT.read(cursor) is not None


def _asked_first(cursor: Cursor) -> tuple[_Change, bool]:
    """``By what percent did the rent go up if it rose from $1,200 to $1,290``."""
    percent = _ASKED.expect(cursor)
    if not cursor.accept("it"):
        cursor.accept(*OWNERS)
        read_thing(cursor)
        if cursor.accept("of"):
            cursor.accept(*OWNERS)
            read_thing(cursor)
    rises = _ROSE.expect(cursor)
    if cursor.accept(",", "if", "when") is not None:
        cursor.accept("if", "when")
        cursor.expect("it", "they")
        if _ROSE.expect(cursor) is not rises:
            raise cursor.misread()
    cursor.expect("from")
    before = read_amount(cursor)
    cursor.expect("to")
    return _Change(before, read_amount(cursor), rises), percent
