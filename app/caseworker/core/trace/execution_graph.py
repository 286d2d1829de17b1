"""The ExecutionGraph: the tree of all calls of a run.

Every LLM call, tool call and system operation (such as a step) is a node of the tree, a CallNode.
Its parent is the call that made it.
"""

import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple, Self, cast

from caseworker.core.trace.invariants import well_formed
from caseworker.core.trace.json_values import Metadata, copy_object
from caseworker.core.trace.node import (
    FREE,
    KINDS,
    MAX_COST_USD,
    NEW_NODE,
    ROOT_ENDED,
    TERMINAL,
    Cost,
    JsonObject,
    NodeFields,
    NodeKind,
    NodeStatus,
    TerminalStatus,
    TraceNode,
    number,
    number_of,
    path_of,
    sum_of_known,
)
from caseworker.core.trace.snapshot import Aggregates, Changes, GraphCapture, Snapshot

NOTHING_BELOW_ENDED_ROOT: Final = "the root has ended; no node can be added"

Clock = Callable[[], int]
"""Function that returns the current time in UTC epoch milliseconds; any thread may call it."""

NS_PER_MS: Final = 1_000_000

_MAX_COST: Final = Decimal(MAX_COST_USD)
_NUMBERS: Final = frozenset({int, float})


class Ticks(NamedTuple):
    """A clock: a function that reads it, and the offset of its readings to UTC."""

    read_ns: Callable[[], int]
    """Function that returns nanoseconds since an arbitrary moment."""
    anchor_ns: int
    """Offset to add to a reading to get UTC epoch nanoseconds."""


def steady_ticks() -> Ticks:
    """Return the monotonic clock with its offset to UTC, which is determined once.

    Adjustments of the system time do not affect it, so the difference of two readings is a
    duration.
    """
    monotonic_ns = time.monotonic_ns
    return Ticks(monotonic_ns, time.time_ns() - monotonic_ns())


_LARGE: Final = 1_024
_FIRST_IDS: Final = tuple(f"n{number:06}" for number in range(_LARGE))
"""Precomputed IDs shared by all graphs; few graphs have more nodes."""


