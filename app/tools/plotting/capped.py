"""Bytes that are counted while they are written."""

import io
from typing import Any


class CapExceededError(Exception):
    """More bytes were written than may be."""


class CappedBytes(io.BytesIO):
    """A file in memory that ends the writing as soon as it would pass its cap (seed 002, 23.3)."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        """Write, unless the file would become too large.

        Raises:
            CapExceededError: it would; nothing of ``data`` is written.
        """
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise CapExceededError
        return super().write(data)
