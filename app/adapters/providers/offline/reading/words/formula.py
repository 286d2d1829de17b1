"""Arithmetic that was understood, as an expression for the calculator.

A formula knows how tightly it binds, so that parentheses go where they are needed and nowhere
else, and what kind of quantity it stands for, so that questions that mix them are refused: ``$5 +
3`` has no clear meaning, and ``50 + 10%`` has two.
"""

from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto


class Binding(IntEnum):
    """How tightly the outermost operation of an expression binds."""

    SUM = auto()
    PRODUCT = auto()
    SIGN = auto()
    POWER = auto()
    ATOM = auto()


class Listing(Enum):
    """What a phrase such as ``the sum of 3 and 4`` leaves open at its end.

    In ``the average of 3 and 4 times 2`` the 2 may belong to the 4 or to the average.
    """

    CLOSED = auto()
    WHOLE = auto()
    """Nothing is left open, but a comma may follow: ``the days of May 2024, times 24``."""
    SUM = auto()
    PRODUCT = auto()
    OTHER = auto()


PLAIN = ""
PERCENT = "%"


class MixedQuantitiesError(ValueError):
    """An operation on quantities that do not go together; the message says which."""


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression, how it binds and what it stands for."""

    text: str
    binding: Binding = Binding.ATOM
    quantity: str = PLAIN
    """``PLAIN``, ``PERCENT`` or the name of a currency."""
    listing: Listing = Listing.CLOSED
    fraction: bool = False
    """True for a written fraction or percentage, which may be followed by ``of``."""
    splittable: bool = False
    """True for a numeral with an ``and`` in it, which in a list may be two numbers."""

    @property
    def is_number(self) -> bool:
        """True for a number as it was written, with its percent sign or currency."""
        return self.fraction or (self.binding is Binding.ATOM and self.text[0].isdigit())

    def inside(self, weakest: Binding) -> str:
        """Return the text for a place that takes nothing weaker than ``weakest``."""
        return self.text if self.binding >= weakest else f"({self.text})"


def plus(left: Formula, right: Formula) -> Formula:
    """Return ``left + right``."""
    return _sum(left, "+", right)


def minus(left: Formula, right: Formula) -> Formula:
    """Return ``left - right``."""
    return _sum(left, "-", right)


def _sum(left: Formula, sign: str, right: Formula) -> Formula:
    quantity = left.quantity
    if right.quantity != quantity:
        # A percentage is a share of something or a plain number. With money it can only be a
        # share; with 1 both come to the same.
        if right.quantity != PERCENT or (quantity == PLAIN and left.text != "1"):
            raise MixedQuantitiesError(_mixed(left, sign, right))
        return scaled(left, sign, right)
    text = f"{left.inside(Binding.SUM)} {sign} {right.inside(Binding.PRODUCT)}"
    return Formula(text, Binding.SUM, quantity)


def _mixed(left: Formula, sign: str, right: Formula) -> str:
    if PERCENT in {left.quantity, right.quantity}:
        percent, other = (right, left) if right.quantity == PERCENT else (left, right)
        verb = "decrease" if sign == "-" else "increase"
        return (
            f"a percentage {sign} another number can mean a share of that number or of 1; "
            f"say '{verb} {other.text} by {_percent_text(percent)}' or use a plain number"
        )
    return "money and a plain number, or two currencies, cannot be added or compared"


def _percent_text(percent: Formula) -> str:
    return percent.text.removesuffix(" / 100") + "%"


def times(left: Formula, right: Formula) -> Formula:
    """Return ``left * right``."""
    kinds = {left.quantity, right.quantity}
    money = kinds - {PLAIN, PERCENT}
    if (money and left.quantity == right.quantity) or len(money) > 1:
        raise MixedQuantitiesError("money cannot be multiplied by money")
    quantity = money.pop() if money else PERCENT if kinds == {PERCENT} else PLAIN
    return _product(left, "*", right, quantity)


def divided(left: Formula, right: Formula, sign: str = "/") -> Formula:
    """Return ``left / right``, or another division such as ``//``."""
    if left.quantity == right.quantity or right.quantity == PERCENT:
        quantity = PLAIN if left.quantity in {right.quantity, PERCENT} else left.quantity
    elif right.quantity == PLAIN:
        quantity = left.quantity
    else:
        raise MixedQuantitiesError("a number cannot be divided by an amount of money")
    return _product(left, sign, right, quantity)


def _product(left: Formula, sign: str, right: Formula, quantity: str) -> Formula:
    text = f"{left.inside(Binding.PRODUCT)} {sign} {right.inside(Binding.SIGN)}"
    return Formula(text, Binding.PRODUCT, quantity)


def power(base: Formula, exponent: Formula) -> Formula:
    """Return ``base ** exponent``."""
    _refuse_money(base, exponent)
    text = f"{base.inside(Binding.ATOM)} ** {exponent.inside(Binding.SIGN)}"
    return Formula(text, Binding.POWER)


def negative(formula: Formula) -> Formula:
    """Return ``-formula``."""
    return Formula(f"-{formula.inside(Binding.POWER)}", Binding.SIGN, formula.quantity)


def call(name: str, *arguments: Formula, plain: bool = True) -> Formula:
    """Return ``name(arguments)``; unless ``plain``, the result is what all the arguments are."""
    text = f"{name}({', '.join(argument.text for argument in arguments)})"
    if plain:
        _refuse_money(*arguments)
        return Formula(text)
    first = arguments[0]
    for other in arguments[1:]:
        if other.quantity != first.quantity:
            raise MixedQuantitiesError(_mixed(first, "and", other))
    return Formula(text, quantity=first.quantity)


def scaled(base: Formula, sign: str, percent: Formula) -> Formula:
    """Return ``base`` increased (``+``) or decreased (``-``) by a percentage of itself."""
    factor = Formula(f"1 {sign} {percent.inside(Binding.PRODUCT)}", Binding.SUM)
    return times(base, factor)


def number(text: str, quantity: str = PLAIN) -> Formula:
    """Return a number written in digits."""
    whole, point, rest = text.partition(".")
    return Formula((whole.lstrip("0") or "0") + point + rest, quantity=quantity)


def percentage(formula: Formula) -> Formula:
    """Return ``formula`` percent."""
    if formula.quantity != PLAIN:
        raise MixedQuantitiesError("only a plain number can be a percentage")
    return replace(divided(formula, Formula("100")), quantity=PERCENT, fraction=True)


def _refuse_money(*formulas: Formula) -> None:
    if any(formula.quantity not in {PLAIN, PERCENT} for formula in formulas):
        raise MixedQuantitiesError("this operation has no meaning for amounts of money")


def plain(formula: Formula) -> Formula:
    """Return a formula whose percentages count as the numbers they are."""
    return replace(formula, quantity=PLAIN) if formula.quantity == PERCENT else formula
