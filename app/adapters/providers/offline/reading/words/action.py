"""What a question comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Action:
    """One tool call."""

    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to read a question: what to do, and what could be done besides."""

    actions: tuple[Action, ...]
    """In order; a later one may use what an earlier one found: ``${result.1}``."""
    besides: Mapping[str, Action] = field(default_factory=dict)
    """By tool: what would show more of the very same thing, for callers who expect that tool."""
    flexible: bool = False
    """True if the days come from a name such as ``2012``, not from dates that were given.

    Then they are the trading days of that year, wherever in it the prices begin.
    """


def alone(action: Action) -> Reading:
    """Return the reading that is one action."""
    return Reading(actions=(action,))
