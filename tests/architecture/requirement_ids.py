"""Reads the known requirements, and the ones that tests and issues name.

``python -m tests.architecture.requirement_ids FILE…`` prints the IDs in texts of issues, or in
another table of requirements, that both tables here lack; with any, it exits with 1.
"""

import ast
import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.syntax import parsed

TESTS = Path(__file__).parents[1]
_NAMED = re.compile(
    r"(?<![\w/.#-])(?:(?:00[0-4]|card)/[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*|cw/\d+\.[a-z-]+)(?![\w/])",
    re.ASCII,
)


def known_ids(name: str = "requirements.tsv") -> frozenset[str]:
    """Return the IDs in a table of requirements."""
    with (TESTS / name).open(encoding="utf-8", newline="") as table:
        return frozenset(row["id"] for row in csv.DictReader(table, delimiter="\t"))


def planned_ids() -> frozenset[str]:
    """Return the IDs that issues name and that are not built yet."""
    return known_ids("planned_requirements.tsv")


def named_ids(text: str) -> frozenset[str]:
    """Return the IDs that a text names, such as ``cw/15.owner``; documents' paths are no IDs."""
    return frozenset(_NAMED.findall(text))


def forgotten_ids(text: str) -> list[str]:
    """Return the IDs that a text names and that neither table has."""
    return sorted(named_ids(text) - known_ids() - planned_ids())


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


if __name__ == "__main__":
    forgotten = forgotten_ids("\n".join(Path(name).read_text("utf-8") for name in sys.argv[1:]))
    sys.stdout.write("".join(f"{each}: in no table of requirements\n" for each in forgotten))
    sys.exit(bool(forgotten))
