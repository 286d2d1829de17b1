"""The setting ``gateway.free_fields``, which is read again when its file changes."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)

FieldsOf = Mapping[Any, Collection[str]]
"""Paths of fields by the name of their API, such as ``chat_completions``."""


class FreeFields:
    """Fields that the operator allows in runs that limit their spending."""

    def __init__(self, current: FieldsOf, file: Path, read: Callable[[], FieldsOf]) -> None:
        """``read`` reads the setting from ``file``; it raises ValueError if it is invalid."""
        self._current = current
        self._file = file
        self._read = read
        self._version = self._version_of_file()

    async def of(self, dialect: str) -> Collection[str]:
        """Return the allowed paths for an API; an invalid or missing file changes nothing."""
        version = self._version_of_file()
        if version not in (None, self._version):
            self._version = version
            try:
                self._current = await asyncio.to_thread(self._read)
                log.info("gateway.free_fields_read")
            except ValueError as error:
                log.warning("gateway.free_fields_invalid", detail=str(error))
        return self._current.get(dialect, ())

    def _version_of_file(self) -> tuple[int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
