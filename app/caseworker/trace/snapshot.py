"""Snapshots of a graph, built outside its lock.

A node that has ended never changes in place: later usage replaces its record by another. So a
consistent cut through a graph needs, under the lock, no more than the number of its nodes, a copy
of the few that are still open, and the records that replace others. The rest is copied afterwards,
while other threads go on.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypedDict, cast

from caseworker.trace.call_tree import Aggregates
from caseworker.trace.json_values import copy_object
from caseworker.trace.node import JsonObject, Node, NodeFields

_BATCH: Final = 100
"""Nodes encoded in one go: less than a millisecond in which no other thread can run."""


class Snapshot(TypedDict):
    """A whole graph at one moment, JSON-serialisable."""

    chain_id: str
    root_id: str | None
    nodes: dict[str, Node]
    """By node id, in the order of creation."""
    aggregates: Aggregates
    snapshot_ts_ms: int
    """UTC epoch milliseconds of the moment the snapshot shows."""


class Changes(NamedTuple):
    """What has changed in a graph since a revision."""

    revision: int
    """Ask from here the next time."""
    nodes: list[Node]
    """Each changed node once, as it is now; a parent stands before its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCapture:
    """A graph at one moment: cheap to take, and made into a snapshot when and where it suits.

    With 100,000 nodes it matters how. ``as_dict`` in a thread leaves the event loop running, but so
    many new dicts make the garbage collector halt every thread for tens of milliseconds, and
    ``json.dumps`` of the result is one long step in which no thread runs. ``json_parts`` does
    neither: it goes by small batches. Let others have a turn between two parts, on the event loop
    with ``await asyncio.sleep(0)``, in a thread with ``time.sleep(0)``.
    """

    chain_id: str
    root_id: str | None
    aggregates: Aggregates
    snapshot_ts_ms: int
    revision: int
    """The graph's revision at that moment; ``changed_since`` returns what came later."""
    records: Sequence[NodeFields]
    """Shared with the graph, which appends to it: only the first ``node_count`` belong here."""
    node_count: int
    overlay: Mapping[str, NodeFields]
    """What stands in place of a record: copies of open nodes, late usage."""
    metadata: Mapping[str, JsonObject]

    def as_dict(self) -> Snapshot:
        """Return the snapshot; the caller may change it freely."""
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

    def _copies(self, records: Iterable[NodeFields]) -> dict[str, Node]:
        overlay, metadata = self.overlay, self.metadata
        copies: dict[str, Node] = {}
        for record in records:  # ``whole``, written out: the call would be a quarter of the work
            node_id = record["node_id"]
            node: Any = overlay.get(node_id, record).copy()
            details = metadata.get(node_id)
            node["metadata"] = copy_object(details) if details else {}
            copies[node_id] = node
        return copies


def whole(fields: NodeFields, metadata: JsonObject | None) -> Node:
    """Return a node that shares nothing mutable with its parts."""
    node = cast(Node, fields.copy())
    node["metadata"] = copy_object(metadata) if metadata else {}
    return node
