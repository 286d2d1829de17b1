"""Rules for the files of the tests."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def imported_test_modules(source: str) -> list[str]:
    """Return the test modules that a module imports."""
    return [
        name
        for node in ast.walk(ast.parse(source))
        for name in _imports(node)
        if any(part.startswith("test_") for part in name.split(".")) and name.startswith("tests.")
    ]


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_a_test_module() -> None:
    """What several tests need is in ``tests/support`` or in a module next to them."""
    importers = {
        str(path.relative_to(ROOT)): names
        for path in TESTS.rglob("*.py")
        if (names := imported_test_modules(path.read_text(encoding="utf-8")))
    }

    assert importers == {}


@pytest.mark.parametrize(
    "line",
    [
        "import tests.unit.test_x",
        "from tests.unit.test_x import World",
        "from tests.unit import test_x",
        "def late():\n    from tests.test_x import World",
    ],
)
def test_an_import_of_a_test_module_is_noticed(line: str) -> None:
    """Each form of an import counts, wherever it is; other imports do not."""
    assert imported_test_modules(line)
    assert not imported_test_modules(line.replace("test_x", "world"))


def test_the_contract_between_features_names_every_feature() -> None:
    """A folder that the contract does not name could import every other one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (named,) = (each["modules"] for each in contracts if "in these pairs" in each["name"])
    folders = (ROOT / "app" / "caseworker" / "features").glob("*/__init__.py")

    assert sorted(named) == sorted(f"caseworker.features.{path.parent.name}" for path in folders)
