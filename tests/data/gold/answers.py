"""All right answers, by the file of their cases and the case's id."""

import json
from pathlib import Path
from typing import Any

from tests.data.gold import calendar_cases, math_cases, stock_cases, unseen

CASES = Path(__file__).parent.parent / "cases"
FILES = {"cases": CASES / "cases.json", "unseen": CASES / "unseen.json"}
ANSWERS = {
    "cases": {**math_cases.ANSWERS, **calendar_cases.ANSWERS, **stock_cases.ANSWERS},
    "unseen": unseen.ANSWERS,
}


def load(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file as they are written."""
    cases: list[dict[str, Any]] = json.loads(FILES[name].read_text(encoding="utf-8"))
    return cases
