"""Why a calculation was refused."""

from typing import Literal

RefusalCode = Literal["invalid_expression", "division_by_zero", "undefined", "too_large"]


class CalculationRefused(Exception):
    """An expression that has no value here; the message says why and what to write instead."""

    def __init__(self, message: str, *, code: RefusalCode) -> None:
        super().__init__(message)
        self.code: RefusalCode = code
        """``undefined`` is a mathematical no (a square root of -1), ``too_large`` a limit of ours."""


def malformed(message: str) -> CalculationRefused:
    """Return the refusal of a text that is not an expression."""
    return CalculationRefused(message, code="invalid_expression")


def undefined(message: str) -> CalculationRefused:
    """Return the refusal of an operation that has no real result."""
    return CalculationRefused(message, code="undefined")


def too_large(message: str) -> CalculationRefused:
    """Return the refusal of a calculation beyond one of the limits."""
    return CalculationRefused(message, code="too_large")
