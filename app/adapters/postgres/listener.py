"""Hears notifications of Postgres at once, whichever replica sent them."""

import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from psycopg import sql

from app.adapters.postgres.accept_and_cancel import CANCEL_CHANNEL
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
    """Call ``heard`` with the payload of every notification that comes from now on.

    ``listening`` is awaited once listening has begun, so that what was missed can be looked for.

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


class CancelListener:
    """Hears of cancel requests; the heartbeat finds those it misses while it is away."""

    def __init__(
        self,
        url: str,
        *,
        patience: Patience,
        heard: Callable[[RunKey, CancelRequest], object],
        connected: Callable[[], Awaitable[None]],
    ) -> None:
        """Call ``heard`` with every request, and ``connected`` whenever listening has begun."""
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
            [CANCEL_CHANNEL],
            patience=self._patience,
            heard=self._read,
            listening=self._connected,
        )

    async def _read(self, payload: str) -> None:
        try:
            read = json.loads(payload)
            key = RunKey(read["tenant"], read["run_id"])
        except (ValueError, TypeError, KeyError):
            log.warning("cancel.unreadable")  # anybody who may connect may notify
            return
        cancel_request = CancelRequest(
            requested_by=str(read.get("by", "")),
            reason=read.get("reason"),
            requested_at=datetime.now(UTC),
        )
        self._heard(key, cancel_request)
