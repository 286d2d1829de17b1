"""Standing keys: keys for the gateway that open external runs by themselves, within budgets.

A standing key is ``cwa_<id>_<secret>``. Its budgets are accounts
(:mod:`caseworker.core.budget.accounts`): one for the key, and one for each of its sessions. A key
that replaces it by a rotation keeps its accounts.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from caseworker.core.budget.accounts import COUNTED

AGENT_PREFIX: Final = "cwa_"
AGENT_FORM: Final = re.compile(r"cwa_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)

COUNTED_LIMITS: Final = tuple(f"max_{each}" for each in COUNTED)
"""JSON names of the limits that the budgets of a standing key may have."""

IDLE_SECONDS: Final = 600.0
SESSIONS_PER_HOUR: Final = 60
OPEN_SESSIONS: Final = 50

Limits = Mapping[str, Any]
"""Limits by their JSON name, such as ``max_cost_usd``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTerms:
    """The budgets, models and rates of a standing key."""

    budget: Limits | None = None
    """Limits of each session over all its runs; those of the unnamed session apply to each UTC day.
    None is unlimited, here and below."""
    budget_per_day: Limits | None = None
    """Limits of all sessions together, in a UTC day."""
    budget_per_month: Limits | None = None
    """Limits of all sessions together, in a month in UTC."""
    models: list[str] | dict[str, str] | None = None
    """Models of each run, as in the request for an external run."""
    idle_seconds: float = IDLE_SECONDS
    """Seconds without an accepted call after which a run of a session ends."""
    max_sessions_per_hour: int = SESSIONS_PER_HOUR
    """Maximum number of sessions whose first call is within an hour."""
    max_open_sessions: int = OPEN_SESSIONS
    """Maximum number of sessions that have a run that has not ended."""
    webhook: Mapping[str, str] | None = None
    """Receiver of messages when 70 and 90 % of a budget are spent: its ``url``."""

    @property
    def limits_cost(self) -> bool:
        """Whether a budget limits the cost, so that models without a known price are refused."""
        return any(
            budget and budget.get("max_cost_usd") is not None
            for budget in (self.budget, self.budget_per_day, self.budget_per_month)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return asdict(self)
