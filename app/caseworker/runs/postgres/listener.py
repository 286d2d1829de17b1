"""Receives Postgres notifications that any process sent.

See docs/internals.md, "The journal and its barrier".
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from psycopg import Notify, sql

from caseworker.platform.postgres.connections import Connection, Patience
from caseworker.runs.run import CancelRequest, RunKey

log = structlog.get_logger(__name__)

CANCEL_CHANNEL = "caseworker_cancel"
"""Postgres notification channel for cancel requests. Heartbeats find the requests that a worker
missed."""

DECISION_CHANNEL = "caseworker_decision"
"""Postgres notification channel for decisions, for runs that execute other steps in the
meantime."""

ACCOUNT_CHANNEL = "caseworker_accounts"
"""Postgres notification channel for settlements in accounts for which calls wait."""

QUIET_SECONDS = 15.0
"""Seconds without notifications after which the connection is checked. Until a lost connection is
noticed, the statements of each heartbeat find the changes without a notification."""

ANSWER_SECONDS = 5.0


async def listen(
    url: str,
    channels: Iterable[str],
    *,
    patience: Patience,
    on_notification: Callable[[Notify], Awaitable[None]],
    listening: Callable[[], Awaitable[None]],
) -> None:
    """Call ``on_notification`` with every notification that arrives from now on.

    ``listening`` is awaited once listening has started, so that the caller can look for events that
    it missed before.

    Raises:
        psycopg.OperationalError: the connection was lost or no longer responds.
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
                    await on_notification(notice)
            await connection.execute("SELECT 1")


async def listen_for_workers(
    url: str,
    *,
    patience: Patience,
    cancelled: Callable[[RunKey, CancelRequest], object],
    unowned: Callable[[RunKey], object],
    decided: Callable[[RunKey], object],
    accounts_changed: Callable[[str, str | None], object],
    listening: Callable[[], Awaitable[None]],
) -> None:
    """Call ``cancelled`` with every cancel request, and ``decided`` when an approval is decided.

    ``unowned`` is called instead of ``cancelled`` if no worker owned the run.
    Call ``accounts_changed`` with the tenant and the name of an account for which calls wait, when
    a hold is settled, and with a tenant and None when its quota changes. If notifications are
    missed during an outage, heartbeats find cancel requests, and runs poll for decisions and
    accounts. For the other parameters and errors see :func:`listen`.
    """

    async def read(notice: Notify) -> None:
        try:
            content = json.loads(notice.payload)
            if notice.channel == ACCOUNT_CHANNEL:
                accounts_changed(content["tenant"], content.get("account"))
                return
            key = RunKey(content["tenant"], content["run_id"])
        except (ValueError, TypeError, KeyError):
            log.warning("notification.unreadable")  # any database client can send notifications
            return
        if notice.channel == DECISION_CHANNEL:
            decided(key)
            return
        if content.get("unowned"):
            unowned(key)
            return
        by, reason = str(content.get("by", "")), content.get("reason")
        now = datetime.now(UTC)
        cancelled(key, CancelRequest(requested_by=by, reason=reason, requested_at=now))

    channels = [CANCEL_CHANNEL, DECISION_CHANNEL, ACCOUNT_CHANNEL]
    await listen(url, channels, patience=patience, on_notification=read, listening=listening)
