"""What may be spent (seed 000, REQ-B1; spec, section 3)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

Amount = int | float | Decimal


class Dimension(StrEnum):
    """What is counted. The value is the name that callers, results and errors use."""

    TOKENS = "tokens"
    """Input plus output tokens."""
    SECONDS = "seconds"
    STEPS = "steps"
    """Step executions; further attempts of a step are not counted."""
    API_CALLS = "api_calls"
    """Provider attempts."""
    COST_USD = "cost_usd"
    LLM_CALLS_SMALL = "llm_calls_small"
    """Logical calls of the small tier, reprompts included."""
    LLM_CALLS_BIG = "llm_calls_big"
    TOOL_CALLS = "tool_calls"
    """Tool attempts."""
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a scope: None is unlimited, 0 allows nothing.

    The names are those of seed 000; ``max_seconds`` and ``max_cost_usd`` of the HTTP API are
    ``max_time_seconds`` and ``max_cost_dollars`` here.

    Raises:
        ValueError: a limit is negative, NaN, infinite or not a number; the message names it.
    """

    max_tokens: int | None = None
    max_time_seconds: float | None = None
    max_steps: int | None = None
    max_api_calls: int | None = None
    max_cost_dollars: float | Decimal | None = None
    max_llm_calls_small: int | None = None
    max_llm_calls_big: int | None = None
    max_tool_calls: int | None = None
    max_turns: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            _require_limit(field.name, getattr(self, field.name))

    def limits(self) -> dict[Dimension, Amount]:
        """Return what is limited, by dimension; money as an exact decimal."""
        found = {dimension: getattr(self, name) for dimension, name in _FIELDS.items()}
        limits = {dimension: limit for dimension, limit in found.items() if limit is not None}
        if Dimension.COST_USD in limits:
            limits[Dimension.COST_USD] = money(limits[Dimension.COST_USD])
        return limits

    def merged_with(self, ceiling: "Budget") -> "Budget":
        """Return the smaller of both limits in every dimension."""
        names = _FIELDS.values()
        merged: dict[str, Any] = {
            name: _smaller(getattr(self, name), getattr(ceiling, name)) for name in names
        }
        return replace(self, **merged)


_FIELDS: Mapping[Dimension, str] = {
    Dimension.TOKENS: "max_tokens",
    Dimension.SECONDS: "max_time_seconds",
    Dimension.STEPS: "max_steps",
    Dimension.API_CALLS: "max_api_calls",
    Dimension.COST_USD: "max_cost_dollars",
    Dimension.LLM_CALLS_SMALL: "max_llm_calls_small",
    Dimension.LLM_CALLS_BIG: "max_llm_calls_big",
    Dimension.TOOL_CALLS: "max_tool_calls",
    Dimension.TURNS: "max_turns",
}

_TYPES: Mapping[str, tuple[type, ...]] = {
    "max_time_seconds": (int, float),
    "max_cost_dollars": (int, float, Decimal),
}
"""What a limit may be that is not a whole number."""


def money(value: Amount) -> Decimal:
    """Return an amount of US dollars as the decimal that it was written as."""
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _require_limit(name: str, limit: Amount | None) -> None:
    if limit is None:
        return
    allowed = _TYPES.get(name, (int,))
    if isinstance(limit, bool) or not isinstance(limit, allowed):
        kind = "a whole number" if allowed == (int,) else "a number"
        raise ValueError(f"{name} must be {kind} or None, not {limit!r}.")
    if not _is_finite(limit) or limit < 0:
        raise ValueError(f"{name} must be zero, positive or None (unlimited), not {limit}.")


def _is_finite(limit: Amount) -> bool:
    try:
        return math.isfinite(limit)
    except (OverflowError, ValueError):  # a whole number beyond every float, a signalling NaN
        return False


def _smaller(one: Amount | None, other: Amount | None) -> Amount | None:
    if one is None or other is None:
        return other if one is None else one
    return one if one <= other else other
