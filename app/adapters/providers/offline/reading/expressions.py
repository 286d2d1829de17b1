"""The grammar of arithmetic: signs, words and the phrases that name an operation.

The levels are those of school arithmetic, and words bind like the signs they stand for: ``5 plus 3
times 2`` is 11. A phrase that takes one operand takes the nearest: ``half of 10 plus 4`` is 9.
Where people would not agree, the question is refused: see ``Listing``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto

from app.adapters.providers.offline.reading import formula, operations
from app.adapters.providers.offline.reading.cursor import Cursor
from app.adapters.providers.offline.reading.formula import (
    PERCENT,
    Binding,
    Formula,
    Listing,
    MixedQuantitiesError,
)
from app.adapters.providers.offline.reading.numerals import read_number
from app.adapters.providers.offline.reading.operations import Operator, opened
from app.adapters.providers.offline.reading.tokens import Kind

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

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        """Where the reading stands."""
        self._depth = 0
        self._lists = 0
        self._spoken_powers = 0

    def expression(self, following: Following = Following.ALL) -> Formula:
        """Read sums of products."""
        left = self._product(following)
        while (rule := self._operator(operations.ADDITIVE, following, left)) is not None:
            if rule.swaps and left.binding is Binding.SUM:
                raise self.cursor.ambiguous("it is not clear which part is taken from which")
            if self.cursor.ahead().kind is Kind.NUMBER:
                self.cursor.accept("a", "an")
            left = self._sum(left, rule, self._product(following))
        return left

    def _sum(self, left: Formula, rule: Operator, right: Formula) -> Formula:
        known = operations.SURCHARGE if rule.sign == "+" else operations.DISCOUNT
        if rule.sign and right.quantity == PERCENT and known.read(self.cursor):
            return self._checked(lambda: formula.scaled(left, rule.sign, right))
        return opened(self._checked(lambda: rule.build(left, right)), right)

    def _product(self, following: Following) -> Formula:
        left, divides = self.operand(), False
        while (rule := self._factor_operator(following, left, divides=divides)) is not None:
            divides |= rule.sign == "/"
            left = self._combined(rule, left, self.operand())
        return left

    def _combined(self, rule: Operator, left: Formula, right: Formula) -> Formula:
        return opened(self._checked(lambda: rule.build(left, right)), right)

    def _factor_operator(
        self, following: Following, left: Formula, *, divides: bool
    ) -> Operator | None:
        rule = self._operator(operations.MULTIPLICATIVE, following, left)
        if rule is not None or not self._multiplies_silently():
            return rule
        if divides:
            raise self.cursor.ambiguous("a / b(c) can mean two things; write the multiplication")
        return operations.TIMES

    def _multiplies_silently(self) -> bool:
        """Tell whether a parenthesis follows directly, as in ``2(3 + 4)``."""
        before = self.cursor.before()
        number = before is not None and (before.kind is Kind.NUMBER or before.text == ")")
        return number and self.cursor.at("(") and self.cursor.here.glued

    def _operator(
        self, table: operations.Operators, following: Following, left: Formula
    ) -> Operator | None:
        """Take an operator of the table, if one comes next and may follow ``left``."""
        here, place = self.cursor.here, self.cursor.place()
        if following is Following.TIGHT:
            tight = here.kind is Kind.SIGN and here.glued and self.cursor.ahead().glued
            return table.read(self.cursor) if tight else None
        opens = left.listing is not Listing.CLOSED
        comma = opens and self.cursor.accept(",") is not None
        rule = table.read(self.cursor)
        if rule is None:
            self.cursor.back(place)
        elif opens and not comma and left.listing not in rule.after:
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
        degree = self.cursor.attempt(operations.nth_power)
        if degree is None and operations.TO_THE_POWER.read(self.cursor):
            degree = self.operand()
        if degree is None:
            return base
        self._spoken_powers += 1
        return self._raised(base, degree)

    def _raised(self, base: Formula, degree: Formula) -> Formula:
        return opened(self._checked(lambda: formula.power(base, degree)), degree)

    def _marked(self) -> Formula:
        """Read a primary and the marks after it: ``5!``, ``17%``, ``12 squared``, ``17% of 80``."""
        found = self._primary()
        while True:
            mark = self._mark()
            if mark is not None:
                found = self._with_mark(mark, found)
            elif found.fraction and self._shares(found):
                whole = self.operand()
                return self._combined(operations.TIMES, found, whole)
            else:
                return found

    def _with_mark(self, mark: Callable[[Formula], Formula], of: Formula) -> Formula:
        if of.listing is not Listing.CLOSED:
            raise self.cursor.ambiguous("it is not clear what the last word follows")
        return self._checked(lambda: mark(of))

    def _shares(self, found: Formula) -> bool:
        """Take the ``of`` of ``17% of 80`` or the ``tip on`` of ``a 15% tip on 80``."""
        if self.cursor.accept("of"):
            return True
        place = self.cursor.place()
        if found.quantity == PERCENT and operations.SURCHARGE.read(self.cursor):
            if self.cursor.accept("on", "for", "of"):
                return True
            self.cursor.back(place)
        return False

    def _mark(self) -> Callable[[Formula], Formula] | None:
        if self.cursor.at("%") and self._is_remainder():
            return None
        if self.cursor.at("!") and not self.cursor.here.glued:
            return None
        spoken = self.cursor.at("squared", "cubed")
        mark = operations.MARKS.read(self.cursor)
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
        if self.cursor.accept("("):
            found = self.expression()
            self.cursor.expect(")")
            return replace(found, listing=Listing.CLOSED, fraction=False, splittable=False)
        if (phrase := self.cursor.attempt(_phrase)) is not None:
            return self._checked(lambda: phrase(self))
        if (degree := self.cursor.attempt(operations.nth_root)) is not None:
            of = self.operand()
            return opened(self._checked(lambda: formula.call("root", of, degree)), of)
        constant = operations.CONSTANTS.read(self.cursor)
        return constant or self._checked(lambda: read_number(self.cursor))

    def _checked(self, build: Callable[[], Formula]) -> Formula:
        try:
            return build()
        except MixedQuantitiesError as mixed:
            raise self.cursor.ambiguous(str(mixed)) from None

    def item(self) -> Formula:
        """Read one item of a list: an operand, with signs only where they stick to it."""
        return self.expression(Following.TIGHT)

    def pair(self, *separators: str) -> tuple[Formula, Formula]:
        """Read two items with a word between them."""
        with self._listing():
            first = self.item()
            self.cursor.expect(*separators)
            return first, self.item()

    def items(self, *, splits_matter: bool = True) -> tuple[list[Formula], bool]:
        """Read two or more items: ``3, 4 and 5``, ``3 and 4``, or ``(3, 4, 5)``, which is closed.

        Inside another list, ``3 and 4`` ends after the 4: the next ``and`` is the outer list's.
        """
        if (listed := self.cursor.attempt(self._in_parentheses)) is not None:
            return listed, True
        with self._listing():
            found = self._open_list()
        if len(found) < 2:
            raise self.cursor.misread()
        if splits_matter and any(item.splittable for item in found):
            raise self.cursor.ambiguous("it is not clear which 'and' belongs to a number")
        return found, False

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._lists += 1
        try:
            yield
        finally:
            self._lists -= 1

    def _open_list(self) -> list[Formula]:
        found, commas = [self.item()], False
        while True:
            place = self.cursor.place()
            comma = self.cursor.accept(",") is not None
            word = self.cursor.accept("and", "or") is not None
            more = self.cursor.attempt(lambda _: self.item()) if comma or word else None
            if more is None:
                self.cursor.back(place)
                return found
            found.append(more)
            commas |= comma
            if word and (commas or self._lists > 1):
                return found

    def _in_parentheses(self, cursor: Cursor) -> list[Formula]:
        cursor.expect("(")
        found = [self.expression()]
        while cursor.accept(",", "and"):
            found.append(self.expression())
        cursor.expect(")")
        if len(found) < 2:
            raise cursor.misread()
        return found


def _phrase(cursor: Cursor) -> operations.Phrase:
    cursor.accept("the")
    return operations.PHRASES.expect(cursor)
