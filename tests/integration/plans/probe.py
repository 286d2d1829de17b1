"""Explains each statement of the service on the connection that sends it, just before it is sent.

The statement is explained in a savepoint, so it has the role, the settings, the parameters and the
uncommitted rows that it has when the service sends it. Rows read by functions, triggers and foreign
keys count too: they come from the statistics of the transaction, and not from the plan.
"""

import inspect
import json
import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from psycopg import AsyncConnection, generators
from psycopg._cursor_base import BaseCursor
from psycopg._queries import PostgresQuery
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Escaping, ExecStatus, TransactionStatus

import caseworker

APP = Path(inspect.getfile(caseworker)).parent
CARRIERS = ("platform/postgres/engines.py", "platform/postgres/connections.py")
"""Modules that send the statements of other modules."""

_READS_OR_WRITES = re.compile(r"\s*\(*\s*(SELECT|WITH|INSERT|UPDATE|DELETE|MERGE)\b", re.I)
_KEEPS_LOCK = re.compile(r"pg_(try_)?advisory_(un)?lock(_shared)?\(", re.I)
"""Locks of a session, which a rollback does not release."""

_BEGIN = {TransactionStatus.IDLE: "BEGIN", TransactionStatus.INTRANS: "SAVEPOINT probe"}
_END = {
    TransactionStatus.IDLE: "ROLLBACK",
    TransactionStatus.INTRANS: "ROLLBACK TO probe; RELEASE probe",
}

_COUNTERS = """
SELECT json_agg(json_build_array(coalesce(t.relname, c.relname), c.relkind,
    pg_stat_get_xact_numscans(c.oid), pg_stat_get_xact_tuples_returned(c.oid),
    pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
        + pg_stat_get_xact_tuples_deleted(c.oid)) ORDER BY c.oid)
FROM pg_class c
LEFT JOIN pg_index i ON i.indexrelid = c.oid
LEFT JOIN pg_class t ON t.oid = i.indrelid
WHERE c.relkind IN ('r', 'i') AND c.relnamespace = 'public'::regnamespace
"""


