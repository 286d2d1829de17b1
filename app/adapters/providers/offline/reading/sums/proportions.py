"""Questions about shares: ``what percent of 80 is 20``, ``20 is 25% of what number``."""

from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.cursor import Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.numerals import read_number

_HUNDRED = Formula("100")

_WHAT_PERCENT: Phrases[bool] = Phrases(
    {
        "(what|which) (percent|percentage|%|per cent)": True,
        "how many (percent|per cent)": True,
        "what is the percentage": True,
    }
)
_PERCENT_SIGN: Phrases[bool] = Phrases({"(%|percent|per cent|pct)": True})
_IS: Phrases[bool] = Phrases({"(is|are|equals|makes|represents|does)": True})
_AS_PERCENT: Phrases[bool] = Phrases({"(as|in) (a|) (percent|percentage|%)": True})
_OF_WHAT: Phrases[bool] = Phrases({"of (what|which) (number|amount|value|)": True, "of what": True})
_CHANGE: Phrases[bool] = Phrases(
    {
        "(the|) (percent|percentage|%) (increase|change|growth|rise|gain)": True,
        "(the|) (percent|percentage|%) (decrease|drop|reduction|decline|loss|fall)": False,
    }
)


def read_proportion(expressions: Expressions) -> Formula:
    """Read a question about a share; what it opens with has been read already."""
    cursor = expressions.cursor
    rises = _CHANGE.read(cursor)
    if rises is not None:
        return expressions.checked(lambda: _change(expressions, rises=rises))
    if _WHAT_PERCENT.read(cursor):
        return expressions.checked(lambda: _percent_asked(expressions))
    share = cursor.attempt(lambda _: _share_of_what(expressions))
    if share is not None:
        _IS.expect(cursor)
        return expressions.checked(lambda: formula.divided(expressions.expression(), share))
    part = expressions.expression()
    return expressions.checked(lambda: _about(expressions, part))


def _percent_asked(expressions: Expressions) -> Formula:
    """``what percent of 80 is 20``, ``what percent is 20 of 80``."""
    cursor = expressions.cursor
    if cursor.accept("of"):
        whole = expressions.expression()
        _IS.expect(cursor)
        part = expressions.expression()
        cursor.accept("represent", "make")
    else:
        _IS.expect(cursor)
        part = expressions.expression()
        cursor.accept("out")
        cursor.expect("of")
        whole = expressions.expression()
    return _percent(part, whole)


def _about(expressions: Expressions, part: Formula) -> Formula:
    """``20 is what percent of 80``, ``20 is 25% of what``, ``20 as a percentage of 80``."""
    cursor = expressions.cursor
    if cursor.accept("out"):
        cursor.expect("of")
        whole = expressions.expression()
        _AS_PERCENT.expect(cursor)
        return _percent(part, whole)
    if not _AS_PERCENT.read(cursor):
        _IS.expect(cursor)
        if not _WHAT_PERCENT.read(cursor):
            return formula.divided(part, _share_of_what(expressions))
    cursor.expect("of")
    return _percent(part, expressions.expression())


def _share_of_what(expressions: Expressions) -> Formula:
    """``25% of what number``."""
    share = read_number(expressions.cursor)
    if share.quantity == PLAIN and _PERCENT_SIGN.read(expressions.cursor):
        share = formula.percentage(share)
    if not share.fraction:
        raise expressions.cursor.misread()
    _OF_WHAT.expect(expressions.cursor)
    return share


def _change(expressions: Expressions, *, rises: bool) -> Formula:
    """``from 50 to 60``."""
    cursor = expressions.cursor
    cursor.expect("from")
    before = expressions.item()
    cursor.expect("to")
    after = expressions.item()
    change = formula.minus(after, before) if rises else formula.minus(before, after)
    return formula.times(formula.divided(change, before), _HUNDRED)


def _percent(part: Formula, whole: Formula) -> Formula:
    return formula.times(formula.divided(part, whole), _HUNDRED)
