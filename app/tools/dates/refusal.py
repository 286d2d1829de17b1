"""Why a date question was refused."""


class DateRefusedError(Exception):
    """A date, zone or operation that cannot be used; the message says what to write instead."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
        """``invalid_date``, ``ambiguous_date``, ``unknown_timezone``, ``invalid_arguments`` or
        ``out_of_range``."""
