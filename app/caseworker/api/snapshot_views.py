"""API schema of an ExecutionGraph snapshot; the models only document it.

Their fields are those of the dicts that ``caseworker.core.trace`` creates.
"""

from typing import Any

from caseworker.api.field_types import View
from caseworker.core.trace.node import NodeKind, NodeStatus


class CallNode(View):
    """One LLM call, tool call or system operation."""

    node_id: str
    """``n`` and at least six digits; numbers increase in order of creation."""
    parent_id: str | None
    """The parent call; null only for the root."""
    kind: NodeKind
    name: str
    start_ts_ms: int
    """Creation time in UTC epoch milliseconds."""
    end_ts_ms: int | None
    """End time in UTC epoch milliseconds; null while it is open."""
    status: NodeStatus
    model: str | None
    retries_used: int
    cost_usd: float | None
    """Null if the price is unknown."""
    tokens_in: int | None
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None
    metadata: dict[str, Any]


class SnapshotAggregates(View):
    """The totals of a snapshot."""

    total_cost_usd: float
    total_llm_calls: int
    """Successful LLM calls."""
    total_tool_calls: int
    """Successful tool calls."""
    total_retries: int
    total_tokens_in: int
    total_tokens_out: int
    max_depth: int
    """Depth of the deepest node; the root has depth 0."""


class TraceSnapshot(View):
    """The ExecutionGraph of a run at one point in time."""

    chain_id: str
    root_id: str | None
    nodes: dict[str, CallNode]
    """By node ID, in order of creation."""
    aggregates: SnapshotAggregates
    snapshot_ts_ms: int
    """Time of the snapshot in UTC epoch milliseconds."""
