"""Budgets: limits on the time, tokens, cost and calls of a run.

Python code, HTTP bodies, graph documents, stored runs and settings all use :class:`Budget`. Some of
its fields have a different name in JSON (:data:`JSON_NAMES`). Pydantic builds it from JSON through
its annotations, but this module does not import pydantic.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, NamedTuple, Self

from annotated_types import Ge, Le

Amount = int | float | Decimal

MAX_LIMIT = 2**63 - 1
"""The largest integer that JSON may contain as a limit."""


class Unit(Enum):
    """The unit of an amount; the value is the number types that a limit in this unit may have."""

    COUNT = (int,)
    SECONDS = (int, float)
    US_DOLLARS = (int, float, Decimal)

    def text(self, amount: Amount) -> str:
        """Format an amount: seconds as ``1.5s``, dollars as ``$0.01``; counts have no unit."""
        match self:
            case Unit.SECONDS:
                return f"{amount:.1f}s"
            case Unit.US_DOLLARS:
                return f"${Decimal(amount).normalize():f}"
            case Unit.COUNT:
                return str(amount)


class _Row(NamedTuple):
    """The properties of a dimension; :class:`Dimension` describes them."""

    letter: str | None
    quantity: str
    headline: str | None = None
    unit: Unit = Unit.COUNT
    field: str | None = None
    allows_last_answer: bool = False
    interrupts: bool = False


_NO_ROW = _Row(None, "")


class Dimension(StrEnum):
    """A quantity that usage counts and a budget can limit; the value is its name in the API.

    This is the only table of dimensions. A new limit also needs its field in :class:`Budget`.
    """

    letter: str | None
    """Its name in stored charges, which the database view ``journal`` also reads; None if it is
    never stored."""
    quantity: str
    """Noun phrase for the counted quantity, as in the help of the command line."""
    headline: str
    """How the message about an exceeded limit starts; empty if no budget limits this dimension."""
    unit: Unit
    field: str
    """Name of its limit in :class:`Budget`."""
    interrupts: bool
    """Whether reaching the limit interrupts work in flight, as the time limit does. Such an amount
    grows with time: no charge contains it, so it cannot be reserved."""
    allows_last_answer: bool
    """Whether an agent may make a last, shorter model call after this limit refused a call."""

    TOKENS = (
        "tokens",
        _Row(
            "t",
            "number of input and output tokens together",
            "The {owner}'s token budget is spent",
            allows_last_answer=True,
        ),
    )
    SECONDS = (
        "seconds",
        _Row(
            "s",
            "duration in seconds; waiting in the queue does not count",
            "Time limit exceeded",
            Unit.SECONDS,
            field="max_time_seconds",
            interrupts=True,
        ),
    )
    STEPS = "steps", _Row("p", "number of executed steps", "Step limit exceeded")
    """Retries of a step are not counted."""
    API_CALLS = (
        "api_calls",
        _Row(
            "a",
            "number of requests to model providers, retries included",
            "API call limit exceeded",
        ),
    )
    COST_USD = (
        "cost_usd",
        _Row(
            "c",
            "cost in US dollars; models whose price is unknown are refused",
            "Cost limit exceeded",
            Unit.US_DOLLARS,
            field="max_cost_dollars",
            allows_last_answer=True,
        ),
    )
    LLM_CALLS = (
        "llm_calls",
        _Row(None, "number of LLM calls to all models together", "LLM call limit exceeded"),
    )
    """A reprompt (the request to correct an unusable answer) counts as another call, but a retry
    does not. Stored charges contain only the calls of the two tiers."""
    LLM_CALLS_SMALL = (
        "llm_calls_small",
        _Row(
            "m",
            "number of LLM calls to models of the small tier",
            "Small-tier LLM call limit exceeded",
        ),
    )
    LLM_CALLS_BIG = (
        "llm_calls_big",
        _Row(
            "b", "number of LLM calls to models of the big tier", "Big-tier LLM call limit exceeded"
        ),
    )
    TOOL_CALLS = (
        "tool_calls",
        _Row(
            "o",
            "number of executed tool calls, retries included",
            "Tool call limit exceeded",
            allows_last_answer=True,
        ),
    )
    TURNS = (
        "turns",
        _Row(
            "r",
            "number of agent turns, each with one model call and its tool calls",
            "Turn limit exceeded",
        ),
    )
    TOKENS_ESTIMATED = (
        "tokens_estimated",
        _Row("e", "estimated tokens of calls whose response was lost"),
    )
    """Included in ``tokens``."""
    COST_USD_ESTIMATED = (
        "cost_usd_estimated",
        _Row("f", "estimated cost of calls whose response was lost", unit=Unit.US_DOLLARS),
    )
    """Included in ``cost_usd``."""
    UNPRICED_CALLS = "unpriced_calls", _Row("u", "requests to models whose price is unknown")
    """No cost total includes them."""

    def __new__(cls, name: str, row: _Row = _NO_ROW) -> Self:
        """Build a member from its row; ``Dimension(name)`` looks it up and needs no row."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.letter, member.quantity, member.unit = row.letter, row.quantity, row.unit
        member.headline, member.field = row.headline or "", row.field or f"max_{name}"
        member.interrupts = row.interrupts
        member.allows_last_answer = row.allows_last_answer
        return member


