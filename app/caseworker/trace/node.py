"""One record of the ExecutionGraph, in the form a snapshot shows it, and what it may have used."""

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
"""Which status may follow which; a terminal status has an empty row."""

ATTEMPT: Final = "attempt"
"""Name of the ``system`` nodes that stand for one try each of the call above them."""

TERMINAL: Final[frozenset[str]] = frozenset(status for status, then in NEXT.items() if not then)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value that JSON can hold as it is."""

JsonObject: TypeAlias = dict[str, Json]


class NodeFields(TypedDict):
    """A node without its metadata; every value is atomic, so a shallow copy is a deep one."""

    node_id: str
    """``n`` and at least six digits; numbers rise in the order of creation."""
    parent_id: str | None
    """The call that made this one; None for the root alone."""
    kind: NodeKind
    name: str
    start_ts_ms: int
    """UTC epoch milliseconds of its creation."""
    end_ts_ms: int | None
    """UTC epoch milliseconds of its end, never before ``start_ts_ms``; None while it is open."""
    status: NodeStatus
    model: str | None
    retries_used: int
    cost_usd: float | None
    """None if the price of what it used is not known."""
    tokens_in: int | None
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None


class Node(NodeFields):
    """One LLM call, tool call or system operation: the 15 fields of a snapshot."""

    metadata: JsonObject


FIELDS: Final[tuple[str, ...]] = (*NodeFields.__annotations__, "metadata")
"""The 15 names, in the order in which snapshots show them."""

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
"""Copied for every new node: filling in a copy costs half of what a dict display does."""


def number(node: NodeFields) -> int:
    """Return the number of a node, by which nodes are ordered."""
    return int(node["node_id"][1:])


def number_of(node_id: str) -> int:
    """Return the number in a node id, by which nodes are ordered."""
    return int(node_id[1:])


ROOT_ID: Final = "n000001"
"""The id of the run's own node, which is always the first."""

ESTIMATED: Final = "estimated"
"""Key of the metadata that says which part of a call's usage was estimated, in the same words."""

WAITED_MS: Final = "waited_ms"
"""Key of the metadata that says how long a call has waited for its budget before it began."""

WAITED_FOR_MODEL_MS: Final = "waited_for_model_ms"
"""Key of the metadata that says how long a call has waited for its turn at a limited model."""

TAKEN_OVER: Final = "taken_over"
"""Key of the metadata of what another run has made: its run and node there, when, and its usage. It
took no time here, and cost nothing."""

CONTINUES: Final = "continues"
"""Key of the metadata of what had not ended in another run and goes on here: its run and node."""


def made_by(node: Mapping[str, Any]) -> str | None:
    """Return the run that has made a call or step which was taken over; None if it was made."""
    made = (node.get("metadata") or {}).get(TAKEN_OVER)
    return str(made.get("run_id")) if isinstance(made, dict) else None


def estimated_of(node: Mapping[str, Any]) -> tuple[int, float]:
    """Return which part of the tokens and of the cost in US dollars of a call was estimated."""
    part = (node.get("metadata") or {}).get(ESTIMATED)
    if not isinstance(part, dict):
        return 0, 0.0
    return (part.get("tokens_in") or 0) + (part.get("tokens_out") or 0), part.get("cost_usd") or 0.0


Cost = Decimal | float
"""US dollars. Exact as a Decimal; a float counts as the number it prints as."""

FREE: Final = Decimal(0)

MAX_COST_USD: Final = 1e15
"""More for one call is a mistake, and sums of such could leave the range of a JSON number."""

_MAX_COST: Final = Decimal(MAX_COST_USD)
_NUMBERS: Final = frozenset({int, float})


def checked_usage(cost_usd: Cost | None, tokens_in: int | None, tokens_out: int | None) -> Decimal:
    """Return the cost as exact money, if it and the tokens are what a call can use.

    A cost that is not known adds nothing to any sum.

    Raises:
        ValueError: the cost is negative, not finite or above ``MAX_COST_USD``, or a token count is
            negative or no integer.
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
    """Return whether tokens are a count: a boolean is none."""
    return tokens is None or (type(tokens) is int and tokens >= 0)


def refuse_unless_text(*texts: object, optional: Iterable[object] = ()) -> None:
    """Refuse the name, model, class or reason of a node that is no text.

    Raises:
        ValueError: one is no text, or an ``optional`` one neither a text nor None; the message
            names its type, not its value.
    """
    for text in (*texts, *(each for each in optional if each is not None)):
        if not isinstance(text, str):
            raise ValueError(f"names and reasons are texts, not {type(text).__name__}")
