"""The locale of the operating system does not change how dates are read and written."""

import asyncio
import json
import locale
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from caseworker.tools.ports import ToolContext
from caseworker_cases.tools.calendar import Calendar

LOCALES = {"de_DE": "Montag", "fr_FR": "lundi"}
"""Locales, and their word for Monday."""

QUESTIONS: list[dict[str, Any]] = [
    {"operation": "normalise", "date": "8 September 2025"},
    {"operation": "normalise", "date": "Mon, March 3, 2025"},
    {"operation": "normalise", "date": "8. September 2025"},
    {"operation": "normalise", "date": "8 septembre 2025"},
    {"operation": "normalise", "date": "13/04/2025"},
    {"operation": "normalise", "date": "03/04/2025"},
    {"operation": "add", "date": "2025-01-31", "amount": 1, "unit": "months"},
]


def answers() -> list[Any]:
    """Return the calendar's answer to each question in the locale of this process."""
    now = datetime(2025, 1, 15, 12, tzinfo=UTC)
    context = ToolContext(run_id="r", timezone="UTC", now=now)

    async def ask() -> list[Any]:
        return [dict(await Calendar().run(question, context)) for question in QUESTIONS]

    return asyncio.run(ask())


def answer_in_the_locale_of_the_environment() -> None:
    """Print the system's word for Monday, and the answers."""
    locale.setlocale(locale.LC_ALL, "")
    print(json.dumps([datetime(2025, 9, 8).strftime("%A"), answers()]))  # noqa: DTZ001, T201


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the compiled locales, which most machines lack."""
    folder = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("no locales can be made here")
    for name in LOCALES:
        target = folder / f"{name}.UTF-8"
        command = ["localedef", "--no-archive", "-i", name, "-f", "UTF-8", str(target)]
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.req("002/25.3")
@pytest.mark.parametrize("name", LOCALES)
def test_the_locale_of_the_process_changes_nothing(name: str, locales: Path) -> None:
    """German and French processes give the same answers as one without a locale."""
    program = f"from {__name__} import *; answer_in_the_locale_of_the_environment()"
    variables = {**os.environ, "LOCPATH": str(locales), "LC_ALL": f"{name}.UTF-8"}

    ran = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
    )

    monday, found = json.loads(ran.stdout)
    assert monday == LOCALES[name]
    assert found == answers()
    assert found[0]["text"] == "Monday, September 8, 2025"
    assert found[0] != found[5]
    assert "error" in found[5]
