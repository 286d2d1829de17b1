"""The form of a snapshot of the ExecutionGraph; the models document it and are never built.

Their fields are those of the dicts that ``caseworker.trace`` makes.
"""

from typing import Any

from caseworker.api.field_types import View
from caseworker.trace.node import NodeKind, NodeStatus


class CallNode(View):
    """One LLM call, tool call or system operation."""

    node_id: str
    """``n`` and at least six digits; numbers rise in the order of creation."""
    parent_id: str | None
    """The call that made this one; null for the root alone."""
    kind: NodeKind
    name: str
    start_ts_ms: int
    """UTC epoch milliseconds of its creation."""
    end_ts_ms: int | None
    """UTC epoch milliseconds of its end; null while it is open."""
    status: NodeStatus
    model: str | None
    retries_used: int
    cost_usd: float | None
    """Null if the price of what it used is not known."""
    tokens_in: int | None
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None
    metadata: dict[str, Any]


class SnapshotAggregates(View):
    """The totals of a snapshot."""

    total_cost_usd: float
    total_llm_calls: int
    """LLM calls that succeeded."""
    total_tool_calls: int
    """Tool calls that succeeded."""
    total_retries: int
    total_tokens_in: int
    total_tokens_out: int
    max_depth: int
    """Depth of the deepest node; the root's is 0."""


class TraceSnapshot(View):
    """The ExecutionGraph of a run at one moment."""

    chain_id: str
    root_id: str | None
    nodes: dict[str, CallNode]
    """By node id, in the order of creation."""
    aggregates: SnapshotAggregates
    snapshot_ts_ms: int
    """UTC epoch milliseconds of the moment that it shows."""
