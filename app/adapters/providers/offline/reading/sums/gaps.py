"""Questions that compare two numbers: ``how much more is 50 than 37``."""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.things import read_thing, same_money

_HUNDRED = Formula("100")
_MORE = "(more|larger|bigger|greater|higher)"
_LESS = "(less|smaller|lower|fewer)"
_HOW_MUCH: Phrases[bool] = Phrases(
    {
        f"(by|) how much {_MORE} (is|are)": True,
        f"(by|) how much {_LESS} (is|are)": False,
    }
)
_BY: Phrases[bool] = Phrases(
    {
        "by how much (is|does|are)": False,
        "by (what|how many|which) (percent|percentage|per cent|%) (is|are|does)": True,
        "how many percent (is|are)": True,
    }
)
_THAN: Phrases[bool] = Phrases(
    {
        f"({_MORE[1:-1]}) than": True,
        f"({_LESS[1:-1]}) than": False,
        "exceed": True,
        "above": True,
        "below": False,
    }
)
_GOES_INTO: Phrases[bool] = Phrases({"how (many times|often) (does|do|can|will)": True})
_INTO: Phrases[bool] = Phrases({"(go|fit|goes|fits) (in|into)": True})
_MOVES: Phrases[bool] = Phrases(
    {
        "(is|was) (raised|increased)": True,
        "(is|was) (reduced|lowered|cut|marked down)": False,
        "(rises|rise|rose|goes up|went up|increases|increased|grows|grew|climbs|climbed)": True,
        "(falls|fall|fell|goes down|went down|drops|dropped|decreases|decreased|sinks)": False,
    }
)
_CHANGE = "(increase|change|rise|growth|decrease|drop|fall|decline|reduction)"
_IN_PERCENT: Phrases[bool] = Phrases(
    {
        f"(what is|what's|how much is) (the|that|this|its) {_CHANGE} (in percent|in %)": True,
        f"(what is|what's|how much is) (the|that|this|its) {_CHANGE} as a percentage": True,
        f"(what is|what's) (the|its) (percent|percentage|%) {_CHANGE}": True,
        "by (what|how many|which) (percent|percentage|per cent|%) (does|did|has|is|was) "
        "(it|the price|that) (reduced|lowered|cut|raised|marked down|rise|fall|increase|decrease|"
        "drop|grow|go up|go down|change|changed|risen|fallen)": True,
    }
)


def read_gap(dates: DateTerms) -> Reading:
    """Read ``how much more is 50 than 37``, ``by what percentage is 120 greater than 100``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    more = _HOW_MUCH.read(cursor)
    percent = False
    if more is None:
        percent = _BY.expect(cursor)
    one = expressions.item()
    if more is None:
        more = _THAN.expect(cursor)
    else:
        cursor.expect("than")
    other = expressions.item()
    larger, smaller = (one, other) if more else (other, one)
    gap = expressions.checked(lambda: formula.minus(larger, smaller))
    if percent:
        gap = expressions.checked(lambda: formula.times(formula.divided(gap, other), _HUNDRED))
    return solved(expressions, gap)


def read_times_into(dates: DateTerms) -> Reading:
    """Read ``how many times does 7 go into 91``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    _GOES_INTO.expect(cursor)
    part = expressions.item()
    _INTO.expect(cursor)
    whole = expressions.item()
    return solved(expressions, expressions.checked(lambda: formula.divided(whole, part)))


def read_told_change(dates: DateTerms) -> Reading:
    """Read ``a price rises from 50 to 65; what is the percentage increase``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if", "when")
    cursor.accept("a", "an", "the", "my", "its")
    read_thing(cursor)
    if cursor.accept("of"):
        cursor.accept("a", "an", "the", "my")
        read_thing(cursor)
    rises = _MOVES.expect(cursor)
    cursor.expect("from")
    before = expressions.item()
    cursor.expect("to")
    before, after = same_money(before, expressions.item())
    read_end(cursor)
    _IN_PERCENT.expect(cursor)
    change = expressions.checked(
        lambda: formula.minus(after, before) if rises else formula.minus(before, after)
    )
    return solved(expressions, formula.times(formula.divided(change, before), _HUNDRED))
