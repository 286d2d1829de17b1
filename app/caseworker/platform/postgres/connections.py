"""Connection settings and timeouts, and the classification of errors as temporary or permanent.

Every wait is bounded. The server aborts statements that take too long, lock waits, and idle
transactions, so that a frozen process does not hold row locks for long. The client closes the
connection to a server that does not answer. TCP keepalives detect a lost network.
:class:`Connection` detects a frozen server, or a middlebox that keeps the connection open but
forwards nothing.

After a failover, old sessions may continue at a server that is a standby now. They refuse all
writes, return old rows and receive no notifications, although new sessions reach the primary.
:class:`Connection` closes them, so that all pools and listeners connect again.

Connections have state: settings, prepared statements and LISTEN. A connection pooler in front of
Postgres must therefore use session pooling, not transaction pooling.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import generators, waiting
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGcancelConn
from psycopg.types.json import set_json_dumps, set_json_loads

from caseworker.platform.postgres.json_text import exact_dump, load

Options = Mapping[str, Any]

KEEPALIVE: Options = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""TCP keepalive options. All values are in seconds, except the last, which is in milliseconds. A
lost peer is detected within about ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Timeouts for a database connection."""

    connect_seconds: float
    """Maximum seconds for opening a connection, and for getting one from the pool."""
    lock_ms: int
    statement_ms: int = 20_000
    idle_transaction_ms: int = 10_000
    """Maximum milliseconds that a transaction may stay open while its client sends no statement."""
    answer_seconds: float = 30.0
    """Maximum seconds that the server may be silent; must exceed the statement timeout."""

    @property
    def server_settings(self) -> str:
        """Command-line options with server settings, sent when the connection is opened."""
        return (
            f"-c lock_timeout={self.lock_ms} -c statement_timeout={self.statement_ms}"
            f" -c idle_in_transaction_session_timeout={self.idle_transaction_ms}"
            " -c jit=off"  # compiling would take longer than any statement of the service
        )


CHECK_SECONDS = 2.0
"""Maximum seconds for the check of an idle connection. A new one replaces a silent one, and both
must fit in the timeout of the pool."""

CANCEL_SECONDS = 5.0
"""Maximum seconds for delivering a request to cancel a statement."""

READ_ONLY_SECONDS = 5.0
"""Age in seconds above which a read-only session is closed. A database that is read-only for all
sessions thus costs one new session in this time, and its rows can still be read."""

_READ_ONLY = (b"default_transaction_read_only", b"in_hot_standby")
"""Settings that a server (from PostgreSQL 14) reports whenever they change."""


class ServerUnresponsiveError(psycopg.OperationalError):
    """The server accepted a statement but did not answer in time."""


class ReadOnlySessionError(psycopg.OperationalError):
    """The session was closed because it is read-only; a new one may be able to write."""


