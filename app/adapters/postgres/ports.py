"""What the store needs of the queue."""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from app.runs.run import RunKey


class Dispatch(Protocol):
    """Hands queued runs to whichever worker is free."""

    async def defer(self, connection: AsyncConnection, keys: Sequence[RunKey]) -> None:
        """Defer a job for each run, inside the caller's transaction."""
        ...