class ExecutionGraph:
    """The tree of all calls of one run, with totals that are always up to date.

    All methods are thread-safe. Ending a node that has already ended changes nothing and returns
    False. A cost of None means that the price is unknown. Metadata is copied when a node is
    created.

    Methods raise these errors before they change anything:

    - ``ValueError`` for invalid usage (a negative or non-finite cost, negative tokens) and for
      metadata that is not JSON;
    - ``KeyError`` for an unknown ID;
    - ``RuntimeError`` for a new node below an ended root.
    """

    # Hot methods call acquire and release directly, and inline the reading of the clock: on
    # CPython 3.11 ``with`` costs twice as much, and a call takes 5 percent of a node's total time.

    __slots__ = ("_anchor_ns", "_lock", "_read_ns", "_tree", "chain_id", "readings")

    def __init__(self, chain_id: str | None = None, *, now_ms: Clock | None = None) -> None:
        self.chain_id = chain_id or str(uuid.uuid4())
        ticks = steady_ticks() if now_ms is None else Ticks(lambda: now_ms() * NS_PER_MS, 0)
        self._read_ns, self._anchor_ns = ticks
        self.readings = [self._read_ns()]
        """List with one element: the last reading of the clock in nanoseconds, taken at the last
        change. It gives callers nanosecond resolution without another reading."""
        self._lock = threading.RLock()
        self._tree = CallTree()

    @classmethod
    def restore(
        cls, chain_id: str, nodes: Iterable[Mapping[str, object]], *, now_ms: Clock | None = None
    ) -> Self:
        """Rebuild a graph from the nodes of a snapshot, given in any order.

        New node IDs continue after the highest one, and the totals are recomputed. The restored
        nodes count as unchanged: ``changed_since`` the graph's ``revision`` returns later changes
        only.

        Raises:
            ValueError: the nodes do not form one well-formed graph.
        """
        graph = cls(chain_id, now_ms=now_ms)
        for node in well_formed(nodes):
            graph._tree.adopt(node)
        return graph

    def __reduce__(self) -> tuple[Callable[..., "ExecutionGraph"], tuple[object, ...]]:
        """Support copying and pickling: the copy has the current state, and its own clock."""
        return type(self).restore, (self.chain_id, list(self.snapshot()["nodes"].values()))

    def now_ms(self) -> int:
        """Return the time on the graph's clock, for the timestamps that ``add_ended`` needs."""
        self.readings[0] = reading_ns = self._read_ns()
        return (self._anchor_ns + reading_ns) // NS_PER_MS

    @property
    def root_id(self) -> str | None:
        """ID of the root; None before it is created."""
        return self._tree.root_id

    @property
    def revision(self) -> int:
        """Number of changes made to the graph so far."""
        return len(self._tree.changes)

    def create_root(self, name: str, metadata: Mapping[str, object] | None = None) -> str:
        """Create the root, of kind ``system`` and depth 0, and return its ID.

        Raises:
            RuntimeError: the graph already has a root.
        """
        if type(name) is not str:
            _refuse_unless_text(name)
        details = copy_object(metadata) if metadata else None
        with self._lock:
            tree = self._tree
            if tree.root_id is not None:
                raise RuntimeError(f"the graph already has a root: {tree.root_id}")
            tree.root_id = tree.begin(None, "system", name, None, details, self.now_ms())
            return tree.root_id

    def begin_node(
        self,
        parent_id: str,
        kind: NodeKind,
        name: str,
        model: str | None = None,
        metadata: Mapping[str, object] | Metadata | None = None,
        *,
        running: bool = False,
    ) -> str:
        """Create a node below ``parent_id`` and return its ID.

        Its status is ``created``, or ``running`` if ``running`` is set.

        Raises:
            ValueError: the kind is unknown, or ``parent_id`` is None.
            RuntimeError: the root has ended.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be llm, tool or system, not {kind!r}")
        if parent_id is None:
            raise ValueError("a node requires a parent; use create_root for the root")
        if type(name) is not str or (model is not None and type(model) is not str):
            _refuse_unless_text(name, optional=(model,))
        if type(metadata) is Metadata:
            details: JsonObject | None = metadata.values
        else:
            details = copy_object(metadata) if metadata else None  # type: ignore[arg-type]
        # Not ``with``, here and in the next three methods: every call runs them, and ``with`` is
        # expensive on CPython 3.11.
        lock = self._lock
        lock.acquire()
        try:
            tree = self._tree
            if tree.root_ended:
                raise RuntimeError(NOTHING_BELOW_ENDED_ROOT)
            status: NodeStatus = "running" if running else "created"
            self.readings[0] = reading_ns = self._read_ns()
            now_ms = (self._anchor_ns + reading_ns) // NS_PER_MS
            return tree.begin(parent_id, kind, name, model, details, now_ms, status)
        finally:
            lock.release()

    def begin_step(self, parent_id: str, name: str, metadata: Metadata) -> str:
        """Create a running ``system`` node like :meth:`begin_node`, without validation.

        Raises:
            RuntimeError: the root has ended.
        """
        lock = self._lock
        lock.acquire()
        try:
            tree = self._tree
            if tree.root_ended:
                raise RuntimeError(NOTHING_BELOW_ENDED_ROOT)
            self.readings[0] = reading_ns = self._read_ns()
            now_ms = (self._anchor_ns + reading_ns) // NS_PER_MS
            return tree.begin(parent_id, "system", name, None, metadata.values, now_ms, "running")
        finally:
            lock.release()

    def mark_running(self, node_id: str) -> bool:
        """Set the status of a ``created`` node to ``running``; return whether this call did so."""
        lock = self._lock
        lock.acquire()
        try:
            tree = self._tree
            record = tree.open.get(node_id)
            if record is None or record["status"] != "created":
                tree.require_node(node_id)
                return False
            record["status"] = "running"
            tree.changes.append(record)
            return True
        finally:
            lock.release()

    def mark_success(
        self,
        node_id: str,
        cost_usd: Cost | None = FREE,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> bool:
        """End a node with ``success``; return whether this call ended it.

        The node may still have the status ``created``.
        """
        lock = self._lock
        lock.acquire()
        try:
            self.readings[0] = reading_ns = self._read_ns()
            now_ms = (self._anchor_ns + reading_ns) // NS_PER_MS
            return self._tree.end(
                node_id, "success", now_ms, None, None, cost_usd, tokens_in, tokens_out
            )
        finally:
            lock.release()

    def mark_failure(
        self,
        node_id: str,
        error_class: str,
        stop_reason: str | None = None,
        *,
        cost_usd: Cost | None = 0,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> bool:
        """End a node with ``fail``; return whether this call ended it."""
        _refuse_unless_text(error_class, optional=(stop_reason,))
        usage = (cost_usd, tokens_in, tokens_out)
        with self._lock:
            return self._tree.end(node_id, "fail", self.now_ms(), stop_reason, error_class, *usage)

    def mark_halt(
        self,
        node_id: str,
        stop_reason: str | None = None,
        *,
        cost_usd: Cost | None = 0,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> bool:
        """End a node with ``halt``, due to a limit or a stop; return whether this call ended it."""
        _refuse_unless_text(optional=(stop_reason,))
        usage = (cost_usd, tokens_in, tokens_out)
        with self._lock:
            return self._tree.end(node_id, "halt", self.now_ms(), stop_reason, None, *usage)

    def increment_retries(self, node_id: str) -> None:
        """Count a retry of an open node; ``total_retries`` includes it once the node has ended."""
        with self._lock:
            self._tree.count_retry(node_id)

    def add_late_usage(
        self,
        node_id: str,
        *,
        cost_usd: Cost | None = 0,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> None:
        """Add usage that became known after a node's end, without changing its status.

        Raises:
            RuntimeError: the node is still open; pass its usage to the method that ends it.
        """
        with self._lock:
            self._tree.add_late_usage(node_id, cost_usd, tokens_in, tokens_out)

    def annotate(self, node_id: str, values: Mapping[str, object]) -> None:
        """Add JSON values to the metadata of a node, without changing its status."""
        details = copy_object(values)
        with self._lock:
            self._tree.annotate(node_id, details)

    def add_ended(
        self,
        parent_id: str,
        kind: NodeKind,
        name: str,
        *,
        status: TerminalStatus,
        start_ts_ms: int,
        end_ts_ms: int,
        model: str | None = None,
        metadata: Mapping[str, object] | None = None,
        stop_reason: str | None = None,
        error_class: str | None = None,
    ) -> str:
        """Add a node that has already ended, with its actual times, and return its ID.

        Raises:
            ValueError: it ends before it starts, or has an ``error_class`` without having failed.
        """
        if end_ts_ms < start_ts_ms or status not in TERMINAL:
            raise ValueError(f"invalid end of a node: {status} from {start_ts_ms} to {end_ts_ms}")
        _refuse_unless_text(optional=(stop_reason, error_class))
        if error_class is not None and status != "fail":
            raise ValueError(f"error_class requires the status fail, not {status}")
        with self._lock:  # reentrant: begin_node acquires it, too
            node_id = self.begin_node(parent_id, kind, name, model, metadata)
            self._tree.open[node_id]["start_ts_ms"] = start_ts_ms
            self._tree.end(node_id, status, end_ts_ms, stop_reason, error_class)
            return node_id

    def close_open(self, stop_reason: str, *, top: str | None = None) -> list[str]:
        """Halt all open nodes below the node ``top`` (default: the root), deepest first.

        Return the IDs of the halted nodes. The node ``top`` itself stays open. Ending the root
        halts all open nodes first, so none is left below an ended root.
        """
        with self._lock:
            top_id = self._tree.root_id if top is None else top
            if top_id is None:
                return []
            self._tree.require_node(top_id)
            return self._tree.close_open(stop_reason, top_id, self.now_ms())

    def capture(self) -> GraphCapture:
        """Capture the current state, from which a snapshot can be built without the lock."""
        with self._lock:
            tree = self._tree
            open_now = {node_id: record.copy() for node_id, record in tree.open.items()}
            return GraphCapture(
                chain_id=self.chain_id,
                root_id=tree.root_id,
                aggregates=tree.totals.as_aggregates(),
                snapshot_ts_ms=self.now_ms(),
                revision=len(tree.changes),
                records=tree.records,
                node_count=len(tree.records),
                overlay={**tree.late, **open_now},
                metadata=tree.metadata,
            )

    def snapshot(self) -> Snapshot:
        """Return a consistent copy of the whole graph while other threads write.

        The lock is held only during the capture. For very large graphs on an event loop, see
        ``GraphCapture``.
        """
        snapshot = self.capture().as_dict()
        for node in snapshot["nodes"].values():
            node["metadata"] = copy_object(node["metadata"])
        return snapshot

    def step_of(self, node_id: str) -> str:
        """Return the path of a node's step or agent, which is its nearest ``system`` node."""
        with self._lock:
            tree = self._tree
            while True:
                tree.require_node(node_id)
                record = tree.open.get(node_id) or tree.record(node_id)
                if record["kind"] == "system":
                    return path_of(record, tree.metadata.get(record["node_id"], {}))
                node_id = record["parent_id"] or ""

    def failures_of(self, node_id: str) -> list[tuple[str | None, str | None]]:
        """Return the error class and the message of each failed attempt at an ended call."""
        with self._lock:
            failed = self._tree.failures_of(node_id)
            return [(each["error_class"], each["stop_reason"]) for each in failed]

    def node(self, node_id: str) -> TraceNode:
        """Return a copy of the current state of a node."""
        with self._lock:
            self._tree.require_node(node_id)
            node: Any = self._tree.record(node_id).copy()
            node["metadata"] = copy_object(self._tree.metadata.get(node_id, {}))
            return cast(TraceNode, node)

    def changed_since(self, revision: int) -> Changes:
        """Return the nodes that changed after ``revision``.

        The time that this takes is proportional to the number of changed nodes. Their metadata is
        shared with the graph: read it only.

        Raises:
            ValueError: the graph has not reached that revision.
        """
        tree = self._tree
        with self._lock:
            now = len(tree.changes)
            if not 0 <= revision <= now:
                raise ValueError(f"revision {revision} does not exist yet; the graph is at {now}")
            changed = {record["node_id"]: record for record in tree.changes[revision:]}
            metadata = tree.metadata
            nodes: list[Any] = [
                {**fields, "metadata": metadata.get(node_id) or {}}
                for node_id, fields in changed.items()
            ]
        return Changes(now, nodes)


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


