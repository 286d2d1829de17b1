"""The ExecutionGraph: the tree of all calls of a run.

Every LLM call, tool call and system operation (such as a step) is a node of the tree, a CallNode.
Its parent is the call that made it.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Self

from caseworker.core.trace.call_tree import CallTree
from caseworker.core.trace.invariants import well_formed
from caseworker.core.trace.json_values import Metadata, copy_object
from caseworker.core.trace.node import (
    KINDS,
    TERMINAL,
    Cost,
    JsonObject,
    Node,
    NodeKind,
    NodeStatus,
    TerminalStatus,
    refuse_unless_text,
)
from caseworker.core.trace.snapshot import Changes, GraphCapture, Snapshot, whole

NOTHING_BELOW_ENDED_ROOT: Final = "the root has ended; no node can be added"

Clock = Callable[[], int]
"""Function that returns the current time in UTC epoch milliseconds; any thread may call it."""

NS_PER_MS: Final = 1_000_000


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
        refuse_unless_text(name)
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
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be llm, tool or system, not {kind!r}")
        if parent_id is None:
            raise ValueError("a node requires a parent; use create_root for the root")
        if type(name) is not str or model is not None:
            refuse_unless_text(name, optional=(model,))
        if type(metadata) is Metadata:
            details: JsonObject | None = metadata.values
        else:
            details = copy_object(metadata) if metadata else None  # type: ignore[arg-type]
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
        """Create a running ``system`` node like :meth:`begin_node`, without validation."""
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

    def end_step(self, node_id: str) -> bool:
        """End a node with ``success`` and without usage; return whether this call ended it."""
        lock = self._lock
        lock.acquire()
        try:
            self.readings[0] = reading_ns = self._read_ns()
            now_ms = (self._anchor_ns + reading_ns) // NS_PER_MS
            return self._tree.end(node_id, "success", now_ms)
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
                tree.refuse_unknown(node_id)
                return False
            record["status"] = "running"
            tree.changes.append(record)
            return True
        finally:
            lock.release()

    def mark_success(
        self,
        node_id: str,
        cost_usd: Cost | None,
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
        refuse_unless_text(error_class, optional=(stop_reason,))
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
        refuse_unless_text(optional=(stop_reason,))
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
        refuse_unless_text(optional=(stop_reason, error_class))
        if error_class is not None and status != "fail":
            raise ValueError(f"error_class requires the status fail, not {status}")
        with self._lock:
            node_id = self.begin_node(parent_id, kind, name, model, metadata)
            self._tree.open[node_id]["start_ts_ms"] = start_ts_ms
            self._tree.end(node_id, status, end_ts_ms, stop_reason, error_class)
            return node_id

    def close_open(self, stop_reason: str, *, below: str | None = None) -> list[str]:
        """Halt all open nodes below the node ``below`` (default: the root), deepest first.

        Return the IDs of the halted nodes. The node ``below`` itself stays open. Ending the root
        halts all open nodes first, so none is left below an ended root.
        """
        with self._lock:
            top_id = self._tree.root_id if below is None else below
            if top_id is None:
                return []
            self._tree.refuse_unknown(top_id)
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
        return self.capture().as_dict()

    def step_of(self, node_id: str) -> str:
        """Return the name of a node's step or agent, which is its nearest ``system`` node."""
        with self._lock:
            tree = self._tree
            while True:
                tree.refuse_unknown(node_id)
                record = tree.open.get(node_id) or tree.record(node_id)
                if record["kind"] == "system":
                    return record["name"]
                node_id = record["parent_id"] or ""

    def failures_of(self, node_id: str) -> list[tuple[str | None, str | None]]:
        """Return the error class and the message of each failed attempt at an ended call."""
        with self._lock:
            failed = self._tree.failures_of(node_id)
            return [(each["error_class"], each["stop_reason"]) for each in failed]

    def node(self, node_id: str) -> Node:
        """Return a copy of the current state of a node."""
        with self._lock:
            self._tree.refuse_unknown(node_id)
            return whole(self._tree.record(node_id), self._tree.metadata.get(node_id))

    def changed_since(self, revision: int) -> Changes:
        """Return the nodes that changed after ``revision``.

        The time that this takes is proportional to the number of changed nodes.

        Raises:
            ValueError: the graph has not reached that revision.
        """
        tree = self._tree
        with self._lock:
            now = len(tree.changes)
            if not 0 <= revision <= now:
                raise ValueError(f"revision {revision} does not exist yet; the graph is at {now}")
            changed = {record["node_id"]: record for record in tree.changes[revision:]}
            for node_id in changed.keys() & tree.open.keys():
                changed[node_id] = changed[node_id].copy()
        nodes = [whole(fields, tree.metadata.get(key)) for key, fields in changed.items()]
        return Changes(now, nodes)
