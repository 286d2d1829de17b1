"""Snapshots of a graph, built outside its lock.

A node that has ended never changes in place: later usage replaces its record by another. So a
consistent cut through the graph needs, under the lock, no more than the number of nodes so far, a
copy of the few that are still open, and the records that replace others. All copying of the rest
happens afterwards, while other threads go on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypedDict, cast

from app.trace.aggregates import Aggregates
from app.trace.json_copy import copy_object
from app.trace.node import JsonObject, Node, NodeFields

_BATCH: Final = 250
"""Nodes encoded to JSON in one go: about a millisecond in which no other thread can run."""


class Snapshot(TypedDict):
    """A whole graph at one moment, JSON-serialisable (seed 001, 5)."""

    chain_id: str
    root_id: str | None
    nodes: dict[str, Node]
    """By node id, in the order of creation."""
    aggregates: Aggregates
    snapshot_ts_ms: int
    """UTC epoch milliseconds of the moment the snapshot shows."""


class Changes(TypedDict):
    """What has changed in a graph since a revision."""

    revision: int
    """Ask from here the next time."""
    nodes: list[Node]
    """Each changed node once, as it is now; parents stand before their children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCapture:
    """A graph at one moment; cheap to take, turned into a snapshot whenever and wherever it suits.

    Of a large graph, mind what holds up the event loop. ``as_dict`` in a thread lets the loop run,
    but so many new dicts make the garbage collector stop everything now and then, and encoding them
    with ``json.dumps`` is one long step in which no thread can run. ``json_parts`` has neither: it
    works node batch by node batch, in a thread or on the loop with an ``await`` between parts.
    """

    chain_id: str
    root_id: str | None
    aggregates: Aggregates
    snapshot_ts_ms: int
    revision: int
    """The graph's revision at that moment; ``changed_since`` it tells what came later."""
    _records: Sequence[NodeFields]
    _count: int
    _overlay: Mapping[str, NodeFields]
    _metadata: Mapping[str, JsonObject]

    def __len__(self) -> int:
        """Return the number of nodes."""
        return self._count

    def nodes(self) -> Iterator[Node]:
        """Yield a copy of every node, in the order of creation."""
        overlay, metadata = self._overlay, self._metadata
        for record in islice(self._records, self._count):
            node_id = record["node_id"]
            yield with_metadata(overlay.get(node_id, record), metadata.get(node_id))

    def as_dict(self) -> Snapshot:
        """Return the snapshot; the caller may change it freely."""
        return {
            "chain_id": self.chain_id,
            "root_id": self.root_id,
            "nodes": {node["node_id"]: node for node in self.nodes()},
            "aggregates": self.aggregates.copy(),
            "snapshot_ts_ms": self.snapshot_ts_ms,
        }

    def json_parts(self) -> Iterator[str]:
        """Yield the snapshot's JSON text in parts of about 100 KB."""
        nodes = self.nodes()
        yield f'{{"chain_id": {json.dumps(self.chain_id)}, "root_id": {json.dumps(self.root_id)}, '
        yield '"nodes": {'
        separator = ""
        while batch := {node["node_id"]: node for node in islice(nodes, _BATCH)}:
            yield separator + json.dumps(batch)[1:-1]
            separator = ", "
        yield f'}}, "aggregates": {json.dumps(self.aggregates)}, '
        yield f'"snapshot_ts_ms": {self.snapshot_ts_ms}}}'


def with_metadata(fields: NodeFields, metadata: JsonObject | None) -> Node:
    """Return a whole node that shares nothing mutable with its parts."""
    node = cast(Node, fields.copy())
    node["metadata"] = copy_object(metadata) if metadata else {}
    return node
