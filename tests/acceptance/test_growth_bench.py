"""The benchmarks of a growing database run from the first to the last line."""

import sys
from pathlib import Path

import pytest

from tests.support.previous_release import REVISION
from tests.support.processes import ChildProcess

pytestmark = pytest.mark.proof

SMALL_DATABASES = ("--sizes", "3000,6000", "--turns", "20")


async def test_every_route_and_loop_is_measured(tmp_path: Path) -> None:
    """The table has a ratio for every route and loop for which the small database has rows."""
    output = tmp_path / "table.md"
    options = ("growth", *SMALL_DATABASES, "--output", str(output))
    with ChildProcess([sys.executable, "-m", "bench", *options], name="growth") as bench:
        code = await bench.wait(timeout_seconds=1_500)
        errors = bench.stderr

    assert code in (0, 1), errors
    found = output.read_text()
    lines = [line for line in found.splitlines() if line.startswith("|")]
    assert any("GET /runs?status=failed" in line for line in lines)
    assert any("claim with 5,000 waiting tenants" in line for line in lines)
    assert any("a turn of a chat (small)" in line for line in lines)
    assert "not measured:" not in errors
    assert len([line for line in lines if line.endswith("|  |  |  |  |")]) < 10


async def test_migrations_under_load_are_reported(tmp_path: Path) -> None:
    """Both releases answer while the schema of the previous release is upgraded."""
    output = tmp_path / "report.md"
    options = ("migrations", "--size", "300", "--seconds", "5", "--output", str(output))
    with ChildProcess([sys.executable, "-m", "bench", *options], name="migrations") as bench:
        assert await bench.wait(timeout_seconds=900) == 0

    report = output.read_text()
    assert "| previous release | migrations |" in report
    assert "| this release | both releases |" in report
    assert f"| {REVISION} |" not in report.split("| process |")[0]
    assert "Errors, previous release: none" in report
    assert "Errors, this release: none" in report
