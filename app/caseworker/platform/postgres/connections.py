"""Connection settings and timeouts, and the classification of errors as temporary or permanent.

Every wait is bounded. The server aborts statements that take too long, lock waits, and idle
transactions, so that a frozen process does not hold row locks for long. The client closes the
connection to a server that does not answer. TCP keepalives detect a lost network.
:class:`Connection` detects a frozen server, or a middlebox that keeps the connection open but
forwards nothing.

Connections have state: settings, prepared statements and LISTEN. A connection pooler in front of
Postgres must therefore use session pooling, not transaction pooling.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
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
        )


class SilentServerError(psycopg.OperationalError):
    """The server accepted a statement but did not answer in time."""


class Connection(psycopg.AsyncConnection[Any]):
    """A connection that closes itself if the server does not answer in time."""

    answer_seconds: float = 30.0

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

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Exchange data with the server within the time limit; psycopg calls this internally.

        Raises:
            SilentServerError: the server did not answer in time.
            psycopg.OperationalError: the connection was lost.
        """
        longest = self.answer_seconds if timeout is None else timeout
        until = time.monotonic() + longest
        try:
            # A shorter interval would wake an idle listener for nothing.
            return await super().wait(gen, longest, longest)
        except psycopg.OperationalError as error:
            if timeout is None and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                # With a statement in flight the connection cannot be reused.
                self.pgconn.finish()
                if error.sqlstate is None and time.monotonic() >= until:
                    raise SilentServerError(*error.args) from error
            raise


def driver_url(url: str) -> str:
    """Return the database URL in the form that psycopg accepts, without an SQLAlchemy dialect name.

    Only the scheme is replaced: a URL library would encode a space as a plus.
    """
    return re.sub(r"^\w+(\+\w+)?://", "postgresql://", url)


def connect_options(url: str, patience: Patience) -> dict[str, Any]:
    """Return the options for opening a connection. Settings in the URL take precedence."""
    given = conninfo_to_dict(driver_url(url))
    settings = f"{patience.server_settings} {given.pop('options', '')}".rstrip()
    ours = {
        "application_name": "caseworker",
        "connect_timeout": max(2, round(patience.connect_seconds)),
        **KEEPALIVE,
    }
    return {**ours, **given, "options": settings}


# Some errors are temporary and the caller may retry: a broken connection, a server that is
# starting, stopping or read-only, a lock timeout. All others are caused by the statement or its
# data. The driver's classes do not separate the two (a value too long for an index is an
# OperationalError too), but the SQLSTATE does.
_AWAY_CLASSES = ("08", "57P", "58")
"""Connection exceptions; a server that is stopping, starting or crashed; I/O errors."""

_AWAY_CODES = frozenset(
    {
        "25006",  # read-only: a standby has taken the primary's address
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


def is_away(error: BaseException | None) -> bool:
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


def is_contended(error: BaseException | None) -> bool:
    """Return whether an error was caused by a concurrent transaction's lock, as in a deadlock."""
    code = _code(error)
    return code == _LOCK_NOT_AVAILABLE or code.startswith(_CONTENDED_CLASS)


def is_broken_off(error: BaseException | None) -> bool:
    """Return whether the server aborted the statement because of a timeout or a cancel."""
    return _code(error) == _BROKEN_OFF


def is_passing(error: BaseException | None) -> bool:
    """Return whether the failed statement may succeed if it is retried.

    That is the case if the database is unavailable or overloaded, or a concurrent transaction's
    lock caused the error.
    """
    return is_away(error) or is_contended(error) or _code(error).startswith(_OVERLOAD_CLASSES)


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
    found: BaseException | None = error
    while found is not None and not isinstance(found, psycopg.Error):
        error, found = found, getattr(found, "orig", None) or found.__cause__
    reason = (
        " ".join(str(found or error).split())[:600] or "the connection to the database timed out"
    )
    advice = next(advice for said, advice in _ADVICE if re.search(said, reason))
    return f"{reason.rstrip('.')}: {advice}."
