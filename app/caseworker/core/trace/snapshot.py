"""Snapshots of a graph, built outside its lock.

The record of an ended node never changes in place; late usage replaces it with another record. So a
consistent capture of a graph needs little work under the lock: it takes the number of nodes, copies
of the few open nodes, and the replacement records. All other records are copied afterwards, while
other threads continue.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypedDict

from caseworker.core.trace.node import JsonObject, NodeFields, TraceNode

_BATCH: Final = 100
"""Nodes encoded per batch: the GIL is held for less than a millisecond."""


class Aggregates(TypedDict):
    """Totals over all nodes of a snapshot."""

    total_cost_usd: float
    total_llm_calls: int
    """Number of nodes of kind ``llm`` that ended with ``success``."""
    total_tool_calls: int
    """Number of nodes of kind ``tool`` that ended with ``success``."""
    total_retries: int
    """Sum of ``retries_used`` over all ended nodes, successful or not."""
    total_tokens_in: int
    total_tokens_out: int
    max_depth: int
    """Depth of the deepest node; the root has depth 0."""


class Snapshot(TypedDict):
    """The complete graph of a run at one point in time; JSON-serialisable."""

    chain_id: str
    root_id: str | None
    nodes: dict[str, TraceNode]
    """Nodes by ID, in the order of creation."""
    aggregates: Aggregates
    snapshot_ts_ms: int
    """Time of the snapshot in UTC epoch milliseconds."""


class Changes(NamedTuple):
    """The nodes that have changed since a revision of the graph."""

    revision: int
    """Current revision of the graph, to pass to the next call of ``changed_since``."""
    nodes: list[TraceNode]
    """Current state of each changed node; parents come before their children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCapture:
    """A graph at one point in time; cheap to capture, and convertible to a snapshot later.

    For about 100,000 nodes, use ``json_parts`` instead of ``as_dict``. ``as_dict`` creates a dict
    per node, so garbage collection pauses all threads for tens of milliseconds, even if it runs in
    a thread. Calling ``json.dumps`` on its result then holds the GIL for a long time.
    ``json_parts`` works in small batches. Yield between two parts: ``await asyncio.sleep(0)`` on
    the event loop, ``time.sleep(0)`` in a thread.
    """

    chain_id: str
    root_id: str | None
    aggregates: Aggregates
    snapshot_ts_ms: int
    revision: int
    """Revision of the graph at the time of the capture; ``changed_since`` returns later changes."""
    records: Sequence[NodeFields]
    """Records of the nodes, shared with the graph, which appends to them. Only the first
    ``node_count`` belong to the capture."""
    node_count: int
    overlay: Mapping[str, NodeFields]
    """Records by node ID that replace those in ``records``: copies of open nodes, and late
    usage."""
    metadata: Mapping[str, JsonObject]

    def as_dict(self) -> Snapshot:
        """Build the snapshot; its metadata is shared with the graph, so read it only."""
        return {
            "chain_id": self.chain_id,
            "root_id": self.root_id,
            "nodes": self._copies(islice(self.records, self.node_count)),
            "aggregates": self.aggregates.copy(),
            "snapshot_ts_ms": self.snapshot_ts_ms,
        }

    def json_parts(self) -> Iterator[str]:
        """Yield the JSON text of the snapshot in parts of about 40 KB."""
        chain_id, root_id = json.dumps(self.chain_id), json.dumps(self.root_id)
        yield f'{{"chain_id": {chain_id}, "root_id": {root_id}, "nodes": {{'
        records = islice(self.records, self.node_count)
        separator = ""
        while batch := self._copies(islice(records, _BATCH)):
            yield separator + json.dumps(batch)[1:-1]
            separator = ", "
        aggregates = json.dumps(self.aggregates)
        yield f'}}, "aggregates": {aggregates}, "snapshot_ts_ms": {self.snapshot_ts_ms}}}'

    def _copies(self, records: Iterable[NodeFields]) -> dict[str, TraceNode]:
        overlay, metadata = self.overlay, self.metadata
        copies: dict[str, TraceNode] = {}
        for record in records:
            node_id = record["node_id"]
            node: Any = overlay.get(node_id, record).copy()
            node["metadata"] = metadata.get(node_id) or {}
            copies[node_id] = node
        return copies