ESTIMATED_OF: Mapping[Dimension, Dimension] = {
    Dimension.TOKENS: Dimension.TOKENS_ESTIMATED,
    Dimension.COST_USD: Dimension.COST_USD_ESTIMATED,
}
"""Maps ``tokens`` and ``cost_usd`` to the dimensions that count their estimated parts."""


class _Strictly:
    """Parse a limit strictly as this number type: reject strings and booleans."""

    def __init__(self, number: type) -> None:
        self.number = number

    def __get_pydantic_core_schema__(self, _: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(self.number), "strict": True}


Count = Annotated[int, _Strictly(int), Ge(0), Le(MAX_LIMIT)]
"""A limit on a number of items: an integer from 0 to :data:`MAX_LIMIT`."""
Seconds = Annotated[float, _Strictly(float), Ge(0)]
Dollars = Annotated[float | Decimal, _Strictly(float), Ge(0)]
"""A limit in US dollars: a number in JSON, a Decimal or float in Python."""

JSON_NAMES: Mapping[str, str] = {
    dimension.field: f"max_{dimension}"
    for dimension in Dimension
    if dimension.field != f"max_{dimension}"
}
"""The JSON names of the budget fields that are named differently in JSON; Python accepts both."""


def json_name(field: str) -> str:
    """Return the JSON name of a budget field."""
    return JSON_NAMES.get(field, field)


def field_name(json_name: str) -> str:
    """Return the budget field that has this JSON name."""
    return _OF_JSON.get(json_name, json_name)


