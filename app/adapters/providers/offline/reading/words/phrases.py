"""The phrases that name an operation before its operands, such as ``the square root of``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula, Listing
from app.adapters.providers.offline.reading.words.operators import THREE, TWO, opened


class Reader(Protocol):
    """What the phrases below need of the grammar."""

    @property
    def cursor(self) -> Cursor:
        """Where the reading stands."""
        ...

    def operand(self) -> Formula:
        """Read the nearest operand."""
        ...

    def item(self) -> Formula:
        """Read one item of a list."""
        ...

    def pair(self, *separators: str) -> tuple[Formula, Formula]:
        """Read two items."""
        ...

    def items(self, *, splits_matter: bool = True) -> tuple[list[Formula], bool]:
        """Read two or more items, and whether their list is closed by a parenthesis."""
        ...


Phrase = Callable[[Reader], Formula]
"""Reads what follows the words that name an operation."""


def _of_one(build: Callable[[Formula], Formula]) -> Phrase:
    def read(reader: Reader) -> Formula:
        reader.cursor.accept("of")
        of = reader.operand()
        return opened(build(of), of)

    return read


def _function(name: str, *, plain: bool = True) -> Phrase:
    return _of_one(lambda of: formula.call(name, of, plain=plain))


def _of_many(name: str, listing: Listing = Listing.OTHER, *, plain: bool = False) -> Phrase:
    def read(reader: Reader) -> Formula:
        reader.cursor.accept("of", "among", "between", "from")
        if name in _OF_A_RUN and (run := reader.cursor.attempt(_run)) is not None:
            return _OF_A_RUN[name](*run)
        items, closed = reader.items(splits_matter=listing is not Listing.SUM)
        found = formula.call(name, *items, plain=plain)
        return found if closed else replace(found, listing=listing)

    return read


_NUMBERS: Phrases[bool] = Phrases(
    {
        "(all|) (the|) (whole|natural|consecutive|) (numbers|integers) (from|between)": True,
        "(all|) (the|) (whole|natural|) (numbers|integers) (in|of) the range (from|)": True,
        "everything from": True,
    }
)


def _run(cursor: Cursor) -> tuple[int, int]:
    """Read ``the numbers from 1 to 50``; both ends are among them."""
    _NUMBERS.expect(cursor)
    between = cursor.texts[cursor.place() - 1] == "between"
    first = cursor.number()
    cursor.expect("and" if between else "to", "through")
    last = cursor.number()
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise cursor.misread()
    if between and not cursor.accept("inclusive"):
        raise cursor.ambiguous("'between' leaves open whether the ends count; say from and to")
    cursor.accept("inclusive")
    return int(first), int(last)


def _sum_of_run(first: int, last: int) -> Formula:
    return Formula(f"({first} + {last}) * {last - first + 1} / 2", formula.Binding.PRODUCT)


def _mean_of_run(first: int, last: int) -> Formula:
    return Formula(f"({first} + {last}) / 2", formula.Binding.PRODUCT)


_OF_A_RUN: Mapping[str, Callable[[int, int], Formula]] = {"sum": _sum_of_run, "mean": _mean_of_run}
"""A sum of neighbours is worked out from its ends, however many there are."""


def _range(reader: Reader) -> Formula:
    """Read the list of ``the range of 12, 5 and 22``: from the smallest to the largest."""
    reader.cursor.expect("of", "in")
    items, closed = reader.items()
    largest = formula.call("max", *items, plain=False)
    found = formula.minus(largest, formula.call("min", *items, plain=False))
    return found if closed else replace(found, listing=Listing.OTHER)


def _of_pair(build: Callable[[Formula, Formula], Formula], *separators: str) -> Phrase:
    def read(reader: Reader) -> Formula:
        if not reader.cursor.accept("between"):
            reader.cursor.expect("of")
        first, second = reader.pair(*separators)
        return replace(build(first, second), listing=Listing.OTHER)

    return read


def _difference(first: Formula, second: Formula) -> Formula:
    return formula.call("abs", formula.minus(first, second), plain=False)


def _multiple(factor: str) -> Phrase:
    return _of_one(lambda of: formula.times(Formula(factor), of))


def _division(reader: Reader) -> tuple[Formula, Formula]:
    """Read ``of 17 and 5``, ``when 17 is divided by 5``, ``of dividing 17 by 5``."""
    cursor = reader.cursor
    cursor.accept("obtained", "left")
    cursor.expect("of", "when", "after", "from", "if", "between")
    cursor.accept("you", "i", "we")
    verb = cursor.accept("dividing", "divide")
    first = reader.operand()
    if verb is not None:
        cursor.expect("by")
    elif not cursor.accept("and", "/"):
        cursor.accept("is")
        cursor.expect("divided")
        cursor.expect("by")
    return first, reader.operand()


def read_remainder(reader: Reader) -> Formula:
    """Read the rest of ``the remainder when 17 is divided by 5``."""
    first, second = _division(reader)
    return replace(formula.divided(first, second, "%"), listing=Listing.OTHER)


def _quotient(reader: Reader) -> Formula:
    first, second = _division(reader)
    whole = first.text.isdigit() and second.text.isdigit() and int(second.text) > 0
    if whole and int(first.text) % int(second.text):
        raise reader.cursor.ambiguous(
            "a quotient that is not whole can be meant with decimals or with a remainder; say "
            "divided by"
        )
    return replace(formula.divided(first, second), listing=Listing.OTHER)


def _logarithm(reader: Reader) -> Formula:
    """Read a logarithm whose base is named before or after its argument."""
    cursor = reader.cursor
    base = None
    if cursor.here.glued and cursor.here.text in {"2", "10"}:
        base = formula.number(cursor.take().text)
    elif _BASE.read(cursor):
        base = reader.item()
    cursor.accept("of")
    value = reader.operand()
    if base is None and _BASE.read(cursor):
        base = reader.item()
    if base is None:
        raise cursor.ambiguous("a logarithm needs its base: say natural log or log base 10")
    return formula.call("log", value, base)


_BASE: Phrases[bool] = Phrases({"(to|in|with|) (the|) base": True})


_LARGEST = "(largest|biggest|greatest|highest|maximum|max)"
_SMALLEST = "(smallest|lowest|least|minimum|min)"

PHRASES: Phrases[Phrase] = Phrases(
    {
        "(square root|sqrt|\u221a)": _function("sqrt"),
        "(cube root|cbrt)": _function("cbrt"),
        "(absolute value|abs)": _function("abs", plain=False),
        "factorial": _function("factorial"),
        "(natural log|natural logarithm|ln)": _function("ln"),
        "(common|decimal) (log|logarithm)": _function("log10"),
        "(log|logarithm)": _logarithm,
        "(exponential|exp)": _function("exp"),
        "floor": _function("floor", plain=False),
        "(ceiling|ceil)": _function("ceil", plain=False),
        "square of": _of_one(lambda of: formula.power(of, TWO)),
        "cube of": _of_one(lambda of: formula.power(of, THREE)),
        "(reciprocal|multiplicative inverse)": _of_one(
            lambda of: formula.divided(Formula("1"), of)
        ),
        "(twice|double)": _multiple("2"),
        "(thrice|triple|treble)": _multiple("3"),
        "quadruple": _multiple("4"),
        "(sum|total)": _of_many("sum", Listing.SUM),
        "product": _of_many("product", Listing.PRODUCT, plain=True),
        "(average|mean|arithmetic mean|avg)": _of_many("mean"),
        "median": _of_many("median"),
        "range": _range,
        f"{_LARGEST} (number|value|)": _of_many("max"),
        f"{_SMALLEST} (number|value|)": _of_many("min"),
        "(larger|bigger|greater|higher) (number|value|) of": _of_many("max"),
        "(smaller|lesser|lower) (number|value|) of": _of_many("min"),
        "(greatest|highest|largest) common (divisor|factor)": _of_many("gcd", plain=True),
        "(gcd|hcf|gcf)": _of_many("gcd", plain=True),
        "(least|lowest|smallest) common multiple": _of_many("lcm", plain=True),
        "lcm": _of_many("lcm", plain=True),
        "(positive|absolute|) difference": _of_pair(_difference, "and"),
        "quotient": _quotient,
        "ratio": _of_pair(formula.divided, "to", "and"),
        "remainder": read_remainder,
    }
)
