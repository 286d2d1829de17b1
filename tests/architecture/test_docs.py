"""Files and definitions that the documents name must exist."""

import ast
import re
from pathlib import Path

import pytest

from caseworker.settings.schema import Settings
from tests.support.syntax import parsed

ROOT = Path(__file__).parents[2]
SOURCES = ("app/caseworker", "app")
"""Base folders for files named in a document."""
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FILE = re.compile(r"`((?:app/)?(?:[a-z_]+/)+[a-z_]+\.py)`")
SERVICE = re.compile(
    r"(?<!BASE_URL=http://)(?<!webhooks test http://)"
    r"(?:localhost|127\.0\.0\.1):(\d+)(?!\d|/v1\b)"
)
"""An address on this machine other than that of a model server or a receiver of webhooks."""
HOP = re.compile(r"`([a-z_/]+\.py)` `([A-Za-z_.]+)`")


def definitions_of(source: Path) -> set[str]:
    """Return the functions and methods of a file, methods also with their class name."""
    found: set[str] = set()
    for node in parsed(source.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for each in (node, *inner):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                found |= {each.name, owner + each.name}
    return found


def test_each_difference_from_the_source_documents_has_a_reason() -> None:
    """Each row names the document, its statement, our behaviour and the reason."""
    text = (ROOT / "docs" / "differences.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if re.match(r"\| \d{3}", line)
    ]

    assert len(rows) >= 20
    assert [row for row in rows if len(row) != 4 or not all(row)] == []
    assert {name for row in rows for name in row[0].split(", ")} == {
        *("000", "001", "002", "003", "004"),
    }
    for word in ("a limit of 0", "failed and halted calls keep", "2 retries", "`null`", "version"):
        assert word in text
    assert "`BaseException`" in text
    assert "snake_case" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    """Paths are relative to the root or to the package."""
    named = FILE.findall(document.read_text())

    missing = [
        name for name in named if not any((ROOT / top / name).is_file() for top in ("", *SOURCES))
    ]

    assert missing == []


def test_every_hop_of_a_run_is_a_definition_of_its_file() -> None:
    """The path of a run is a list of about thirty lines that a reader can follow in the code."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    hops = HOP.findall(text.partition("## The path of a run")[2].partition("\n## ")[0])

    missing = [
        (file, name)
        for file, name in hops
        if not any(
            name in definitions_of(path)
            for path in (ROOT / top / file for top in SOURCES)
            if path.is_file()
        )
    ]

    assert 25 <= len(hops) <= 35
    assert missing == []


def test_the_sizes_of_the_packages_are_those_of_the_code() -> None:
    """Each package of the service is listed; its lines are right within a tenth."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("## The packages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([0-9.]+)k \|", table, re.MULTILINE)
    sizes = {
        tuple(re.findall(r"`([a-z_]+)/?`", names)): float(lines) * 1000 for names, lines in rows
    }

    def lines_of(package: str) -> int:
        folder = ROOT / "app" / ("" if package == "caseworker_cases" else "caseworker") / package
        return sum(path.read_text().count("\n") for path in folder.rglob("*.py"))

    listed = {package for packages in sizes for package in packages}
    existing = {path.parent.name for path in (ROOT / "app/caseworker").glob("*/__init__.py")}
    assert listed == existing | {"caseworker_cases"}
    assert {
        packages: (stated, found)
        for packages, stated in sizes.items()
        if abs(stated - (found := sum(map(lines_of, packages)))) > max(100, found / 10)
    } == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_address_of_the_service_has_its_default_port(document: Path) -> None:
    """Commands in the documents work as printed."""
    ports = set(SERVICE.findall(document.read_text()))

    assert ports <= {str(Settings().server.port)}
