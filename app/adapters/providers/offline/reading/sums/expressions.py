"""The grammar of arithmetic: signs, words and the phrases that name an operation.

The levels are those of school arithmetic, and words bind like the signs they stand for: ``5 plus 3
times 2`` is 11. A phrase that takes one operand takes the nearest: ``half of 10 plus 4`` is 9.
Where people would not agree, the question is refused: see ``Listing``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.lists import Lists
from app.adapters.providers.offline.reading.sums.measures import Measures
from app.adapters.providers.offline.reading.words import formula, operators, phrases
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.formula import (
    PERCENT,
    Binding,
    Formula,
    Listing,
    MixedQuantitiesError,
)
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.operators import Operator, opened
from app.adapters.providers.offline.reading.words.tokens import Kind

MAX_DEPTH = 25
"""Operands inside operands."""


class Following(Enum):
    """Which operators may follow an operand."""

    ALL = auto()
    """Signs and words."""
    TIGHT = auto()
    """Only signs without spaces around them, as in ``the sum of 2*3 and 4``."""


class Expressions:
    """Reads expressions from a cursor."""

    def __init__(self, dates: DateTerms) -> None:
        self.cursor = cursor = dates.cursor
        """Where the reading stands."""
        self.measures = Measures(dates)
        """The quantities that other tools have to find."""
        self._depth = 0
        self._lists = Lists(cursor, item=self.item, expression=self.expression)
        self._spoken_powers = 0
        self.spoken = False
        """True once an operation was named in words."""

    def expression(self, following: Following = Following.ALL) -> Formula:
        """Read sums of products."""
        left = self._product(following)
        while (rule := self._operator(operators.ADDITIVE, following, left)) is not None:
            if rule.swaps and not left.is_number:
                raise self.cursor.ambiguous("it is not clear which part is taken from which")
            left = self._sum(left, rule, self._product(following))
        return left

    def _sum(self, left: Formula, rule: Operator, right: Formula) -> Formula:
        known = operators.SURCHARGE if rule.sign == "+" else operators.DISCOUNT
        if rule.sign and right.quantity == PERCENT and known.read(self.cursor):
            return self.checked(lambda: formula.scaled(left, rule.sign, right))
        return opened(self.checked(lambda: rule.build(left, right)), right)

    def _product(self, following: Following) -> Formula:
        left, divides = self.operand(), False
        while (rule := self._factor_operator(following, left, divides=divides)) is not None:
            divides |= rule.sign == "/"
            left = self._combined(rule, left, self.operand())
        return left

    def _combined(self, rule: Operator, left: Formula, right: Formula) -> Formula:
        return opened(self.checked(lambda: rule.build(left, right)), right)

    def _factor_operator(
        self, following: Following, left: Formula, *, divides: bool
    ) -> Operator | None:
        rule = self._operator(operators.MULTIPLICATIVE, following, left)
        if rule is not None or not self._multiplies_silently():
            return rule
        if divides:
            raise self.cursor.ambiguous("a / b(c) can mean two things; write the multiplication")
        return operators.TIMES

    def _multiplies_silently(self) -> bool:
        """Tell whether a parenthesis follows directly, as in ``2(3 + 4)``."""
        before = self.cursor.before()
        number = before is not None and (before.kind is Kind.NUMBER or before.text == ")")
        return number and self.cursor.at("(") and self.cursor.here.glued

    def _operator(
        self, table: operators.Operators, following: Following, left: Formula
    ) -> Operator | None:
        """Take an operator of the table, if one comes next and may follow ``left``."""
        here, place = self.cursor.here, self.cursor.place()
        if following is Following.TIGHT:
            tight = here.kind is Kind.SIGN and here.glued and self.cursor.ahead().glued
            return table.read(self.cursor) if tight else None
        opens = left.listing is not Listing.CLOSED
        comma = opens and self.cursor.accept(",") is not None
        if comma:
            self.cursor.accept("all")
        rule = table.read(self.cursor)
        if rule is None:
            self.cursor.back(place)
            return None
        self.spoken |= here.kind is Kind.WORD
        unclear = left.listing not in {Listing.CLOSED, Listing.WHOLE}
        if unclear and not comma and left.listing not in rule.after:
            raise self.cursor.ambiguous(
                f"it is not clear whether '{here.text}' follows the last number alone or all that "
                "stands before it; use parentheses"
            )
        return rule

    def operand(self) -> Formula:
        """Read one number or phrase with its sign, its power and its marks."""
        with self._deeper():
            sign = self.cursor.accept("-", "+", "minus", "negative")
            if sign is None:
                return self._power()
            plain, spoken = not self.cursor.at("("), self._spoken_powers
            found = self.operand()
            if plain and self._spoken_powers > spoken and found.binding is Binding.POWER:
                raise self.cursor.ambiguous(
                    "a negative number to a power can mean two things; use parentheses"
                )
            return found if sign == "+" else opened(formula.negative(found), found)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        if self._depth >= MAX_DEPTH:
            raise self.cursor.ambiguous("it is nested too deeply")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _power(self) -> Formula:
        base = self._marked()
        if self.cursor.accept("^", "**"):
            return self._raised(base, self.operand())
        degree = None
        if self.cursor.at("to", "raised"):
            degree = self.cursor.attempt(operators.nth_power)
        if degree is None and operators.TO_THE_POWER.read(self.cursor):
            degree = self.operand()
        if degree is None:
            return base
        self._spoken_powers += 1
        return self._raised(base, degree)

    def _raised(self, base: Formula, degree: Formula) -> Formula:
        return opened(self.checked(lambda: formula.power(base, degree)), degree)

    def _marked(self) -> Formula:
        """Read a primary and the marks after it: ``5!``, ``17%``, ``12 squared``, ``17% of 80``."""
        found = self._primary()
        while True:
            mark = self._mark()
            if mark is not None:
                found = self._with_mark(mark, found)
            elif found.fraction and self._shares(found):
                whole = self.operand()
                return self._combined(operators.TIMES, found, whole)
            else:
                return found

    def _with_mark(self, mark: Callable[[Formula], Formula], of: Formula) -> Formula:
        if of.listing not in {Listing.CLOSED, Listing.WHOLE}:
            raise self.cursor.ambiguous("it is not clear what the last word follows")
        return self.checked(lambda: mark(of))

    def _shares(self, found: Formula) -> bool:
        """Take the ``of`` of ``17% of 80`` or the ``tip on`` of ``a 15% tip on 80``."""
        if self.cursor.accept("of"):
            return True
        if found.text == "1 / 2" and self.cursor.at("the", "my"):
            return self.cursor.accept("the") is not None
        place = self.cursor.place()
        if found.quantity == PERCENT and operators.SURCHARGE.read(self.cursor):
            if self.cursor.accept("on", "for", "of"):
                return True
            self.cursor.back(place)
        return False

    def _mark(self) -> Callable[[Formula], Formula] | None:
        if self.cursor.at("%") and self._is_remainder():
            return None
        if self.cursor.at("!"):
            if not self.cursor.here.glued:
                return None
            if self.cursor.ahead().text == "!":
                raise self.cursor.ambiguous("'!!' can mean two things")
            if self.spoken and self.cursor.ahead().kind is Kind.END:
                raise self.cursor.ambiguous("the last '!' may be a factorial or a full stop")
        spoken = self.cursor.at("squared", "cubed")
        mark = operators.MARKS.read(self.cursor)
        self._spoken_powers += spoken and mark is not None
        return mark

    def _is_remainder(self) -> bool:
        """Tell whether the ``%`` that comes next is the operator of ``10 % 3``."""
        sign, following = self.cursor.here, self.cursor.ahead()
        operand = following.kind is Kind.NUMBER or following.text == "("
        if operand and sign.glued and not following.glued:
            raise self.cursor.ambiguous("it is not clear what '%' means here; say percent or mod")
        return operand

    def _primary(self) -> Formula:
        if self.cursor.ahead().kind is Kind.NUMBER:
            self.cursor.accept("a", "an")  # a 20% tip
        if self.cursor.here.kind is Kind.NUMBER:
            return self.checked(lambda: read_number(self.cursor))
        if self.cursor.accept("("):
            found = self.expression()
            self.cursor.expect(")")
            return replace(found, listing=Listing.CLOSED, fraction=False, splittable=False)
        if (measure := self.cursor.attempt(self.measures.read)) is not None:
            return measure
        if (phrase := self.cursor.attempt(_phrase)) is not None:
            self.spoken = True
            return self.checked(lambda: phrase(self))
        if (degree := self.cursor.attempt(operators.nth_root)) is not None:
            of = self.operand()
            return opened(self.checked(lambda: formula.call("root", of, degree)), of)
        constant = operators.CONSTANTS.read(self.cursor)
        return constant or self.checked(lambda: read_number(self.cursor))

    def checked(self, build: Callable[[], Formula]) -> Formula:
        """Build a formula; quantities that do not go together make the question ambiguous."""
        try:
            return build()
        except MixedQuantitiesError as mixed:
            raise self.cursor.ambiguous(str(mixed)) from None

    def item(self) -> Formula:
        """Read one item of a list: an operand, with signs only where they stick to it."""
        return self.expression(Following.TIGHT)

    def pair(self, *separators: str) -> tuple[Formula, Formula]:
        """Read two items with a word between them."""
        return self._lists.pair(*separators)

    def items(self, *, splits_matter: bool = True) -> tuple[list[Formula], bool]:
        """Read two or more items, and tell whether a parenthesis closes their list."""
        return self._lists.items(splits_matter=splits_matter)


def _phrase(cursor: Cursor) -> phrases.Phrase:
    cursor.accept("the")
    return phrases.PHRASES.expect(cursor)
