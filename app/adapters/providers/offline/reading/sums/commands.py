"""Arithmetic that is asked for as an action: ``add 5 to 7, then multiply by 2``."""

from collections.abc import Callable

from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.lists import THE_NUMBERS
from app.adapters.providers.offline.reading.words import formula, operators
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Binding, Formula
from app.adapters.providers.offline.reading.words.rounding import read_round_command, read_rounding

Command = Callable[[Expressions], Formula]
"""Reads what follows a verb."""
Step = Callable[[Expressions, Formula], Formula]
"""Reads what follows a verb that works on what the actions before it came to."""

Build = Callable[[Formula, Formula], Formula]


def read_command(expressions: Expressions) -> Formula:
    """Read one action with all that it is done to."""
    command = COMMANDS.expect(expressions.cursor)
    expressions.spoken = True
    return expressions.checked(lambda: command(expressions))


def read_steps(expressions: Expressions, first: Formula) -> Formula:
    """Read the actions that follow: ``, then divide by 2 and add 1``."""
    while (step := expressions.cursor.attempt(_step)) is not None:
        first = _follow(expressions, step, first)
    return first


def _follow(expressions: Expressions, step: Step, first: Formula) -> Formula:
    return expressions.checked(lambda: step(expressions, first))


def _step(cursor: Cursor) -> Step:
    joined = cursor.accept(",", ".", ";") is not None
    joined |= cursor.accept("and") is not None
    then = _THEN.read(cursor) is not None
    if not joined and not then:
        raise cursor.misread()
    found = STEPS.read(cursor)
    if found is not None:
        return found
    # A comma alone leaves open what a product would be of; for a sum it makes no difference.
    operator = operators.ADDITIVE.read(cursor)
    if operator is None and then:
        operator = operators.MULTIPLICATIVE.read(cursor)
    if operator is None or operator.swaps:
        raise cursor.misread()
    return _continued(operator.build)


_THEN: Phrases[bool] = Phrases({"(then|next|after that|afterwards|finally|and then)": True})
_IT: Phrases[bool] = Phrases(
    {
        "(it|that|this|the result|the answer|the total|the sum)": True,
        "(what is left|what's left|what remains|the rest|the remainder)": True,
        "(what you get|what you have|the number you get)": True,
    }
)


def _add(expressions: Expressions) -> Formula:
    """``add 5 to 7``, ``add 5, 7 and 9``, ``add 8% tax to 50``."""
    cursor = expressions.cursor
    cursor.accept("together")
    THE_NUMBERS.read(cursor)
    place = cursor.place()
    added = expressions.item()
    operators.SURCHARGE.read(cursor)
    if cursor.accept("to"):
        return operators.increased(expressions.item(), added)
    cursor.back(place)
    items, _ = expressions.items(splits_matter=False)
    cursor.accept("together", "up")
    return formula.call("sum", *items, plain=False)


def _subtract(expressions: Expressions) -> Formula:
    """``subtract 3 from 10``, ``take 3 away from 10``."""
    taken = expressions.expression()
    expressions.cursor.accept("away")
    expressions.cursor.expect("from")
    return operators.decreased(expressions.item(), taken)


def _take(expressions: Expressions) -> Formula:
    """``take 3 from 10``, ``take 20% off 50``, or just ``take 10``, before other actions."""
    cursor, place = expressions.cursor, expressions.cursor.place()
    taken = expressions.expression()
    if cursor.at("from", "away"):
        cursor.back(place)
        return _subtract(expressions)
    return taken


def _multiply(expressions: Expressions) -> Formula:
    """``multiply 6 by 7``, ``multiply 2, 3 and 4``."""
    cursor, place = expressions.cursor, expressions.cursor.place()
    found = expressions.expression()
    if not cursor.at("by", "with"):
        cursor.back(place)
        items, _ = expressions.items()
        cursor.accept("together")
        return formula.call("product", *items)
    while cursor.accept("by", "with"):
        found = formula.times(found, expressions.item())
    return found