_OF_JSON: Mapping[str, str] = {in_json: field for field, in_json in JSON_NAMES.items()}


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """Limits on the resources of a run or a step. Null means no limit; 0 allows nothing."""

    max_tokens: Count | None = None
    """Maximum number of input and output tokens together."""
    max_time_seconds: Seconds | None = None
    """Maximum duration in seconds. The time starts when a worker first claims the run, so waiting
    in the queue does not count."""
    max_steps: Count | None = None
    """Maximum number of executed steps; retries of a step are not counted."""
    max_api_calls: Count | None = None
    """Maximum number of requests to model providers, retries included."""
    max_cost_dollars: Dollars | None = None
    """Maximum cost in US dollars. With this limit, models whose price is unknown are refused."""
    max_llm_calls: Count | None = None
    """Maximum number of LLM calls to all models together. Reprompts count, retries do not."""
    max_llm_calls_small: Count | None = None
    """Maximum number of LLM calls to models of the small tier. Reprompts count, retries do not."""
    max_llm_calls_big: Count | None = None
    """Maximum number of LLM calls to models of the big tier. Reprompts count, retries do not."""
    max_tool_calls: Count | None = None
    """Maximum number of executed tool calls, retries included."""
    max_turns: Count | None = None
    """Maximum number of agent turns. A turn is one model call and the tool calls that it
    requests."""

    __pydantic_config__ = {  # noqa: RUF012 - a constant, read by validation libraries
        "extra": "forbid",
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
        "alias_generator": json_name,
    }

    def __init__(
        self,
        max_tokens: int | None = None,
        max_time_seconds: float | None = None,
        max_steps: int | None = None,
        max_api_calls: int | None = None,
        max_cost_dollars: float | Decimal | None = None,
        max_llm_calls_small: int | None = None,
        max_llm_calls_big: int | None = None,
        max_tool_calls: int | None = None,
        max_turns: int | None = None,
        *,
        max_llm_calls: int | None = None,
        max_seconds: float | None = None,
        max_cost_usd: float | Decimal | None = None,
    ) -> None:
        """Set the limits.

        ``max_seconds`` is an alias for ``max_time_seconds``, and ``max_cost_usd`` for
        ``max_cost_dollars``.

        Raises:
            ValueError: a limit is negative, NaN, infinite or not a number, or was given under both
                of its names; the message names the limit.
        """
        limits = {
            "max_tokens": max_tokens,
            "max_time_seconds": max_time_seconds,
            "max_steps": max_steps,
            "max_api_calls": max_api_calls,
            "max_cost_dollars": max_cost_dollars,
            "max_llm_calls": max_llm_calls,
            "max_llm_calls_small": max_llm_calls_small,
            "max_llm_calls_big": max_llm_calls_big,
            "max_tool_calls": max_tool_calls,
            "max_turns": max_turns,
        }
        for name, alias in (("max_time_seconds", max_seconds), ("max_cost_dollars", max_cost_usd)):
            if alias is not None and limits[name] is not None:
                both = f"{name} and {json_name(name)}"
                raise ValueError(f"{both} are the same limit: set one of them.")
            limits[name] = alias if limits[name] is None else limits[name]
        for name, limit in limits.items():
            object.__setattr__(self, name, limit)
        self.__post_init__()

    def __post_init__(self) -> None:
        for name in _FIELDS.values():
            limit = getattr(self, name)
            if limit is not None and not (type(limit) is int and 0 <= limit <= MAX_LIMIT):
                _require_limit(name, limit)
        if self.max_cost_dollars is not None:
            object.__setattr__(self, "max_cost_dollars", money(self.max_cost_dollars))

    @property
    def max_seconds(self) -> float | None:
        """Alias for ``max_time_seconds``."""
        return self.max_time_seconds

    @property
    def max_cost_usd(self) -> Decimal | None:
        """Alias for ``max_cost_dollars``."""
        return None if self.max_cost_dollars is None else money(self.max_cost_dollars)

    def limits(self) -> dict[Dimension, Amount]:
        """Return the limits that are set, by dimension. The cost limit is an exact Decimal."""
        limits: dict[Dimension, Amount] = {}
        for dimension, name in _FIELDS.items():
            if (limit := getattr(self, name)) is not None:
                limits[dimension] = limit
        return limits

    def to_json(self) -> dict[str, int | float | None]:
        """Return every limit as a JSON number under its JSON name; null means no limit."""
        limits = {f"max_{dimension}": getattr(self, name) for dimension, name in _FIELDS.items()}
        cost = limits["max_cost_usd"]
        return limits if cost is None else {**limits, "max_cost_usd": float(cost)}

    def merged_with(self, ceiling: "Budget") -> "Budget":
        """Return a budget with the lower of the two limits in each dimension."""
        names = _FIELDS.values()
        smaller: dict[str, Any] = {
            name: limit
            for name in names
            if (limit := _smaller(getattr(self, name), getattr(ceiling, name)))
            is not getattr(self, name)
        }
        return replace(self, **smaller) if smaller else self


_OF_FIELDS: Mapping[str, Dimension] = {dimension.field: dimension for dimension in Dimension}

_FIELDS: Mapping[Dimension, str] = {_OF_FIELDS[field.name]: field.name for field in fields(Budget)}


def money(value: Amount) -> Decimal:
    """Convert US dollars to a Decimal with exactly the digits of the printed number."""
    return value if isinstance(value, Decimal) else Decimal(str(value))


def json_number(value: Amount | None) -> int | float | None:
    """Convert an amount to a JSON number: a Decimal becomes a float; None stays None."""
    return float(value) if isinstance(value, Decimal) else value


def _require_limit(name: str, limit: Amount) -> None:
    unit = _OF_FIELDS[name].unit
    if isinstance(limit, bool) or not isinstance(limit, unit.value):
        kind = "a whole number" if unit is Unit.COUNT else "a number"
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


UNLIMITED: Final = Budget()
"""A budget without any limits, shared by all code that needs one."""