class Connection(psycopg.AsyncConnection[Any]):
    """A connection that closes itself if the server is silent or has become read-only."""

    answer_seconds: float = 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.opened_at = time.monotonic()
        """Clock at which the connection was opened."""
        self._is_new = True
        self._cancelling: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, patience: Patience, **options: Any) -> Self:
        """Open a connection with the timeouts in ``patience``.

        Raises:
            psycopg.OperationalError: the database cannot be reached.
        """
        connection = await cls.connect(**connect_options(url, patience), **options)
        set_json_dumps(exact_dump, connection)
        set_json_loads(load, connection)
        connection.answer_seconds = patience.answer_seconds
        return connection

    async def check(self) -> None:
        """Check that the server answers, unless the connection was opened a moment ago.

        Raises:
            TimeoutError: it does not answer; the connection is closed.
            psycopg.OperationalError: the connection was lost, or its session is read-only.
        """
        if self._is_new:
            self._is_new = False
            return
        # Not by ``execute``, which would begin a transaction, nor with autocommit, which a
        # cancellation would leave switched on.
        async with asyncio.timeout(CHECK_SECONDS), self.lock:
            await self.wait(self._exec_command("SELECT 1"))

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Exchange data with the server within the time limit; psycopg calls this internally.

        A cancellation takes effect at once: psycopg itself would wait ten seconds for a server that
        does not answer.

        Raises:
            ServerUnresponsiveError: the server did not answer in time.
            ReadOnlySessionError: the session is read-only.
            psycopg.OperationalError: the connection was lost.
        """
        longest = self.answer_seconds if timeout is None else timeout
        until = time.monotonic() + longest
        was_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        try:
            # A shorter interval would wake an idle listener for nothing.
            result = await waiting.wait_async(gen, self.pgconn.socket, longest, longest)
        except psycopg.Error as error:
            # With a statement in flight the connection cannot be reused.
            is_lost = timeout is None and self._is_active
            if is_lost or ends_session(error):
                self.pgconn.finish()
            if is_lost and error.sqlstate is None and time.monotonic() >= until:
                raise ServerUnresponsiveError(*error.args) from error
            raise
        except BaseException:
            if self._is_active:
                self._abandon()
            raise
        if was_idle and self._is_outdated:
            self.pgconn.finish()
            raise ReadOnlySessionError("the session has become read-only")
        return result

    @property
    def _is_active(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE

    @property
    def _is_outdated(self) -> bool:
        """Whether the session is idle, read-only and not new, so that it must be replaced."""
        return (
            self.pgconn.transaction_status == TransactionStatus.IDLE
            and any(self.pgconn.parameter_status(name) == b"on" for name in _READ_ONLY)
            and time.monotonic() - self.opened_at > READ_ONLY_SECONDS
        )

    def _abandon(self) -> None:
        """Close the connection during a statement; request the server to cancel the statement."""
        with suppress(psycopg.NotSupportedError):  # libpq before version 17
            cancel = self.pgconn.cancel_conn()
            self._cancelling = asyncio.create_task(_cancelled(cancel), name="cancel statement")
        self.pgconn.finish()


async def _cancelled(cancel: PGcancelConn) -> None:
    """Deliver a request to cancel a statement; a server that is silent never gets it."""
    with suppress(psycopg.Error):
        cancel.start()
        await waiting.wait_conn_async(
            generators.cancel(cancel), CANCEL_SECONDS, timeout=CANCEL_SECONDS
        )


def driver_url(url: str) -> str:
    """Return the database URL in the form that psycopg accepts, without an SQLAlchemy dialect name.

    Only the scheme is replaced: a URL library would encode a space as a plus.
    """
    return re.sub(r"^\w+(\+\w+)?://", "postgresql://", url)


def connect_options(url: str, patience: Patience) -> dict[str, Any]:
    """Return the options for opening a connection. Settings in the URL take precedence.

    The timeout covers all hosts of the URL: if the first one is frozen, the next one must get its
    turn. Text is always exchanged as UTF-8, whatever ``PGCLIENTENCODING`` names.
    """
    url_options = conninfo_to_dict(driver_url(url))
    settings = f"{patience.server_settings} {url_options.pop('options', '')}".rstrip()
    hosts = str(url_options.get("hostaddr") or url_options.get("host") or "").split(",")
    ours = {
        "application_name": "caseworker",
        "connect_timeout": max(2, int(patience.connect_seconds / len(hosts))),
        **KEEPALIVE,
    }
    return {**ours, **url_options, "options": settings, "client_encoding": "utf8"}


# Some errors are temporary and the caller may retry: a broken connection, a server that is
# starting, stopping or read-only, a lock timeout. All others are caused by the statement or its
# data. The driver's classes do not separate the two (a value too long for an index is an
# OperationalError too), but the SQLSTATE does.
_AWAY_CLASSES = ("08", "57P", "58")
"""Connection exceptions; a server that is stopping, starting or crashed; I/O errors."""

_READ_ONLY_REFUSED = "25006"
"""A write on a standby, as after a failover, or in a database that is set to read-only."""

_AWAY_CODES = frozenset(
    {
        _READ_ONLY_REFUSED,
        "25P03",  # the server ended a transaction that was idle too long
        "53100",  # the disk is full
        "53300",  # too many connections
    }
)
_CONTENDED_CLASS = "40"
"""Deadlocks and other rollbacks caused by a concurrent transaction."""

_LOCK_NOT_AVAILABLE = "55P03"
_BROKEN_OFF = "57014"
"""The statement timed out or was cancelled."""

_OVERLOAD_CLASSES = ("53", _BROKEN_OFF)
"""Insufficient resources; an aborted statement."""


def is_unavailable(error: BaseException | None) -> bool:
    """Return whether an error means that the database is unavailable.

    No write can succeed until it is available again.
    """
    if isinstance(error, OSError | psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code in _AWAY_CODES or code.startswith(_AWAY_CLASSES)


_STATEMENT_NOT_FOUND = "26000"
"""A prepared statement is not known to the server: the connection leads to another session."""

_REFUSED = "CW001"
"""SQLSTATE with which functions of the schema refuse a statement."""
_OUTDATED_PLAN = "RevalidateCachedQuery"
"""The function of the server that rejects a prepared statement whose result columns have changed,
as after a migration."""


def ends_session(error: psycopg.Error) -> bool:
    """Return whether the session causes the error, so that only a new session can succeed."""
    return (
        error.sqlstate in (_READ_ONLY_REFUSED, _STATEMENT_NOT_FOUND)
        or error.diag.source_function == _OUTDATED_PLAN
    )


def is_contended(error: BaseException | None) -> bool:
    """Return whether an error was caused by a concurrent transaction's lock, as in a deadlock."""
    code = _code(error)
    return code == _LOCK_NOT_AVAILABLE or code.startswith(_CONTENDED_CLASS)