def snapshot_of(chain_id: str, nodes: Iterable[Mapping[str, object]], *, at_ms: int) -> Snapshot:
    """Build the snapshot of a graph from its stored nodes, which it shares, given in any order.

    ``at_ms`` is the time of the snapshot in UTC epoch milliseconds.

    Raises:
        ValueError: the nodes do not form one well-formed graph.
    """
    by_id = {node["node_id"]: node for node in well_formed(nodes)}
    totals, depths = Totals(), dict[str, int]()
    for node_id, node in by_id.items():
        parent_id = node["parent_id"]
        depths[node_id] = 0 if parent_id is None else depths[parent_id] + 1
        if node["status"] in TERMINAL:
            totals.add_ended(node, checked_usage(node["cost_usd"], None, None))
    totals.max_depth = max(depths.values(), default=0)
    return {
        "chain_id": chain_id,
        "root_id": next(iter(by_id), None),
        "nodes": by_id,
        "aggregates": totals.as_aggregates(),
        "snapshot_ts_ms": at_ms,
    }


@dataclass(slots=True, eq=False)
class CallTree:
    """The tree of nodes and its running totals. Not thread-safe: the graph's lock guards it.

    A node is an open record, changed in place, until it ends. From then on its record is immutable:
    late usage replaces it with another record. This makes a consistent capture of the tree cheap
    (see ``snapshot.py``). Every change is also appended to a log, whose length is the revision. A
    journal only has to write the entries after its last revision.

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
        node_id = _FIRST_IDS[number] if number < _LARGE else f"n{str(number).zfill(6)}"
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
            self.require_node(node_id)
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
            self.require_node(node_id)
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
        self.require_node(node_id)
        if node_id in self.open:
            raise RuntimeError(f"{node_id} is still open; pass the usage when it ends")
        record = self.record(node_id).copy()
        before = record["cost_usd"]
        is_priced = before is not None and cost_usd is not None
        record["cost_usd"] = float(Decimal(str(before)) + cost) if is_priced else None
        record["tokens_in"] = sum_of_known(record["tokens_in"], tokens_in)
        record["tokens_out"] = sum_of_known(record["tokens_out"], tokens_out)
        self.late[node_id] = record
        self.totals.cost_usd += cost
        self.totals.tokens_in += tokens_in or 0
        self.totals.tokens_out += tokens_out or 0
        self.changes.append(record)

    def annotate(self, node_id: str, values: JsonObject) -> None:
        """Add values to the metadata of an open or ended node."""
        self.require_node(node_id)
        self.metadata[node_id] = {**self.metadata.get(node_id, {}), **values}
        self.changes.append(self.open.get(node_id) or self.record(node_id))

    def adopt(self, node: TraceNode) -> None:
        """Import a node from a well-formed graph; import nodes in the order of their numbers."""
        node_id, parent_id, cost = node["node_id"], node["parent_id"], node["cost_usd"]
        record: Any = NEW_NODE.copy()
        record.update(node)
        if metadata := record.pop("metadata"):
            self.metadata[node_id] = copy_object(metadata)
        record["cost_usd"] = None if cost is None else float(cost)  # JSON may have made 0.0 a 0
        self.last_number = number_of(node_id)
        self.depths[node_id] = depth = 0 if parent_id is None else self.depths[parent_id] + 1
        if depth > self.totals.max_depth:
            self.totals.max_depth = depth
        self.records.append(record)
        self.changes.append(record)
        if node["status"] in TERMINAL:
            self.totals.add_ended(record, checked_usage(cost, None, None))
        else:
            self.open[node_id] = record
        if parent_id is None:
            self.root_id, self.root_ended = node_id, node_id not in self.open

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

    def require_node(self, node_id: str) -> None:
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


def checked_usage(cost_usd: Cost | None, tokens_in: int | None, tokens_out: int | None) -> Decimal:
    """Validate the usage of a call and return its cost as a Decimal; 0 if the cost is None.

    Raises:
        ValueError: the cost is negative, not finite or above ``MAX_COST_USD``, or a token count is
            negative or not an integer.
    """
    for tokens in (tokens_in, tokens_out):
        if tokens is not None and (type(tokens) is not int or tokens < 0):  # nor is True a count
            counts = f"{tokens_in} and {tokens_out}"
            raise ValueError(f"token counts must be integers from 0, not {counts}")
    if cost_usd is None:
        return FREE
    if isinstance(cost_usd, Decimal):
        if cost_usd.is_finite() and FREE <= cost_usd <= _MAX_COST:
            return cost_usd
    elif type(cost_usd) in _NUMBERS and 0.0 <= cost_usd <= MAX_COST_USD:
        return Decimal(str(cost_usd)) if cost_usd else FREE
    raise ValueError(f"a cost must be a finite number of dollars from 0, not {cost_usd}")


def _refuse_unless_text(*texts: object, optional: Iterable[object] = ()) -> None:
    """Check that the texts of a node (names, models, error classes, reasons) are strings.

    Raises:
        ValueError: a value is not a string (``optional`` ones may be None); the message contains
            its type, not its value.
    """
    for text in (*texts, *(each for each in optional if each is not None)):
        if not isinstance(text, str):
            raise ValueError(f"names and reasons must be strings, not {type(text).__name__}")
