"""Reads the known requirements, and the ones that tests are marked with."""

import ast
import csv
from collections.abc import Iterator
from pathlib import Path

from tests.support.syntax import parsed

TESTS = Path(__file__).parents[1]


def known_ids() -> frozenset[str]:
    """Return the IDs in the requirements table."""
    with (TESTS / "requirements.tsv").open(encoding="utf-8", newline="") as table:
        return frozenset(row["id"] for row in csv.DictReader(table, delimiter="\t"))


def marked_ids(source: str) -> Iterator[str]:
    """Yield the IDs in every ``pytest.mark.req(...)`` of a source; other expressions as code."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.req":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value
                else:
                    yield ast.unparse(argument)


def unknown_ids(source: str, known: frozenset[str]) -> list[str]:
    """Return the marked IDs that are missing from the table."""
    return sorted(set(marked_ids(source)) - known)
