"""Hears at once of wishes to stop, whichever replica stored them."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import psycopg

from app.adapters.postgres.cancelling import STOP_CHANNEL
from app.runs.run import RunKey, StopWish


class StopListener:
    """Listens on a connection of its own; what it misses while away, the heartbeat finds."""

    def __init__(
        self,
        url: str,
        *,
        heard: Callable[[RunKey, StopWish], object],
        connected: Callable[[], Awaitable[None]],
    ) -> None:
        """Tell ``heard`` of every wish; call ``connected`` whenever listening has begun."""
        self._url = url
        self._heard = heard
        self._connected = connected

    async def run(self) -> None:
        """Listen until the connection ends.

        Raises:
            psycopg.OperationalError: the connection was lost.
        """
        connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        async with connection:
            await connection.execute(f"LISTEN {STOP_CHANNEL}")
            await self._connected()
            async for notice in connection.notifies():
                self._tell(notice.payload)

    def _tell(self, payload: str) -> None:
        told = json.loads(payload)
        wish = StopWish(
            requested_by=told.get("by", ""),
            reason=told.get("reason"),
            requested_at=datetime.now(UTC),
        )
        self._heard(RunKey(told["tenant"], told["run_id"]), wish)
