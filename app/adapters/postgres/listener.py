"""Hears notifications at once, whichever replica sent them."""

import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from psycopg import sql

from app.adapters.postgres.cancelling import STOP_CHANNEL
from app.adapters.postgres.connections import Connection, Patience
from app.runs.run import CancelRequest, RunKey

log = structlog.get_logger(__name__)

QUIET_SECONDS = 5.0
"""How long nothing may be heard before the connection is asked whether it still lives."""

ANSWER_SECONDS = 5.0
"""How long it may take to answer."""


async def listen(
    url: str,
    channels: Iterable[str],
    *,
    patience: Patience,
    heard: Callable[[str], Awaitable[None]],
    listening: Callable[[], Awaitable[None]],
) -> None:
    """Tell ``heard`` the payload of every notification; what comes while nobody listens is lost.

    ``listening`` is awaited once listening has begun: whoever it tells looks for what was missed.

    Raises:
        psycopg.OperationalError: the connection was lost, or does not answer any more.
    """
    soon = replace(patience, answer_seconds=ANSWER_SECONDS)
    connection = await Connection.open(url, soon, autocommit=True)
    async with connection:
        for channel in channels:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        await listening()
        while True:
            async with aclosing(connection.notifies(timeout=QUIET_SECONDS)) as notices:
                async for notice in notices:
                    await heard(notice.payload)
            await connection.execute("SELECT 1")


class StopListener:
    """Hears of wishes to stop; what it misses while it is away, the heartbeat finds."""

    def __init__(
        self,
        url: str,
        *,
        patience: Patience,
        heard: Callable[[RunKey, CancelRequest], object],
        connected: Callable[[], Awaitable[None]],
    ) -> None:
        """Tell ``heard`` of every wish; call ``connected`` whenever listening has begun."""
        self._url = url
        self._patience = patience
        self._heard = heard
        self._connected = connected

    async def run(self) -> None:
        """Listen until the connection ends.

        Raises:
            psycopg.OperationalError: the connection was lost.
        """
        await listen(
            self._url,
            [STOP_CHANNEL],
            patience=self._patience,
            heard=self._tell,
            listening=self._connected,
        )

    async def _tell(self, payload: str) -> None:
        try:
            told = json.loads(payload)
            key = RunKey(told["tenant"], told["run_id"])
        except (ValueError, TypeError, KeyError):
            log.warning("stop.unreadable")  # anybody who may connect may notify
            return
        cancel_request = CancelRequest(
            requested_by=str(told.get("by", "")),
            reason=told.get("reason"),
            requested_at=datetime.now(UTC),
        )
        self._heard(key, cancel_request)
