"""Errors of the database that every package may meet."""


class StoreUnavailableError(Exception):
    """The database did not answer in time; nothing is known to have been stored."""


class WriteFailedError(Exception):
    """The database was there, and could not carry out one write, however often it was asked."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"The database could not store a write of {size_bytes} bytes.")
