"""How this process connects to Postgres, how long it waits for it, and which errors pass.

Every wait has an end. The server ends statements that take too long, waits for locks, and
transactions that their client has forgotten, so that a frozen process holds no row for long. The
client hangs up on a server that does not answer: TCP notices a network that is gone, and
:class:`Connection` a server that is frozen, or a middlebox that keeps the connection open and
forwards nothing.

Connections carry settings, prepared statements and LISTEN: a pooler in front of Postgres must pool
sessions, not transactions.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.json import set_json_dumps

from caseworker.adapters.postgres.json_text import exact_dump

Options = Mapping[str, Any]

KEEPALIVE: Options = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Seconds, and milliseconds for the last: a peer that vanished is noticed within about ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a connection waits for what."""

    connect_seconds: float
    """To make a connection, and to be given one."""
    lock_ms: int
    statement_ms: int = 20_000
    idle_transaction_ms: int = 10_000
    """How long a transaction may stand open while its client says nothing."""
    answer_seconds: float = 30.0
    """How long the server may be silent; more than a statement may take."""

    @property
    def server_settings(self) -> str:
        """Settings that are sent when the connection is made."""
        return (
            f"-c lock_timeout={self.lock_ms} -c statement_timeout={self.statement_ms}"
            f" -c idle_in_transaction_session_timeout={self.idle_transaction_ms}"
        )


class SilentServerError(psycopg.OperationalError):
    """The server took a statement, and did not answer in time."""


class Connection(psycopg.AsyncConnection[Any]):
    """A connection that hangs up on a server that does not answer in time."""

    answer_seconds: float = 30.0

    @classmethod
    async def open(cls, url: str, patience: Patience, **options: Any) -> Self:
        """Connect.

        Raises:
            psycopg.OperationalError: the database cannot be reached.
        """
        connection = await cls.connect(**connect_options(url, patience), **options)
        set_json_dumps(exact_dump, connection)
        connection.answer_seconds = patience.answer_seconds
        return connection

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Consume one exchange with the server; every one passes through here.

        Raises:
            SilentServerError: the server was silent for too long.
            psycopg.OperationalError: it is gone.
        """
        longest = self.answer_seconds if timeout is None else timeout
        until = time.monotonic() + longest
        try:
            return await super().wait(gen, interval, longest)
        except psycopg.OperationalError as error:
            if timeout is None and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
                if error.sqlstate is None and time.monotonic() >= until:
                    raise SilentServerError(*error.args) from error
            raise


async def rows_of(
    connection: psycopg.AsyncConnection[Any],
    statement: str,
    *parameters: str | int,
    **named: str | int,
) -> Sequence[Mapping[str, Any]]:
    """Execute a statement, whose parameters stand in order or have names, and return its rows."""
    cursor = await connection.execute(statement, named or parameters)
    return await cursor.fetchall()


def driver_url(url: str) -> str:
    """Return a database URL as the driver takes it, whatever dialect name it came with.

    The rest is left as it is: written anew, a space in it would become a plus.
    """
    return re.sub(r"^\w+(\+\w+)?://", "postgresql://", url)


def connect_options(url: str, patience: Patience) -> dict[str, Any]:
    """Return what to connect with; what the URL itself says counts more."""
    given = conninfo_to_dict(driver_url(url))
    settings = f"{patience.server_settings} {given.pop('options', '')}".rstrip()
    ours = {
        "application_name": "caseworker",
        "connect_timeout": max(2, round(patience.connect_seconds)),
        **KEEPALIVE,
    }
    return {**ours, **given, "options": settings}


# Some errors pass, and the caller may try again: a broken connection, a server that is starting,
# stopping or read-only, a lock that could not be had in time. All others concern what was sent. The
# driver's classes do not separate the two (a value too long for an index is an OperationalError
# too), so the SQLSTATE does.
_AWAY_CLASSES = ("08", "57P", "58")
"""Connection exceptions; a server that stops, crashed or starts; trouble with its files."""

_AWAY_CODES = frozenset(
    {
        "25006",  # read-only: a standby answers where the primary was
        "25P03",  # the server ended a transaction that had been idle for too long
        "53100",  # the disk is full
        "53300",  # too many connections
    }
)
_CONTENDED_CLASS = "40"
"""Deadlocks, and whatever else rolled the transaction back for the sake of another."""

_LOCK_NOT_AVAILABLE = "55P03"
_BROKEN_OFF = "57014"
"""The statement took too long, or somebody had the server cancel it."""

_OVERLOAD_CLASSES = ("53", _BROKEN_OFF)
"""Out of something; a statement that was broken off."""


def is_away(error: BaseException | None) -> bool:
    """Tell whether the database is away: nothing can be written until it is back."""
    if isinstance(error, OSError | psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code in _AWAY_CODES or code.startswith(_AWAY_CLASSES)


def is_contended(error: BaseException | None) -> bool:
    """Tell whether somebody else's lock was in the way."""
    code = _code(error)
    return code == _LOCK_NOT_AVAILABLE or code.startswith(_CONTENDED_CLASS)


def is_broken_off(error: BaseException | None) -> bool:
    """Tell whether the server broke the statement off: it took too long, or was cancelled."""
    return _code(error) == _BROKEN_OFF


def is_passing(error: BaseException | None) -> bool:
    """Tell whether the same may well succeed later: the database is away, or too busy."""
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
"""What to do, by what libpq or the server says: of failed connections it is all there is."""


def reason_of(error: BaseException) -> str:
    """Return in one line why a database cannot be used, as libpq says it, and what to do."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, psycopg.Error):
        error, found = found, getattr(found, "orig", None) or found.__cause__
    reason = (
        " ".join(str(found or error).split())[:600] or "the connection to the database timed out"
    )
    advice = next(advice for said, advice in _ADVICE if re.search(said, reason))
    return f"{reason.rstrip('.')}: {advice}."