@dataclass(frozen=True, slots=True)
class Explained:
    """One statement, explained with its parameters in one mode of planning."""

    phase: str
    place: str
    statement: str
    """The statement with ``?`` for parameters."""
    parameters: Sequence[str]
    mode: str
    """``generic``, ``custom``, or empty if the statement was not executed."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    sequential: frozenset[str] = frozenset()
    """Tables that were read sequentially."""
    rows_read: Mapping[str, int] = field(default_factory=dict)
    """Rows or entries of indexes that were read, by table."""
    rows: int = 0
    """Rows returned and changed."""


@dataclass(slots=True)
class Probe:
    """Collects the statements that the service sends, and explains them."""

    modes: Sequence[str] = ()
    """Modes of planning in which statements are also executed."""
    explained: list[Explained] = field(default_factory=list)
    phase: str = "all"
    """A statement is explained once in each phase, and not in an empty one."""
    sent: set[tuple[str, str]] = field(default_factory=set)
    """All statements that were sent, by place and text."""
    functions: set[str] = field(default_factory=set)
    """Functions of the service that sent statements of any kind."""
    _done: set[tuple[str, str, str]] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def watching(self) -> Iterator["Probe"]:
        """Explain the statements of this process during the block.

        Each pipeline is sent as a transaction, because it has no answers between its statements.
        """
        sent, pipeline = BaseCursor._execute_gen, AsyncConnection.pipeline
        probe = self

        def execute(
            cursor: Any, query: Any, params: Any = None, **options: Any
        ) -> Generator[Any, Any, None]:
            if found := _place(sys._getframe(1)):
                probe.functions.add(found)
                yield from probe._explain(cursor, found, query, params)
            yield from sent(cursor, query, params, **options)

        BaseCursor._execute_gen = execute  # type: ignore[assignment,method-assign]
        AsyncConnection.pipeline = AsyncConnection.transaction  # type: ignore[assignment,method-assign]
        try:
            yield self
        finally:
            BaseCursor._execute_gen = sent  # type: ignore[method-assign]
            AsyncConnection.pipeline = pipeline  # type: ignore[method-assign]

    def _explain(
        self, cursor: Any, place: str, query: Any, params: Any
    ) -> Generator[Any, Any, None]:
        connection, cursor._tx = cursor._conn, Transformer(cursor)
        converted = cursor._convert_query(query, params)
        text = normal(converted.query.decode())
        status = connection.pgconn.transaction_status
        if not _READS_OR_WRITES.match(text):
            return
        self.sent.add((place, text))
        if not self.phase or (place, text, self.phase) in self._done or status not in _BEGIN:
            return
        self._done.add((place, text, self.phase))
        session, values = _Session(connection), _literals(cursor, query, params)
        modes = ("",) if _KEEPS_LOCK.search(text) else (yield from session.modes(self.modes))
        for mode in modes:
            name = f"probe_{next(self._numbers)}"
            yield from session.command(_BEGIN[status])
            found = yield from session.explained(name, converted, values, mode)
            yield from session.command(f"{_END[status]}; DEALLOCATE {name}")
            self.explained.append(Explained(self.phase, place, text, values, mode, **found))


class _Session:
    """Statements of the probe on a connection of the service."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def command(self, statement: str) -> Generator[Any, Any, Any]:
        """Execute SQL text; return the value of its last result."""
        self._connection.pgconn.send_query(statement.encode())
        results = yield from generators.execute(self._connection.pgconn)
        last = results[-1]
        if last.status == ExecStatus.FATAL_ERROR:
            return last.error_message.decode()
        return last.get_value(0, 0)

    def modes(self, modes: Sequence[str]) -> Generator[Any, Any, Sequence[str]]:
        """Return the modes of planning that are possible for the service."""
        usual = yield from self.command("SHOW plan_cache_mode")
        forced = usual.decode().removeprefix("force_").removesuffix("_plan")
        return ("",) if not modes else modes if forced == "auto" else (forced,)

    def explained(
        self, name: str, query: PostgresQuery, values: Sequence[str], mode: str
    ) -> Generator[Any, Any, dict[str, Any]]:
        """Explain a statement, and execute it if there is a mode."""
        pgconn = self._connection.pgconn
        pgconn.send_prepare(name.encode(), query.query, param_types=query.types or None)
        (prepared,) = yield from generators.execute(pgconn)
        if prepared.status == ExecStatus.FATAL_ERROR:
            return {"error": prepared.error_message.decode()}
        execute = f"EXECUTE {name}" + (f"({', '.join(values)})" if values else "")
        if not mode:
            plan = yield from self.command(f"EXPLAIN (FORMAT JSON) {execute}")
            return (
                {"error": plan} if isinstance(plan, str) else {"plan": json.loads(plan)[0]["Plan"]}
            )
        yield from self.command(f"SET LOCAL plan_cache_mode = force_{mode}_plan")
        before = json.loads((yield from self.command(_COUNTERS)))
        plan = yield from self.command(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) {execute}"
        )
        if isinstance(plan, str):
            return {"error": plan}
        after = json.loads((yield from self.command(_COUNTERS)))
        root = json.loads(plan)[0]["Plan"]
        return {"plan": root, **_difference(before, after, int(root["Actual Rows"]))}


def _difference(before: Sequence[Any], after: Sequence[Any], returned: int) -> dict[str, Any]:
    rows_read: dict[str, int] = {}
    sequential = set()
    for (table, kind, scans, read, changed), (_, _, *earlier) in zip(after, before, strict=True):
        returned += changed - earlier[2]
        if kind == "r" and scans > earlier[0]:
            sequential.add(table)
        if read > earlier[1]:
            rows_read[table] = rows_read.get(table, 0) + read - earlier[1]
    return {"sequential": frozenset(sequential), "rows_read": rows_read, "rows": returned}


def _literals(cursor: Any, query: Any, params: Any) -> list[str]:
    """Return the parameters as SQL literals."""
    as_text = cursor._convert_query(query, params)
    if as_text.params is None:
        return []
    as_text._want_formats = [PyFormat.TEXT] * len(as_text.params)
    as_text.dump(params)
    escape = Escaping(cursor._conn.pgconn).escape_literal
    return [
        "NULL" if value is None else bytes(escape(bytes(value))).decode()
        for value in as_text.params
    ]


def normal(statement: str) -> str:
    """Return a statement with ``?`` for parameters and one space for any white space."""
    text = " ".join(re.sub(r"--[^\n]*", "", statement).split())
    text = re.sub(r"\$\d+", "?", text)
    text = re.sub(r"\?(::[\w ]+?(\[\])?)?(, \?(::[\w ]+?(\[\])?)?)+(?=[,)])", "?", text)
    return re.sub(r"\(\?\)(, \(\?\))+", "(?)", text)


def _place(frame: FrameType | None) -> str | None:
    """Return the function of the service that sends a statement, if one does."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(APP) and not path.as_posix().endswith(CARRIERS):
            within = path.relative_to(APP).with_suffix("")
            return ".".join(within.parts) + "." + frame.f_code.co_qualname.replace(".<locals>", "")
        frame = frame.f_back
    return None
