"""One record of the ExecutionGraph, in the form a snapshot shows it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, TypedDict

NodeKind = Literal["llm", "tool", "system"]
TerminalStatus = Literal["success", "fail", "halt"]
NodeStatus = Literal["created", "running", TerminalStatus]

KINDS: Final[frozenset[str]] = frozenset({"llm", "tool", "system"})

NEXT: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "created": frozenset({"running", "fail", "halt"}),
        "running": frozenset({"success", "fail", "halt"}),
        "success": frozenset(),
        "fail": frozenset(),
        "halt": frozenset(),
    }
)
"""Which status may follow which (seed 001, 3.3); terminal is an empty row."""

ATTEMPT: Final = "attempt"
"""Name of the ``system`` nodes that stand for one try each of the call above them (spec 7)."""

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
    cost_usd: float
    tokens_in: int | None
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None


class Node(NodeFields):
    """One LLM call, tool call or system operation: the 15 fields of a snapshot (seed 001, 4)."""

    metadata: JsonObject


FIELDS: Final[tuple[str, ...]] = (*NodeFields.__annotations__, "metadata")
"""The 15 names, in the order of document 001."""

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
"""What a node is at first; copying it and filling in is half the work of a dict display."""


def number_of(node_id: str) -> int:
    """Return the number in a node id, by which nodes are ordered."""
    return int(node_id[1:])


def fields_of(node: Node) -> NodeFields:
    """Return a copy of a node without its metadata."""
    fields = node.copy()
    del fields["metadata"]  # type: ignore[misc]
    return fields
