"""Why a calculation was refused."""

from typing import Literal

RefusalCode = Literal["invalid_expression", "division_by_zero", "undefined", "too_large"]


class CalculationRefusedError(Exception):
    """An expression that has no value here; the message says why and what to write instead."""

    def __init__(self, message: str, *, code: RefusalCode) -> None:
        super().__init__(message)
        self.code: RefusalCode = code
        """``undefined`` is mathematics saying no (``sqrt(-1)``), ``too_large`` a limit of ours."""


def malformed(message: str) -> CalculationRefusedError:
    """Return the refusal of a text that is not an expression."""
    return CalculationRefusedError(message, code="invalid_expression")


def undefined(message: str) -> CalculationRefusedError:
    """Return the refusal of an operation that has no real result."""
    return CalculationRefusedError(message, code="undefined")


def too_large(message: str) -> CalculationRefusedError:
    """Return the refusal of a calculation beyond one of the limits."""
    return CalculationRefusedError(message, code="too_large")
