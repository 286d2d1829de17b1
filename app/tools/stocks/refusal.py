"""Why a question about stocks was refused."""

from app.tools.ports import ToolResult, failure


class StockRefusedError(Exception):
    """A question that cannot be answered; the message says what to ask instead."""

    def __init__(
        self, message: str, *, code: str, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        """``unknown_symbol``, ``out_of_range``, ``no_data``, ``too_few_points``, ``undefined``,
        ``too_large``, ``invalid_arguments``, ``source_refused`` or ``source_unavailable``."""
        self.retry_after_seconds = retry_after_seconds
        """How long the source asks to be left alone, if it said so."""

    def result(self) -> ToolResult:
        """What a tool returns for it."""
        return failure(str(self), self.code, retry_after_seconds=self.retry_after_seconds)


def unfit(message: str) -> StockRefusedError:
    """Return the refusal of an argument that cannot be used."""
    return StockRefusedError(message, code="invalid_arguments")
