"""Why a date question was refused."""

from datetime import MAXYEAR, MINYEAR


class DateRefusedError(Exception):
    """A date, zone or operation that cannot be used; the message says what to write instead."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
        """``invalid_date``, ``ambiguous_date``, ``unknown_timezone``, ``invalid_arguments`` or
        ``out_of_range``."""


def unfit(message: str) -> DateRefusedError:
    """Return the refusal of an argument that cannot be used."""
    return DateRefusedError(message, code="invalid_arguments")


def outside_years() -> DateRefusedError:
    """Return the refusal of a result that no date can hold."""
    return DateRefusedError(
        f"the result lies outside the years {MINYEAR} to {MAXYEAR}", code="out_of_range"
    )
