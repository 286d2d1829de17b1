"""The graph of everything a run called (document 001).

Every LLM call, tool call and system operation is a node below the call that made it. A node is an
open record, changed in place under the lock, until it ends; from then on its record is immutable.
That is what lets ``snapshot`` copy outside the lock (see ``snapshot.py``).

Beside the nodes stands a log with one entry a change. Its length is the graph's revision, and
what lies beyond a revision is all that a journal has to write.
"""

import threading
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Self

from app.trace.aggregates import Totals
from app.trace.charges import FREE, Cost, check_tokens, checked_cost
from app.trace.clock import Clock, steady_clock
from app.trace.invariants import node_violations
from app.trace.json_copy import copy_object
from app.trace.node import (
    KINDS,
    NEW_NODE,
    TERMINAL,
    JsonObject,
    Node,
    NodeFields,
    NodeKind,
    TerminalStatus,
    number_of,
)
from app.trace.snapshot import Changes, GraphCapture, Snapshot, with_metadata

ROOT_ENDED = "the run ended"
"""The stop reason of nodes that were still open when their root ended."""


class ExecutionGraph:
    """The calls of one run as a tree, with totals that are always up to date.

    Every method may be called by any thread. ``mark_*`` on a node that has ended change nothing.
    Methods that take usage refuse a bad one with ``ValueError`` before anything is changed.

    Metadata is copied when a node begins and must consist of JSON values.
    """

    __slots__ = (
        "_changes",
        "_depths",
        "_last_number",
        "_late",
        "_lock",
        "_metadata",
        "_now_ms",
        "_open",
        "_records",
        "_root_ended",
        "_root_id",
        "_totals",
        "chain_id",
    )

    def __init__(self, chain_id: str | None = None, *, now_ms: Clock | None = None) -> None:
        self.chain_id = chain_id or str(uuid.uuid4())
        """Names the run; a random UUID unless given."""
        self._now_ms = now_ms or steady_clock()
        self._lock = threading.RLock()
        self._root_id: str | None = None
        self._root_ended = False
        self._last_number = 0
        self._records: list[NodeFields] = []  # in the order of creation, only ever appended to
        self._open: dict[str, NodeFields] = {}  # the records that may still change
        self._late: dict[str, NodeFields] = {}  # what replaces records after late usage
        self._depths: dict[str, int] = {}
        self._metadata: dict[str, JsonObject] = {}  # apart, so that records stay free of containers
        self._changes: list[NodeFields] = []
        self._totals = Totals()

    @classmethod
    def restore(
        cls, chain_id: str, nodes: Iterable[Mapping[str, object]], *, now_ms: Clock | None = None
    ) -> Self:
        """Rebuild a graph from its nodes in the form of a snapshot, in any order.

        Ids continue after the highest one, and the totals are computed anew.

        Raises:
            ValueError: the nodes are not those of one well-formed graph.
        """
        graph = cls(chain_id, now_ms=now_ms)
        ordered = well_formed(nodes)
        for node in ordered:
            graph._adopt(node)
        return graph

    @property
    def root_id(self) -> str | None:
        """The root's id, once there is one."""
        return self._root_id

    @property
    def revision(self) -> int:
        """How often the graph has changed."""
        return len(self._changes)

    def create_root(self, name: str, metadata: Mapping[str, object] | None = None) -> str:
        """Create the root: kind ``system``, depth 0, no parent.

        Raises:
            RuntimeError: there is a root already.
            ValueError: the metadata is not JSON.
        """
        details = copy_object(metadata) if metadata else None
        with self._lock:
            if self._root_id is not None:
                raise RuntimeError(f"the graph has a root already: {self._root_id}")
            self._root_id = self._begin(None, 0, "system", name, None, details)
            return self._root_id

    def begin_node(
        self,
        parent_id: str,
        kind: NodeKind,
        name: str,
        model: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> str:
        """Create a node below ``parent_id`` with status ``created`` and return its id.

        Raises:
            KeyError: there is no such parent.
            RuntimeError: the root has ended, so nothing may begin any more.
            ValueError: the kind is unknown or the metadata is not JSON.
        """
        if kind not in KINDS:
            raise ValueError(f"a node is llm, tool or system, not {kind!r}")
        details = copy_object(metadata) if metadata else None
        lock = self._lock
        lock.acquire()
        try:
            if self._root_ended:
                raise RuntimeError("the root has ended; nothing can begin below it")
            depth = self._depths[parent_id] + 1
            return self._begin(parent_id, depth, kind, name, model, details)
        finally:
            lock.release()

    def _begin(
        self,
        parent_id: str | None,
        depth: int,
        kind: NodeKind,
        name: str,
        model: str | None,
        metadata: JsonObject | None,
    ) -> str:
        self._last_number += 1
        node_id = f"n{str(self._last_number).zfill(6)}"  # cheaper than a format spec
        record = NEW_NODE.copy()
        record["node_id"] = node_id
        record["parent_id"] = parent_id
        record["kind"] = kind
        record["name"] = name
        record["model"] = model
        record["start_ts_ms"] = self._now_ms()
        if metadata:
            self._metadata[node_id] = metadata
        if depth > self._totals.max_depth:
            self._totals.max_depth = depth
        self._depths[node_id] = depth
        self._open[node_id] = record
        self._records.append(record)
        self._changes.append(record)
        return node_id

    def mark_running(self, node_id: str) -> bool:
        """Move a node from ``created`` to ``running``; True if this call did it.

        Raises:
            KeyError: there is no such node.
        """
        lock = self._lock
        lock.acquire()
        try:
            record = self._open.get(node_id)
            if record is None or record["status"] != "created":
                self._depths[node_id]
                return False
            record["status"] = "running"
            self._changes.append(record)
            return True
        finally:
            lock.release()

    def mark_success(
        self,
        node_id: str,
        cost_usd: Cost,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> bool:
        return self._end(node_id, "success", None, None, cost_usd, tokens_in, tokens_out)

    def mark_failure(
        self,
        node_id: str,
        error_class: str,
        stop_reason: str | None = None,
        *,
        cost_usd: Cost = 0,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> bool:
        return self._end(
            node_id, "fail", stop_reason, error_class, cost_usd, tokens_in, tokens_out
        )

    def _end(
        self,
        node_id: str,
        status: TerminalStatus,
        stop_reason: str | None,
        error_class: str | None,
        cost_usd: Cost,
        tokens_in: int | None,
        tokens_out: int | None,
    ) -> bool:
        cost = checked_cost(cost_usd)
        check_tokens(tokens_in)
        check_tokens(tokens_out)
        lock = self._lock
        lock.acquire()
        try:
            record = self._open.pop(node_id, None)
            if record is None:
                self._depths[node_id]
                return False
            if node_id == self._root_id:
                self._end_root()
            now_ms = self._now_ms()
            start_ms = record["start_ts_ms"]
            record["end_ts_ms"] = now_ms if now_ms > start_ms else start_ms
            record["status"] = status
            record["stop_reason"] = stop_reason
            record["error_class"] = error_class
            record["cost_usd"] = float(cost)
            record["tokens_in"] = tokens_in
            record["tokens_out"] = tokens_out
            self._totals.add_ended(record)
            self._totals.add_usage(cost, tokens_in, tokens_out)
            self._changes.append(record)
            return True
        finally:
            lock.release()
    def capture(self):
        with self._lock:
            return GraphCapture(
                chain_id=self.chain_id,
                root_id=self._root_id,
                aggregates=self._totals.as_aggregates(),
                snapshot_ts_ms=self._now_ms(),
                revision=len(self._changes),
                _records=self._records,
                _count=len(self._records),
                _overlay={**self._late, **{i: r.copy() for i, r in self._open.items()}},
                _metadata=self._metadata,
            )
    def snapshot(self): return self.capture().as_dict()
