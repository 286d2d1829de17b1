"""Database errors that any package may raise."""


class StoreUnavailableError(Exception):
    """The database did not respond in time, so the write may or may not be stored."""


class WriteFailedError(Exception):
    """The database is available but failed to store a write, even after retries."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"The database could not store a write of {size_bytes} bytes.")
