"""The state of an ExecutionGraph and its transitions; the graph adds the lock and the clock.

A node is an open record, changed in place, until it ends. From then on its record is immutable:
late usage replaces it with another record. This makes a consistent capture of the tree cheap (see
``snapshot.py``).

Every change is also appended to a log, whose length is the revision. A journal only has to write
the entries after its last revision.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, TypedDict

from caseworker.core.trace.json_values import copy_object
from caseworker.core.trace.node import (
    FREE,
    NEW_NODE,
    TERMINAL,
    Cost,
    JsonObject,
    Node,
    NodeFields,
    NodeKind,
    NodeStatus,
    TerminalStatus,
    checked_usage,
    number,
    number_of,
)

_MANY: Final = 1_024
_FIRST_IDS: Final = tuple(f"n{number:06}" for number in range(_MANY))
"""Precomputed IDs shared by all graphs; few graphs have more nodes."""

ROOT_ENDED: Final = "the run ended"
"""Stop reason for nodes that were still open when the root ended."""
ANOTHER_FAILED: Final = "Another step failed."
"""Stop reason for steps that were interrupted because a parallel step failed."""
ABANDONED: Final = "The step ignored its cancellation and was abandoned."
WORKER_LOST: Final = "worker_lost"
"""Stop reason for nodes that were in progress when their worker was lost."""
WAITS: Final = "It waits for an approval."
"""Stop reason for nodes that ended because the run was suspended; after a decision, new nodes
follow."""
CUT_OFF: Final = frozenset({ROOT_ENDED, ANOTHER_FAILED, ABANDONED, WORKER_LOST})
"""Stop reasons for nodes that were interrupted by something other than a limit."""


class Aggregates(TypedDict):
    """Totals over all nodes of a snapshot."""

    total_cost_usd: float
    total_llm_calls: int
    """Number of nodes of kind ``llm`` that ended with ``success``."""
    total_tool_calls: int
    """Number of nodes of kind ``tool`` that ended with ``success``."""
    total_retries: int
    """Sum of ``retries_used`` over all nodes that have ended, whatever their status."""
    total_tokens_in: int
    total_tokens_out: int
    max_depth: int
    """Depth of the deepest node; the root has depth 0."""


@dataclass(slots=True)
class Totals:
    """Totals that are updated with each ended node, so that no scan of the graph is needed."""

    cost_usd: Decimal = FREE
    llm_calls: int = 0
    tool_calls: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    max_depth: int = 0

    def add_ended(self, node: NodeFields, cost: Decimal) -> None:
        """Count a node that has just ended, with its usage."""
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

    def as_aggregates(self) -> Aggregates:
        """Return the totals in the format of a snapshot."""
        return {
            "total_cost_usd": float(self.cost_usd),
            "total_llm_calls": self.llm_calls,
            "total_tool_calls": self.tool_calls,
            "total_retries": self.retries,
            "total_tokens_in": self.tokens_in,
            "total_tokens_out": self.tokens_out,
            "max_depth": self.max_depth,
        }


@dataclass(slots=True, eq=False)
class CallTree:
    """The tree of nodes and its running totals. Not thread-safe: the graph's lock guards it.

    Methods raise ``KeyError`` for an unknown ID and ``ValueError`` for invalid usage, before they
    change anything.
    """

    root_id: str | None = None
    root_ended: bool = False
    last_number: int = 0
    records: list[NodeFields] = field(default_factory=list)
    """Records of all nodes in the order of creation; append-only."""
    open: dict[str, NodeFields] = field(default_factory=dict)
    """Records of open nodes, which may still change, by node ID."""
    late: dict[str, NodeFields] = field(default_factory=dict)
    """Replacement records of ended nodes whose usage arrived late, by node ID."""
    metadata: dict[str, JsonObject] = field(default_factory=dict)
    """Metadata by node ID. It is stored separately, because the garbage collector skips records
    that contain no containers."""
    depths: dict[str, int] = field(default_factory=dict)
    changes: list[NodeFields] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

    def begin(
        self,
        parent_id: str | None,
        kind: NodeKind,
        name: str,
        model: str | None,
        metadata: JsonObject | None,
        now_ms: int,
        status: NodeStatus = "created",
    ) -> str:
        """Create a node below a parent, or the root, and return its ID."""
        depth = 0 if parent_id is None else self.depths[parent_id] + 1
        self.last_number = number = self.last_number + 1
        # Inlined: a function call, or a format spec, would each double the cost.
        node_id = _FIRST_IDS[number] if number < _MANY else f"n{str(number).zfill(6)}"
        record = NEW_NODE.copy()
        record["node_id"] = node_id
        record["parent_id"] = parent_id
        record["kind"] = kind
        record["name"] = name
        record["start_ts_ms"] = now_ms
        if status != "created":
            record["status"] = status
        if model is not None:
            record["model"] = model
        if metadata:
            self.metadata[node_id] = metadata
        if depth > self.totals.max_depth:
            self.totals.max_depth = depth
        self.depths[node_id] = depth
        self.open[node_id] = record
        self.records.append(record)
        self.changes.append(record)
        return node_id

    def count_retry(self, node_id: str) -> None:
        """Count a retry of an open node; a node that has ended stays unchanged."""
        record = self.open.get(node_id)
        if record is None:
            self.refuse_unknown(node_id)
            return
        record["retries_used"] += 1
        self.changes.append(record)

    def end(
        self,
        node_id: str,
        status: TerminalStatus,
        now_ms: int,
        stop_reason: str | None = None,
        error_class: str | None = None,
        cost_usd: Cost | None = FREE,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> bool:
        """End a node; return False if it had already ended.

        Ending the root first halts all open nodes below it.
        """
        free = cost_usd is not None and not cost_usd and tokens_in is None and tokens_out is None
        cost = FREE if free else checked_usage(cost_usd, tokens_in, tokens_out)
        record = self.open.pop(node_id, None)
        if record is None:
            self.refuse_unknown(node_id)
            return False
        if node_id == self.root_id:
            self.root_ended = True
            self.close_open(ROOT_ENDED, node_id, now_ms)
        start_ts_ms = record["start_ts_ms"]
        record["end_ts_ms"] = now_ms if now_ms > start_ts_ms else start_ts_ms
        record["status"] = status
        if stop_reason is not None:
            record["stop_reason"] = stop_reason
        if error_class is not None:
            record["error_class"] = error_class
        if not free:
            record["cost_usd"] = None if cost_usd is None else float(cost_usd)
            record["tokens_in"] = tokens_in
            record["tokens_out"] = tokens_out
        if not free or record["kind"] != "system" or record["retries_used"]:
            self.totals.add_ended(record, cost)
        self.changes.append(record)
        return True

    def close_open(self, stop_reason: str, top_id: str, now_ms: int) -> list[str]:
        """Halt the open nodes below ``top_id``, deepest first, and return their IDs."""
        ids = [node_id for node_id in self.open if self._is_below(node_id, top_id)]
        ids.sort(key=self.depths.__getitem__, reverse=True)
        for node_id in ids:
            self.end(node_id, "halt", now_ms, stop_reason)
        return ids

    def add_late_usage(
        self, node_id: str, cost_usd: Cost | None, tokens_in: int | None, tokens_out: int | None
    ) -> None:
        """Add usage that became known after a node has ended.

        Raises:
            RuntimeError: the node is still open.
        """
        cost = checked_usage(cost_usd, tokens_in, tokens_out)
        self.refuse_unknown(node_id)
        if node_id in self.open:
            raise RuntimeError(f"{node_id} is still open; pass the usage when it ends")
        record = self.record(node_id).copy()
        before = record["cost_usd"]
        known = before is not None and cost_usd is not None
        record["cost_usd"] = float(Decimal(str(before)) + cost) if known else None
        record["tokens_in"] = _sum(record["tokens_in"], tokens_in)
        record["tokens_out"] = _sum(record["tokens_out"], tokens_out)
        self.late[node_id] = record
        self.totals.cost_usd += cost
        self.totals.tokens_in += tokens_in or 0
        self.totals.tokens_out += tokens_out or 0
        self.changes.append(record)

    def annotate(self, node_id: str, values: JsonObject) -> None:
        """Add values to a node's metadata, whatever its status."""
        self.refuse_unknown(node_id)
        self.metadata[node_id] = {**self.metadata.get(node_id, {}), **values}
        self.changes.append(self.open.get(node_id) or self.record(node_id))

    def adopt(self, node: Node) -> None:
        """Import a node from a well-formed graph; import nodes in the order of their numbers."""
        node_id, ended = node["node_id"], node["status"] in TERMINAL
        self.last_number = number_of(node_id) - 1
        self.begin(
            node["parent_id"],
            node["kind"],
            node["name"],
            node["model"],
            copy_object(node["metadata"]),
            node["start_ts_ms"],
        )
        record = self.open[node_id]
        record.update(node)
        del record["metadata"]  # type: ignore[typeddict-item]
        cost = node["cost_usd"]
        record["cost_usd"] = None if cost is None else float(cost)  # JSON may have made 0.0 a 0
        if ended:
            del self.open[node_id]
            self.totals.add_ended(record, checked_usage(record["cost_usd"], None, None))
        if node["parent_id"] is None:
            self.root_id, self.root_ended = node_id, ended

    def record(self, node_id: str) -> NodeFields:
        """Return the current record of a node, which must exist."""
        if node_id in self.late:
            return self.late[node_id]
        numbered = bisect_left(self.records, number_of(node_id), key=number)
        return self.records[numbered]

    def failures_of(self, node_id: str) -> list[NodeFields]:
        """Return the failed attempts of an ended call; if it was not retried, the call itself."""
        record = self.record(node_id)
        if not record["retries_used"]:
            return [record] if record["status"] == "fail" else []
        began = bisect_left(self.records, number_of(node_id), key=number)
        tries = (each for each in self.records[began + 1 :] if each["parent_id"] == node_id)
        return [each for each in tries if each["status"] == "fail"]

    def refuse_unknown(self, node_id: str) -> None:
        """Raise KeyError if the node is unknown."""
        if node_id not in self.depths:
            raise KeyError(f"no node {node_id!r}")

    def _is_below(self, node_id: str, top_id: str) -> bool:
        if top_id == self.root_id:
            return node_id != top_id
        top_depth = self.depths[top_id]
        if self.depths[node_id] <= top_depth:
            return False
        while self.depths[node_id] > top_depth:
            record = self.open.get(node_id) or self.record(node_id)
            node_id = record["parent_id"] or top_id
        return node_id == top_id


def _sum(tokens: int | None, more: int | None) -> int | None:
    return tokens if more is None else (tokens or 0) + more