def _by(build: Build) -> Command:
    """``divide 100 by 8``, ``increase 250 by 12%``."""

    def read(expressions: Expressions) -> Formula:
        first = expressions.expression()
        expressions.cursor.expect("by")
        return build(first, expressions.item())

    return read


def _raise(expressions: Expressions) -> Formula:
    """``raise 2 to the power of 10``, ``raise 50 by 10%``."""
    first = expressions.expression()
    if expressions.cursor.accept("by"):
        return operators.increased(first, expressions.item())
    if first.binding is not Binding.POWER:
        raise expressions.cursor.misread()
    return first


def _simple(build: Callable[[Formula], Formula]) -> Command:
    """``square 12``, ``halve 37``."""
    return lambda expressions: build(expressions.item())


def _squared(base: Formula) -> Formula:
    return formula.power(base, operators.TWO)


def _cubed(base: Formula) -> Formula:
    return formula.power(base, operators.THREE)


def _halved(of: Formula) -> Formula:
    return formula.divided(of, operators.TWO)


def _doubled(of: Formula) -> Formula:
    return formula.times(of, operators.TWO)


def _tripled(of: Formula) -> Formula:
    return formula.times(of, operators.THREE)


def _continued(build: Build, *joining: str) -> Step:
    """``multiply it by 2``, ``add 5 to it``."""

    def read(expressions: Expressions, first: Formula) -> Formula:
        if "by" in joining:
            _IT.read(expressions.cursor)
            expressions.cursor.expect(*joining)
            return build(first, expressions.item())
        other = expressions.item()
        if joining and expressions.cursor.accept(*joining):
            _IT.expect(expressions.cursor)
        return build(first, other)

    return read


def _simply(build: Callable[[Formula], Formula]) -> Step:
    """``double it``, ``square the result``."""

    def read(expressions: Expressions, first: Formula) -> Formula:
        _IT.read(expressions.cursor)
        return build(first)

    return read


def _rooted(expressions: Expressions, first: Formula) -> Formula:
    if expressions.cursor.accept("of"):
        _IT.expect(expressions.cursor)
    return formula.call("sqrt", first)


def _rounded(expressions: Expressions, first: Formula) -> Formula:
    _IT.read(expressions.cursor)
    return read_rounding(expressions.cursor)(first)


COMMANDS: Phrases[Command] = Phrases(
    {
        "(add|adding|add up|adding up|sum up|total)": _add,
        "(subtract|subtracting|deduct|deducting|take away)": _subtract,
        "(take|taking|start with|begin with)": _take,
        "(multiply|multiplying)": _multiply,
        "(divide|dividing)": _by(formula.divided),
        "(increase|increasing)": _by(operators.increased),
        "(decrease|decreasing|reduce|reducing|lower|lowering|cut)": _by(operators.decreased),
        "(raise|raising)": _raise,
        "(square|squaring)": _simple(_squared),
        "(cube|cubing)": _simple(_cubed),
        "(halve|halving)": _simple(_halved),
        "doubling": _simple(_doubled),
        "tripling": _simple(_tripled),
        "(round|rounding)": read_round_command,
    }
)
STEPS: Phrases[Step] = Phrases(
    {
        "(add|adding)": _continued(operators.increased, "to"),
        "(subtract|subtracting|deduct|take away)": _continued(operators.decreased, "from"),
        "(multiply|multiplying)": _continued(formula.times, "by", "with"),
        "(divide|dividing)": _continued(formula.divided, "by"),
        "(increase|raise)": _continued(operators.increased, "by"),
        "(decrease|reduce|lower)": _continued(operators.decreased, "by"),
        "(square|squaring)": _simply(_squared),
        "(cube|cubing)": _simply(_cubed),
        "(halve|halving)": _simply(_halved),
        "(double|doubling)": _simply(_doubled),
        "(triple|tripling)": _simply(_tripled),
        "(take|find) (the|its) square root": _rooted,
        "round": _rounded,
    }
)
