"""API schema for an ExecutionGraph snapshot: the calls of a run as a tree.

The models only document the dicts that ``caseworker.core.trace`` creates.
"""

from typing import Any

from caseworker.core.trace.node import NodeKind, NodeStatus
from caseworker.platform.http.bodies import View


class CallNode(View):
    """One model call, tool call or system operation (a step, an attempt or the run itself)."""

    node_id: str
    """ID of the node: ``n`` and at least six digits. Numbers increase in order of creation."""
    parent_id: str | None
    """ID of the node that made this call; null only for the root."""
    kind: NodeKind
    name: str
    start_ts_ms: int
    """Time at which the node was created, in UTC epoch milliseconds."""
    end_ts_ms: int | None
    """Time at which the node ended, in UTC epoch milliseconds; null until then."""
    status: NodeStatus
    model: str | None
    retries_used: int
    cost_usd: float | None
    """Cost in US dollars; null if the model's price is unknown."""
    tokens_in: int | None
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None
    metadata: dict[str, Any]


class SnapshotAggregates(View):
    """Totals over all nodes of a snapshot."""

    total_cost_usd: float
    total_llm_calls: int
    """Number of successful model calls."""
    total_tool_calls: int
    """Number of successful tool calls."""
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
    """Nodes by ID, in order of creation."""
    aggregates: SnapshotAggregates
    snapshot_ts_ms: int
    """Time at which the snapshot was taken, in UTC epoch milliseconds."""
