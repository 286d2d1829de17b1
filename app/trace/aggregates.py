"""The running totals of a graph."""

from decimal import Decimal
from typing import TypedDict

from app.trace.charges import FREE
from app.trace.node import NodeFields


class Aggregates(TypedDict):
    """The totals of a snapshot (seed 001, 4, and spec 7)."""

    total_cost_usd: float
    total_llm_calls: int
    """Nodes of kind ``llm`` that reached ``success``."""
    total_tool_calls: int
    """Nodes of kind ``tool`` that reached ``success``."""
    total_retries: int
    """``retries_used`` of the nodes that ended, whatever their status."""
    total_tokens_in: int
    total_tokens_out: int
    max_depth: int
    """Depth of the deepest node; the root's is 0."""


class Totals:
    """Sums kept node by node, so that nobody ever scans the graph.

    Not thread-safe by itself: the graph's lock guards it.
    """

    __slots__ = (
        "cost_usd",
        "llm_calls",
        "max_depth",
        "retries",
        "tokens_in",
        "tokens_out",
        "tool_calls",
    )

    def __init__(self) -> None:
        self.cost_usd = FREE
        self.llm_calls = 0
        self.tool_calls = 0
        self.retries = 0
        self.tokens_in = 0
        self.tokens_out = 0
        self.max_depth = 0

    def add_ended(self, node: NodeFields, cost: Decimal) -> None:
        """Count a node that has just reached a terminal status, and what it used."""
        if node["status"] == "success":
            kind = node["kind"]
            if kind == "llm":
                self.llm_calls += 1
            elif kind == "tool":
                self.tool_calls += 1
        if retries := node["retries_used"]:
            self.retries += retries
        if cost:
            self.cost_usd += cost
        if tokens_in := node["tokens_in"]:
            self.tokens_in += tokens_in
        if tokens_out := node["tokens_out"]:
            self.tokens_out += tokens_out

    def add_usage(self, cost: Decimal, tokens_in: int | None, tokens_out: int | None) -> None:
        """Add what a node used."""
        self.cost_usd += cost
        self.tokens_in += tokens_in or 0
        self.tokens_out += tokens_out or 0

    def as_aggregates(self) -> Aggregates:
        """Return the totals in the form of a snapshot."""
        return {
            "total_cost_usd": float(self.cost_usd),
            "total_llm_calls": self.llm_calls,
            "total_tool_calls": self.tool_calls,
            "total_retries": self.retries,
            "total_tokens_in": self.tokens_in,
            "total_tokens_out": self.tokens_out,
            "max_depth": self.max_depth,
        }
