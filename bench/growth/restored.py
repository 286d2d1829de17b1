"""A database as it is after a restore: without statistics until it is analysed."""

from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from bench.growth.measuring import NO_ROWS, Line

SLOWDOWN: Final = 10.0
"""Largest ratio of a line without statistics to the same line after ``ANALYZE``."""

_FORGET: Final = (
    "ALTER SYSTEM SET autovacuum = off",
    "SELECT pg_reload_conf()",
    "DELETE FROM pg_statistic",
)
_REMEMBER: Final = (
    "ALTER SYSTEM RESET autovacuum",
    "SELECT pg_reload_conf()",
    "ANALYZE",
)


async def compare(url: str, measured: Callable[[], Awaitable[list[Line]]]) -> list[Line]:
    """Measure a database with and without statistics; the two sides of each line are these."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in _FORGET:
            connection.execute(statement)
        try:
            without = await measured()
        finally:
            for statement in _REMEMBER:
                connection.execute(statement)
        known = await measured()
    return [_line(*pair) for pair in zip(without, known, strict=True)]


def _line(without: Line, known: Line) -> Line:
    """Compare the slower of both sides: the ratio is the slowdown without statistics."""
    if without.sides is None or known.sides is None:
        failed = [line.note for line in (without, known) if line.failed]
        return Line(without.title, None, note=(failed or [NO_ROWS])[0])
    return Line(without.title, (known.sides[1], without.sides[1]), most=SLOWDOWN)
