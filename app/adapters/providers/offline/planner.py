"""Turns what a planner is told into a plan, or says why it cannot."""

from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from typing import Any, Final

from app.adapters.providers.offline.prompt import PlanningPrompt
from app.adapters.providers.offline.reading.questions import NotUnderstoodError, understand
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.tokens import MAX_CHARS
from app.adapters.providers.offline.replanning import within

Plan = dict[str, Any]
"""``{"actions": [{"tool", "args"}]}`` or ``{"cannot": why}``."""

MAX_ACTIONS: Final = 3
_REMEMBERED: Final = 128
"""Questions whose readings are kept; each has at most ``MAX_CHARS`` characters."""
_ORDER: Final = ("data_fetch_stock", "numeric_analysis", "plotter")
"""How the tools for stocks follow one another where none needs another's result."""


def plan(prompt: PlanningPrompt) -> Plan:
    """Return the plan for a question; it never guesses (spec, section 8).

    It knows one plan for a question. If that failed, or was carried out already, it says so instead
    of making it again; only days on which there are no prices yet can be left out of it.
    """
    error = prompt.error()
    if error is not None and not prompt.beginnings():
        return _cannot(f"My plan failed, and I know no other. {error}")
    reading = _reading(prompt.question, prompt.today)
    if isinstance(reading, str):
        return _cannot(reading)
    actions = with_expected(reading, prompt.expected_tools)
    for action in actions:
        if prompt.tools is not None and action.tool not in prompt.tools:
            return _cannot(f"I do not understand how to answer without the tool {action.tool}.")
    if error is not None:
        actions, first = within(reading, actions, prompt.beginnings()), actions
        if actions == first:
            return _cannot(f"My plan failed, and I know no other. {error}")
    if done := next((a for a in actions if prompt.tried(a.tool, a.args)), None):
        return _cannot(f"I asked the tool {done.tool} already, and know no other plan.")
    return {"actions": [{"tool": action.tool, "args": dict(action.args)} for action in actions]}


def _reading(question: str, today: date) -> Reading | str:
    """Return what a question comes to, or why it is not understood."""
    return _remembered(question, today) if len(question) <= MAX_CHARS else _read(question, today)


def _read(question: str, today: date) -> Reading | str:
    try:
        return understand(question, today)
    except NotUnderstoodError as reason:
        return str(reason)


_remembered = lru_cache(maxsize=_REMEMBERED)(_read)
"""A case asks the same in its next step and its next tier, and gets the same."""


def with_expected(reading: Reading, expected: Sequence[str]) -> tuple[Action, ...]:
    """Return the actions, and those of the expected tools that show more of the same."""
    actions = list(reading.actions)
    for tool in expected:
        wanted = reading.besides.get(tool)
        used = {action.tool for action in actions}
        if wanted is not None and tool not in used and len(actions) < MAX_ACTIONS:
            actions.append(wanted)
    if all(action.tool in _ORDER for action in actions):
        actions.sort(key=lambda action: _ORDER.index(action.tool))
    return tuple(actions)


def _cannot(reason: str) -> Plan:
    return {"cannot": reason}