def is_refusal(error: BaseException | None) -> bool:
    """Return whether a function of the schema refused the statement. The message is the reason."""
    return _code(error) == _REFUSED


def is_broken_off(error: BaseException | None) -> bool:
    """Return whether the server aborted the statement because of a timeout or a cancel."""
    return _code(error) == _BROKEN_OFF


def is_passing(error: BaseException | None) -> bool:
    """Return whether the failed statement may succeed if it is retried.

    That is the case if the database is unavailable or overloaded, or if a concurrent transaction's
    lock or an outdated session caused the error.
    """
    return (
        is_unavailable(error)
        or is_contended(error)
        or _code(error).startswith(_OVERLOAD_CLASSES)
        or (isinstance(error, psycopg.Error) and ends_session(error))
    )


def _code(error: BaseException | None) -> str:
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""


_ADVICE = (
    ("startup parameter|prepared statement", "a connection pooler must use session pooling"),
    ("SSL|certificate|no encryption", "set sslmode and sslrootcert as the server requires"),
    ("database .* does not exist", "create the database or correct its name"),
    ("authentication|password|role .* does not exist|pg_hba", "check the user name and password"),
    (
        "permission denied|read-only|must be owner",
        "use a role that owns the tables and has write permission",
    ),
    ("", "check that PostgreSQL is running there and accepts connections"),
)
"""Patterns in the message of libpq or the server, and the advice for each.

A failed connection provides no other information than this message.
"""


def reason_of(error: BaseException) -> str:
    """Return one line that says why the database cannot be used, with advice.

    The reason is quoted from libpq or the server.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, psycopg.Error):
        error, cause = cause, getattr(cause, "orig", None) or cause.__cause__
    reason = (
        " ".join(str(cause or error).split())[:600] or "the connection to the database timed out"
    )
    advice = next(advice for pattern, advice in _ADVICE if re.search(pattern, reason))
    return f"{reason.rstrip('.')}: {advice}."
