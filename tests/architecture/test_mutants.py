"""The mutants of ``python -m tests.mutants``: where they are drawn, and which tests are near."""

import ast
from pathlib import Path

import pytest

from tests.mutants import NEAR, PACKAGES, ROOT, SOURCE, TWO_TENANTS, conditions_of, edits_of_sql
from tests.mutants import mutants_of as mutants_of_file

SHELL = {"cli", "main", "runtime_api", "settings", "ui"}
"""Packages around the core, which are not mutated."""


def test_every_package_is_mutated_or_belongs_to_the_shell() -> None:
    """A new package is drawn from."""
    packages = {each.parent.name for each in (ROOT / SOURCE).glob("*/__init__.py")}

    assert packages - SHELL == set(PACKAGES)
    features = {f"features/{each.parent.name}" for each in (ROOT / SOURCE).glob("features/*/*.py")}
    assert features - NEAR.keys() <= {"features/features"}


@pytest.mark.parametrize("package", [*NEAR, "two tenants"])
def test_the_tests_near_a_package_exist(package: str) -> None:
    """A renamed test file is renamed in the table."""
    for each in NEAR.get(package, TWO_TENANTS).split():
        found = [*(ROOT / "tests").glob(f"{each}.py"), *(ROOT / "tests").glob(f"{each}/test_*.py")]
        below = (ROOT / "tests" / each).glob("**/test_*.py") if "*" not in each else ()
        assert [*found, *below], each


STATEMENT = """SELECT a FROM t JOIN u ON t.id = u.id WHERE tenant_id = %s AND fence >= {fence}
    AND n BETWEEN 1 AND 2 AND (b IS NULL OR c < 'AND') AND EXISTS (SELECT FROM w WHERE w.id = 1)"""


def test_the_conditions_of_statements_are_found() -> None:
    """Joins, alternatives and subqueries have their own; the AND of BETWEEN separates none."""
    text = f"{STATEMENT};"
    found = {text[start:end] for start, end, _ in conditions_of(text)}

    assert found == {
        *("t.id = u.id", "tenant_id = %s", "fence >= {fence}", "n BETWEEN 1 AND 2", "c < 'AND'"),
        *("(b IS NULL OR c < 'AND')", "w.id = 1", "EXISTS (SELECT FROM w WHERE w.id = 1)"),
    }
    edited = [text[:start] + new + text[end:] for start, end, new in edits_of_sql(text)]
    for changed in ("((tenant_id = %s) OR true)", "fence > {fence}", "((c < 'AND') AND false)"):
        assert sum(changed in each for each in edited) == 1


@pytest.mark.parametrize(
    "path", ["runs/accept/postgres/quotas.py", "gateway/serve.py", "engine/call.py"]
)
def test_mutants_can_be_parsed(path: str) -> None:
    """A syntax error would fail any test."""
    mutants = list(mutants_of_file(str(Path(SOURCE) / path)))
    for mutant in mutants[::40]:
        ast.parse(mutant.mutated)

    assert len(mutants) > 50
    assert any(mutant.is_sql for mutant in mutants) is ("postgres" in path)
