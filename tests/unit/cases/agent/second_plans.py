"""Cases whose operation a second plan confirms."""

import json
from typing import Any

from caseworker.core.budget.budget import Budget
from tests.support.limits import case_defaults
from tests.unit.cases.agent.world import CaseRun, Reply, case_run

DEFAULTS = case_defaults(second_plan="auto")

NO_BIG = Budget(max_llm_calls_big=0)


def second(*calls: tuple[str, dict[str, Any]]) -> str:
    """Return a reply with a second plan."""
    named = [{"function": tool, "arguments": args} for tool, args in calls]
    return json.dumps({"steps": "First this, then that.", "calls": named})


def expression(text: str) -> tuple[str, dict[str, Any]]:
    return "calculator", {"expression": text}


def checked(*small: Reply, **settings: Any) -> CaseRun:
    """Return a world whose cases need their operation confirmed."""
    return case_run(list(small), **{"defaults": DEFAULTS, **settings})


def operation(result: dict[str, Any]) -> bool | None:
    holds: bool | None = result["verification"]["checks"]["operation"]
    return holds
