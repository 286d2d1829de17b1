"""The entries of all statements, their exceptions, and the functions whose code sends some.

``statements.toml`` lists the statements of each function of the service: the verb, and the tables
and SQL functions in it. ``python -m tests.integration.plans`` writes it. ``exceptions.toml`` is
written by hand.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.integration.plans.probe import APP, CARRIERS

STATEMENTS: Final = Path(__file__).with_name("statements.toml")
EXCEPTIONS: Final = Path(__file__).with_name("exceptions.toml")

Entry = tuple[str, str]
"""The function that sends a statement, and the summary of the statement."""

LINE: Final = 120
"""Longest line of an entry with several statements."""

_SENDS: Final = frozenset(
    {"execute", "exec_driver_sql", "scalar", "scalars", "read_row", "read_rows"}
)
"""Names of the functions that send statements."""

_NAMES: Final = """
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')
    AND relname <> 'alembic_version'
UNION SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


def names_of(connection: psycopg.Connection) -> frozenset[str]:
    """Return the names of the tables, views and functions of a database."""
    return frozenset(name for (name,) in connection.execute(_NAMES).fetchall())


def entries_of(sent: Iterable[tuple[str, str]], names: Set[str]) -> Set[Entry]:
    """Return the entries of statements; those that name no table or function have none."""
    found = ((place, _summary(text, names)) for place, text in sent)
    return {(place, summary) for place, summary in found if summary}


def _summary(statement: str, names: Set[str]) -> str:
    """Return the verb of a statement and the tables and functions in it; empty if it has none."""
    text = re.sub(r"'[^']*'|FOR (NO KEY )?UPDATE|DO UPDATE", "", statement)
    named = sorted(names & set(re.findall(r"\w+", text)))
    verb = re.search(r"\b(INSERT|UPDATE|DELETE)\b", text)
    return f"{verb[0] if verb else 'SELECT'} {', '.join(named)}" if named else ""


def written(sent: Iterable[tuple[str, str]], names: Set[str]) -> str:
    """Return the content of ``statements.toml``."""
    by_module: dict[str, dict[str, list[str]]] = {}
    for place, summary in sorted(entries_of(sent, names)):
        module = re.split(r"\.(?=_?[A-Z])|\.(?=\w+$)", place, maxsplit=1)[0]
        by_module.setdefault(module, {}).setdefault(place[len(module) + 1 :], []).append(summary)
    lines = ["# `python -m tests.integration.plans` writes this file."]
    for module, functions in by_module.items():
        lines += ["", f'["{module}"]']
        for function, summaries in functions.items():
            quoted = [f'"{each}"' for each in summaries]
            line = f'"{function}" = [{", ".join(quoted)}]'
            if len(line) > LINE:
                line = "\n    ".join((f'"{function}" = [', *(f"{each}," for each in quoted)))
                line += "\n]"
            lines.append(line)
    return "\n".join(lines) + "\n"


def expected() -> Set[Entry]:
    """Return the entries of ``statements.toml``."""
    return {
        (f"{module}.{function}", summary)
        for module, functions in tomllib.loads(STATEMENTS.read_text()).items()
        for function, summaries in functions.items()
        for summary in summaries
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """What some statements may read beyond the usual, and why."""

    place: str
    """The function that sends them."""
    reason: str
    contains: str = ""
    """A part of their text."""
    rows: int = 0
    """Most rows that one may read on the large database."""
    scans: list[str] = field(default_factory=list)
    """Tables that they may read sequentially."""


def exemptions() -> list[Exemption]:
    """Return the exemptions from the usual bounds."""
    return [Exemption(**each) for each in _exceptions()["reads"]]


def unreached() -> Set[str]:
    """Return the functions that send statements outside of all routes and loops."""
    return set(_exceptions()["unreached"])


def _exceptions() -> dict[str, Any]:
    return tomllib.loads(EXCEPTIONS.read_text())


def senders() -> Iterator[str]:
    """Yield the functions of the service whose code sends statements."""
    for path in sorted(APP.rglob("*.py")):
        source = path.read_text()
        carries = path.as_posix().endswith(CARRIERS)
        if not carries and re.search("psycopg|sqlalchemy|postgres", source):
            module = ".".join(path.relative_to(APP).with_suffix("").parts)
            yield from (f"{module}.{name}" for name in _senders(ast.parse(source), ()))


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
