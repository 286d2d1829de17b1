"""Why a question about stocks was refused."""


class StockRefusedError(Exception):
    """A question that cannot be answered; the message says what to ask instead."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
        """``unknown_symbol``, ``out_of_range``, ``no_data``, ``too_few_points``, ``undefined``,
        ``too_large``, ``invalid_arguments`` or ``source_unavailable``."""


def unfit(message: str) -> StockRefusedError:
    """Return the refusal of an argument that cannot be used."""
    return StockRefusedError(message, code="invalid_arguments")
