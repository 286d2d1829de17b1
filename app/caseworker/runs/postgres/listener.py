"""Receives Postgres notifications that any process sent.

See docs/internals.md, "The journal and its barrier".
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCallbacks:
    """Functions that a process which executes runs calls for notifications."""

    cancelled: Callable[[RunKey, CancelRequest], object]
    """Called with every cancel request for a run that a worker owned."""
    unowned: Callable[[RunKey], object]
    """Called with the key of a run that was cancelled and that no worker owned."""
    decided: Callable[[RunKey], object]
    """Called with the key of a run when an approval of it is decided."""
    accounts_changed: Callable[[str, str | None], object]
    """Called with the tenant and the name of an account for which calls wait, when a hold is
    settled, and with a tenant and None when its quota changes."""

    async def call(self, notice: Notify) -> None:
        """Call the function for a notification."""
        try:
            content = json.loads(notice.payload)
            if notice.channel == ACCOUNT_CHANNEL:
                self.accounts_changed(content["tenant"], content.get("account"))
                return
            key = RunKey(content["tenant"], content["run_id"])
        except (ValueError, TypeError, KeyError):
            log.warning("notification.unreadable")  # any database client can send notifications
            return
        if notice.channel == DECISION_CHANNEL:
            self.decided(key)
        elif content.get("unowned"):
            self.unowned(key)
        else:
            by, reason = str(content.get("by", "")), content.get("reason")
            now = datetime.now(UTC)
            self.cancelled(key, CancelRequest(requested_by=by, reason=reason, requested_at=now))


async def listen_for_workers(
    url: str,
    callbacks: WorkerCallbacks,
    *,
    patience: Patience,
    listening: Callable[[], Awaitable[None]],
) -> None:
    """Call the ``callbacks`` with all notifications for processes that execute runs.

    If notifications are missed during an outage, heartbeats find cancel requests, and runs poll for
    decisions and accounts. For the other parameters and errors see :func:`listen`.
    """
    channels = [CANCEL_CHANNEL, DECISION_CHANNEL, ACCOUNT_CHANNEL]
    await listen(
        url, channels, patience=patience, on_notification=callbacks.call, listening=listening
    )
