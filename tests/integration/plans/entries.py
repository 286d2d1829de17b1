"""The entries of statements in ``statements.toml``, and the places in the code that send some."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.integration.plans.probe import APP, CARRIERS, normal

FILE = Path(__file__).with_name("statements.toml")

_SENDS = frozenset({"execute", "exec_driver_sql", "scalar", "scalars", "read_row"})
"""Names of the functions that send statements."""

_NAMES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') AND relname <> 'alembic_version'
UNION SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


def names_of(connection: psycopg.Connection) -> frozenset[str]:
    """Return the names of the tables, views and functions of a database."""
    return frozenset(name for (name,) in connection.execute(_NAMES).fetchall())


def summary_of(statement: str, names: Set[str]) -> str:
    """Return the verb of a statement and the tables and functions in it; empty if it has none."""
    found = sorted(names & set(re.findall(r"\w+", statement)))
    verb = re.search(r"\b(INSERT|UPDATE|DELETE)\b", re.sub(r"FOR (NO KEY )?UPDATE|DO UPDATE", "", statement))
    return f"{verb[0] if verb else 'SELECT'} {', '.join(found)}" if found else ""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a statement may read beyond the usual."""

    rows: int = 0
    """Most rows that it may read on the large database."""
    scans: frozenset[str] = frozenset()
    """Tables that it may read sequentially."""


@dataclass(frozen=True)
class Entries:
    """The content of ``statements.toml``."""

    statements: Mapping[str, list[str]]
    """Summaries of the statements of each function."""
    sometimes: Mapping[str, list[str]]
    """Those that depend on the order of concurrent work."""
    exceptions: list[Mapping[str, Any]]
    unreached: Set[str]
    """Functions that send statements outside of the routes and loops."""

    @classmethod
    def read(cls) -> Self:
        """Read the file."""
        found = tomllib.loads(FILE.read_text())
        return cls(
            found["statements"],
            found["sometimes"],
            found["exceptions"],
            frozenset(found["unreached"]),
        )

    @cached_property
    def always(self) -> Set[tuple[str, str]]:
        """The statements that the scenario sends each time, as places and summaries."""
        return _pairs(self.statements)

    @cached_property
    def all(self) -> Set[tuple[str, str]]:
        """All statements, as places and summaries."""
        return self.always | _pairs(self.sometimes)

    def exception_of(self, place: str, statement: str) -> Allowance:
        """Return what a statement may read."""
        for each in self.exceptions:
            if each["place"] == place and each.get("contains", "") in statement:
                return Allowance(each.get("rows", 0), frozenset(each.get("scans", ())))
        return Allowance()


def _pairs(statements: Mapping[str, list[str]]) -> Set[tuple[str, str]]:
    return {(place, each) for place, summaries in statements.items() for each in summaries}


def sites() -> Iterator[str]:
    """Yield the functions of the service whose code sends statements."""
    for path in sorted(APP.rglob("*.py")):
        source = path.read_text()
        if re.search("psycopg|sqlalchemy|postgres", source) and not path.as_posix().endswith(CARRIERS):
            within = ".".join(path.relative_to(APP).with_suffix("").parts)
            yield from (f"{within}.{name}" for name in _senders(ast.parse(source), ()))


def _senders(node: ast.AST, within: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _senders(child, (*within, child.name))
            continue
        if isinstance(child, ast.Call):
            called = child.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in _SENDS and within:
                yield ".".join(within)
        yield from _senders(child, within)
