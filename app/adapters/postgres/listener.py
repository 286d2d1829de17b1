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


async def listen_for_cancels(
    url: str,
    *,
    patience: Patience,
    heard: Callable[[RunKey, CancelRequest], object],
    listening: Callable[[], Awaitable[None]],
) -> None:
    """Call ``heard`` with every cancel request; the heartbeat finds those missed while away.

    For the rest see :func:`listen`.
    """

    async def read(payload: str) -> None:
        try:
            notice = json.loads(payload)
            key = RunKey(notice["tenant"], notice["run_id"])
        except (ValueError, TypeError, KeyError):
            log.warning("cancel.unreadable")  # anybody who may connect may notify
            return
        by, reason = str(notice.get("by", "")), notice.get("reason")
        now = datetime.now(UTC)
        heard(key, CancelRequest(requested_by=by, reason=reason, requested_at=now))

    await listen(url, [CANCEL_CHANNEL], patience=patience, heard=read, listening=listening)
