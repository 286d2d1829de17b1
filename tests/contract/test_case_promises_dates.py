"""Case contracts for dates that a machine with a single locale cannot show."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "app"
TELLS_DATES = ("caseworker_cases", "caseworker/core/trace")
"""Packages whose date texts reach callers, prompts and pictures."""

_LOCALISED = re.compile(r"%-?[aAbBcpxX](?![A-Za-z])")
"""Format codes that strftime fills in the language of the process."""


@pytest.mark.req("002/25.2", "002/25.3")
@pytest.mark.parametrize("package", TELLS_DATES)
def test_no_date_is_written_in_the_language_of_the_process(package: str) -> None:
    """Names of days and months come from our own tables instead of the locale.

    strftime and format would take them from the operating system. Few machines have a foreign
    locale installed, so a test that sets one would prove nothing.
    """
    sources = sorted((ROOT / package).rglob("*.py"))

    found = [
        f"{source.relative_to(ROOT)}:{number}"
        for source in sources
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1)
        if _LOCALISED.search(line)
    ]

    assert sources
    assert found == []
