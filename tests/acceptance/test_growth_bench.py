"""The benchmarks of a growing database run from the first to the last line."""

import sys
from pathlib import Path

import pytest

from tests.support.previous_release import REVISION
from tests.support.processes import ChildProcess

pytestmark = pytest.mark.proof


async def test_every_route_and_loop_succeeds(tmp_path: Path) -> None:
    """Every answer is the success that its line is named for, on both databases."""
    output = tmp_path / "table.md"
    options = ("growth", "--check", "--sizes", "1000,2000", "--turns", "3", "--output", str(output))
    with ChildProcess([sys.executable, "-m", "bench", *options], name="growth") as bench:
        code = await bench.wait(timeout_seconds=600)
        errors = bench.stderr

    assert code == 0, errors
    measured = output.read_text()
    assert "Failed: none." in measured
    assert "GET /runs?status=failed (large)" in measured
    assert "claim with 200 waiting tenants" in measured
    assert "a turn of a chat (small)" in measured
    assert "not measured:" not in errors


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
