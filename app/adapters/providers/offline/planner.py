"""Turns what a planner is told into a plan, or says why it cannot."""

from typing import Any

from app.adapters.providers.offline.prompt import PlanningPrompt
from app.adapters.providers.offline.reading.questions import NotUnderstoodError, understand

Plan = dict[str, Any]
"""``{"actions": [{"tool", "args"}]}`` or ``{"cannot": why}``."""


def plan(prompt: PlanningPrompt) -> Plan:
    """Return the plan for a question; it never guesses (spec, section 8).

    It knows one plan for a question. If that failed, or was carried out already, it says so instead
    of making it again.
    """
    error = prompt.error()
    if error is not None:
        return _cannot(f"My plan failed, and I know no other. {error}")
    try:
        actions = understand(prompt.question, prompt.today)
    except NotUnderstoodError as reason:
        return _cannot(str(reason))
    for action in actions:
        if prompt.tools is not None and action.tool not in prompt.tools:
            return _cannot(f"I do not understand how to answer without the tool {action.tool}.")
        if prompt.tried(action.tool, action.args):
            return _cannot(f"I asked the tool {action.tool} already, and know no other plan.")
    return {"actions": [{"tool": action.tool, "args": dict(action.args)} for action in actions]}


def _cannot(reason: str) -> Plan:
    return {"cannot": reason}
