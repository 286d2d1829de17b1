"""The examples in the guide to graphs work as printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from caseworker.main.agents import build_catalog, build_models, build_tools
from caseworker.main.plugins import Toolbox
from caseworker.settings.schema import Settings

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.req("000/G5", "000/O2")
def test_the_example_in_python_runs_without_a_database() -> None:
    """The example prints its result and its trace."""
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "in_python.py"],
        cwd=EXAMPLES.parents[1],
        env={"PYTHONPATH": str(EXAMPLES.parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )

    lines = ran.stdout.splitlines()
    assert lines[:3] == ["23 letters", "Graph: report", "Status: completed"]
    assert "read/archive (FunctionNode)" in ran.stdout


def test_the_example_over_http_is_a_valid_graph() -> None:
    """There is no warning either."""
    settings = Settings()
    toolbox = Toolbox(settings.tools)
    dispatch = build_tools(settings, toolbox.tools)
    catalog = build_catalog(settings, build_models(settings), dispatch, toolbox)

    assert catalog.examine(json.loads((EXAMPLES / "review.json").read_text()))[1] == ()
