"""The nodes of an ExecutionGraph as shown in snapshots."""

from collections.abc import Mapping
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
"""Allowed status transitions of a node, by current status; terminal statuses allow none."""

ATTEMPT: Final = "attempt"
"""Name of the ``system`` nodes that represent one attempt of their parent."""

TERMINAL: Final[frozenset[str]] = frozenset(status for status, then in NEXT.items() if not then)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""Any JSON value."""

JsonObject: TypeAlias = dict[str, Json]


class NodeFields(TypedDict):
    """A node without its metadata. All values are immutable, so a shallow copy is sufficient."""

    node_id: str
    """ID of the node: ``n`` and at least six digits. The numbers increase in the order of
    creation."""
    parent_id: str | None
    """ID of the parent: the call or step that made this one; None only for the root."""
    kind: NodeKind
    name: str
    start_ts_ms: int
    """Creation time, which is also the start time, in UTC epoch milliseconds."""
    end_ts_ms: int | None
    """End time in UTC epoch milliseconds, never before ``start_ts_ms``; None while the node is
    open."""
    status: NodeStatus
    model: str | None
    retries_used: int
    cost_usd: float | None
    """Cost in US dollars; None if the price is unknown."""
    tokens_in: int | None
    """Number of input tokens; None if the node counts none (a tool call, a call that was not sent)
    or if they are not known yet."""
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None


class TraceNode(NodeFields):
    """One LLM call, tool call or system operation: the 15 fields of a snapshot."""

    metadata: JsonObject


FIELDS: Final[tuple[str, ...]] = (*NodeFields.__annotations__, "metadata")
"""Names of a node's 15 fields, in the order of a snapshot."""

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
"""Template for a new node; copying and changing it is twice as fast as building a dict."""


def number(node: NodeFields) -> int:
    """Return the number in a node's ID, by which nodes are sorted."""
    return int(node["node_id"][1:])


def number_of(node_id: str) -> int:
    """Return the number in a node ID, by which nodes are sorted."""
    return int(node_id[1:])


PATH: Final = "path"
"""Metadata key for the path of an agent that another agent called."""


def path_of(node: NodeFields, metadata: Mapping[str, Any]) -> str:
    """Return the path of a step or of a called agent; for other nodes, their name.

    The name of a step is its path. An agent that another agent called has the name of its
    definition, and its path as metadata; up to release 0.2.0, its name was its path.
    """
    return str(metadata.get(PATH, node["name"]))


ROOT_ID: Final = "n000001"
"""ID of the root node, which represents the run itself and always comes first."""

ROOT_ENDED: Final = "the run ended"
"""Stop reason for nodes that were still open when the root ended."""
ANOTHER_FAILED: Final = "Another step failed."
"""Stop reason for steps that were interrupted because a parallel step failed."""
ABANDONED: Final = "The step ignored its cancellation and was abandoned."
WORKER_LOST: Final = "worker_lost"
"""Stop reason for nodes that were in progress when their worker was lost."""
WAITS: Final = "It waits for an approval."
"""Stop reason for nodes that ended because the run was suspended. The resumed run creates new
nodes."""
CUT_OFF: Final = frozenset({ROOT_ENDED, ANOTHER_FAILED, ABANDONED, WORKER_LOST})
"""Stop reasons for nodes that were interrupted by something other than a limit."""

CALL_ID: Final = "call_id"
"""Metadata key for the ID of a call that its client answers."""
APPROVAL_ID: Final = "approval_id"
"""Metadata key for the ID of a call that an approver answers."""

ESTIMATED: Final = "estimated"
"""Metadata key for the estimated part of a call's tokens and cost, by field name."""

OVERRUN_TOKENS: Final = "overrun_tokens"
"""Metadata key for how many more tokens a call used than were reserved for it."""

OVERRUN_USD: Final = "overrun_usd"
"""Metadata key for how many US dollars a call cost more than were reserved for it."""

WAITED_MS: Final = "waited_ms"
"""Metadata key for how long, in milliseconds, a call waited for budget before it started."""

WAITED_FOR_MODEL_MS: Final = "waited_for_model_ms"
"""Metadata key for how long, in milliseconds, a call waited for its model's rate limit."""

IMPORTED_FROM: Final = "taken_over"
"""Metadata key of a node that was imported from another run; it holds the original run, node, time
and usage. An imported node has no duration and no cost in this run."""

CONTINUES: Final = "continues"
"""Metadata key of a node that resumes an unfinished node of another run; it holds the IDs of that
run and node."""


def imported_from_run(node: Mapping[str, Any]) -> str | None:
    """Return the ID of the run that an imported call or step comes from; None if not imported."""
    origin = (node.get("metadata") or {}).get(IMPORTED_FROM)
    return str(origin.get("run_id")) if isinstance(origin, dict) else None


def estimated_of(node: Mapping[str, Any]) -> tuple[int, float]:
    """Return how many of a call's tokens, and how much of its cost in US dollars, are estimates."""
    part = (node.get("metadata") or {}).get(ESTIMATED)
    if not isinstance(part, dict):
        return 0, 0.0
    return (part.get("tokens_in") or 0) + (part.get("tokens_out") or 0), part.get("cost_usd") or 0.0


def sum_of_known(tokens: int | None, more: int | None) -> int | None:
    """Add two token counts; None counts nothing, and the sum is None if both are."""
    return tokens if more is None else (tokens or 0) + more


Cost = Decimal | float
"""A cost in US dollars. A Decimal is exact; a float is read as its printed decimal value."""

FREE: Final = Decimal(0)

MAX_COST_USD: Final = 1e15
"""Maximum cost of one call in US dollars. A higher cost is rejected, because it is a mistake and
totals might not fit in JSON."""
