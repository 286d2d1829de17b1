"""A node of the ExecutionGraph as shown in snapshots, and the validation of its usage."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

NodeKind = Literal["llm", "tool", "system"]
TerminalStatus = Literal["success", "fail", "halt"]
NodeStatus = Literal["created", "running", TerminalStatus]

KINDS: Final[frozenset[str]] = frozenset(get_args(NodeKind))

NEXT: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "created": frozenset({"running", "fail", "halt"}),
        "running": frozenset({"success", "fail", "halt"}),
        "success": frozenset(),
        "fail": frozenset(),
        "halt": frozenset(),
    }
)
"""The allowed status transitions; a terminal status has an empty row."""

ATTEMPT: Final = "attempt"
"""Name of ``system`` nodes that represent one attempt of their parent."""

TERMINAL: Final[frozenset[str]] = frozenset(status for status, then in NEXT.items() if not then)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value."""

JsonObject: TypeAlias = dict[str, Json]


class NodeFields(TypedDict):
    """A node without its metadata. All values are immutable, so a shallow copy is sufficient."""

    node_id: str
    """``n`` and at least six digits; numbers increase in the order of creation."""
    parent_id: str | None
    """ID of the call that made this one; None for the root only."""
    kind: NodeKind
    name: str
    start_ts_ms: int
    """Creation time in UTC epoch milliseconds."""
    end_ts_ms: int | None
    """End time in UTC epoch milliseconds, never before ``start_ts_ms``; None while open."""
    status: NodeStatus
    model: str | None
    retries_used: int
    cost_usd: float | None
    """Cost in US dollars; None if the price is unknown."""
    tokens_in: int | None
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None


class Node(NodeFields):
    """One LLM call, tool call or system operation: the 15 fields of a snapshot."""

    metadata: JsonObject


FIELDS: Final[tuple[str, ...]] = (*NodeFields.__annotations__, "metadata")
"""The 15 field names, in the order of a snapshot."""

NEW_NODE: Final[NodeFields] = {
    "node_id": "",
    "parent_id": None,
    "kind": "system",
    "name": "",
    "start_ts_ms": 0,
    "end_ts_ms": None,
    "status": "created",
    "model": None,
    "retries_used": 0,
    "cost_usd": 0.0,
    "tokens_in": None,
    "tokens_out": None,
    "stop_reason": None,
    "error_class": None,
}
"""The template of a new node: copying and filling it costs half as much as a dict display."""


def number(node: NodeFields) -> int:
    """Return the number in the ID of a node, the sort key of nodes."""
    return int(node["node_id"][1:])


def number_of(node_id: str) -> int:
    """Return the number in a node ID, the sort key of nodes."""
    return int(node_id[1:])


ROOT_ID: Final = "n000001"
"""The ID of the root, the run's own node, which is always the first."""

ESTIMATED: Final = "estimated"
"""Metadata key: the estimated part of a call's usage, under the same field names."""

WAITED_MS: Final = "waited_ms"
"""Metadata key: milliseconds that a call waited for budget before it started."""

WAITED_FOR_MODEL_MS: Final = "waited_for_model_ms"
"""Metadata key: milliseconds that a call waited for the rate slot of its model."""

TAKEN_OVER: Final = "taken_over"
"""Metadata key of a node imported from another run: its original run, node, time and usage. An
imported node takes no time in this run and costs nothing."""

CONTINUES: Final = "continues"
"""Metadata key of a node that resumes an unfinished node of another run: that run and node."""


def made_by(node: Mapping[str, Any]) -> str | None:
    """Return the ID of the run that an imported call or step comes from; None if not imported."""
    made = (node.get("metadata") or {}).get(TAKEN_OVER)
    return str(made.get("run_id")) if isinstance(made, dict) else None


def estimated_of(node: Mapping[str, Any]) -> tuple[int, float]:
    """Return the estimated part of a call's tokens and of its cost in US dollars."""
    part = (node.get("metadata") or {}).get(ESTIMATED)
    if not isinstance(part, dict):
        return 0, 0.0
    return (part.get("tokens_in") or 0) + (part.get("tokens_out") or 0), part.get("cost_usd") or 0.0


Cost = Decimal | float
"""US dollars. A Decimal is exact; a float counts as the decimal number that it prints as."""

FREE: Final = Decimal(0)

MAX_COST_USD: Final = 1e15
"""The maximum cost of one call. A higher one is an error, and sums could exceed JSON numbers."""

_MAX_COST: Final = Decimal(MAX_COST_USD)
_NUMBERS: Final = frozenset({int, float})


def checked_usage(cost_usd: Cost | None, tokens_in: int | None, tokens_out: int | None) -> Decimal:
    """Validate the usage of a call and return its cost as a Decimal; 0 if the cost is None.

    Raises:
        ValueError: the cost is negative, not finite or above ``MAX_COST_USD``, or a token count is
            negative or not an integer.
    """
    if not (_counts(tokens_in) and _counts(tokens_out)):
        raise ValueError(f"tokens are counted from 0 up, not {tokens_in} in and {tokens_out} out")
    if cost_usd is None:
        return FREE
    if isinstance(cost_usd, Decimal):
        if cost_usd.is_finite() and FREE <= cost_usd <= _MAX_COST:
            return cost_usd
    elif type(cost_usd) in _NUMBERS and 0.0 <= cost_usd <= MAX_COST_USD:
        return Decimal(str(cost_usd)) if cost_usd else FREE
    raise ValueError(f"a cost is a finite number of dollars from 0 up, not {cost_usd}")


def _counts(tokens: object) -> bool:
    """Return whether ``tokens`` is None or a count; a boolean is rejected."""
    return tokens is None or (type(tokens) is int and tokens >= 0)


def refuse_unless_text(*texts: object, optional: Iterable[object] = ()) -> None:
    """Check that the names, models, error classes and reasons of a node are strings.

    Raises:
        ValueError: a value is not a string (``optional`` ones may be None); the message contains
            its type, not its value.
    """
    for text in (*texts, *(each for each in optional if each is not None)):
        if not isinstance(text, str):
            raise ValueError(f"names and reasons are texts, not {type(text).__name__}")
