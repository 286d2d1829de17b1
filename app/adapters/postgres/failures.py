"""What an error of the database says about the database.

A connection that broke, a server that is starting, stopping or read-only, a lock that could not be
had in time: all of these pass, and the caller may try again. Everything else is about what was
sent, and trying again would not help. The driver's classes do not tell the two apart (a value that
is too long for an index is an ``OperationalError`` too), so the SQLSTATE does.
"""

import psycopg

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
_OVERLOAD_CLASSES = ("53", "57014")
"""Out of something; a statement that took too long."""


def is_away(error: BaseException) -> bool:
    """Tell whether the database is away: nothing can be written until it is back."""
    if isinstance(error, OSError | psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code in _AWAY_CODES or code.startswith(_AWAY_CLASSES)


def is_contended(error: BaseException) -> bool:
    """Tell whether somebody else's lock was in the way."""
    code = _code(error)
    return code == _LOCK_NOT_AVAILABLE or code.startswith(_CONTENDED_CLASS)


def is_passing(error: BaseException) -> bool:
    """Tell whether the same may well succeed later: the database is away, or too busy."""
    return is_away(error) or is_contended(error) or _code(error).startswith(_OVERLOAD_CLASSES)


def _code(error: BaseException) -> str:
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
