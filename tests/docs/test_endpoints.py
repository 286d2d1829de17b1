"""The table of endpoints counts the captures."""

import re
from collections import Counter

from tests.support.pages import ROOT
from tests.unit.models.wires.captured import captures


def test_the_table_of_endpoints_counts_every_capture() -> None:
    """S is a streamed reply, W a whole one, E an error; each capture is in one row."""
    text = (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in text.splitlines() if line.startswith("| "))
    stated = Counter[str]()
    for number, kind in re.findall(r"\b(\d+) ([SWE])\b", table):
        stated[kind] += int(number)
    found = Counter(
        "E" if each.status != 200 else "S" if each.streamed else "W" for each in captures()
    )

    assert stated == found
    assert f"{found.total()} captures" in text
