"""The invariants of a graph's nodes, which are checked before a graph is restored from storage.

A live graph cannot violate them, but stored nodes may be truncated, mixed up or edited. So the
checks assume nothing about the nodes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from types import NoneType
from typing import Any, Final, cast

from caseworker.core.trace.node import KINDS, NEXT, TERMINAL, TraceNode, number, number_of

_NODE_ID: Final = re.compile(r"n\d{6,}")

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("node_id", "kind", "name", "status"), (str,)),
    **dict.fromkeys(("parent_id", "model", "stop_reason", "error_class"), (str, NoneType)),
    **dict.fromkeys(("start_ts_ms", "retries_used"), (int,)),
    **dict.fromkeys(("end_ts_ms", "tokens_in", "tokens_out"), (int, NoneType)),
    "cost_usd": (int, float, NoneType),
    "metadata": (dict,),
}


def well_formed(nodes: Iterable[Mapping[str, object]]) -> list[TraceNode]:
    """Validate the nodes of one graph and return them in the order of creation.

    Raises:
        ValueError: an invariant is violated, or two nodes share an ID.
    """
    by_id: dict[str, Mapping[str, object]] = {}
    for node in nodes:
        if by_id.setdefault(str(node.get("node_id")), node) is not node:
            raise ValueError(f"two nodes have the ID {node.get('node_id')}")
    if problems := node_violations(by_id):
        raise ValueError("; ".join(problems[:5]))
    return sorted((cast(TraceNode, node) for node in by_id.values()), key=number)


def node_violations(nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one sentence for each violated invariant; ``nodes`` maps node IDs to nodes."""
    if problems := list(_misshapen(nodes)):
        return problems
    for node_id, node in nodes.items():
        problems.extend(f"{node_id} {p}" for p in _violations(node_id, node, nodes))
    problems.extend(_root_problems(nodes))
    return problems


def _misshapen(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    valid = set[tuple[type, ...]]()  # a graph has few combinations of types: check each once
    for node_id, node in nodes.items():
        if node.keys() != _TYPES.keys():
            for field in sorted(_TYPES.keys() ^ node.keys()):
                yield f"{node_id} {'lacks' if field in _TYPES else 'has the unknown field'} {field}"
        types = tuple(map(type, map(node.get, _TYPES)))
        if types not in valid:
            wrong = [
                (field, kind)
                for (field, allowed), kind in zip(_TYPES.items(), types, strict=True)
                if kind not in allowed
            ]
            for field, kind in wrong:
                yield f"{node_id}.{field} is {kind.__name__}"
            if wrong:
                continue
            valid.add(types)
        if not _NODE_ID.fullmatch(node_id) or node["node_id"] != node_id:
            yield f"{node_id} is not the id of {node['node_id']}"
        if node["kind"] not in KINDS:
            yield f"{node_id} is of kind {node['kind']}"
        if node["status"] not in NEXT:
            yield f"{node_id} has the status {node['status']}"


def _violations(
    node_id: str, node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    ended = node["status"] in TERMINAL
    if ended != (node["end_ts_ms"] is not None):
        yield f"is {node['status']} with end_ts_ms {node['end_ts_ms']}"
    elif ended and node["end_ts_ms"] < node["start_ts_ms"]:
        yield "ends before it starts"
    if node["error_class"] is not None and node["status"] != "fail":
        yield f"is {node['status']} with an error_class"
    cost_usd = node["cost_usd"] or 0
    if not 0 <= cost_usd < inf:
        yield f"costs {node['cost_usd']}"
    for field in ("retries_used", "tokens_in", "tokens_out"):
        if (node[field] or 0) < 0:
            yield f"has {field} {node[field]}"
    if not ended and (cost_usd or node["tokens_in"] or node["tokens_out"]):
        yield f"is {node['status']} and has usage already"
    parent_id = node["parent_id"]
    if parent_id is None:
        if node["kind"] != "system":
            yield f"is a root of kind {node['kind']}"
    elif parent_id not in nodes:
        yield f"has no parent {parent_id} in the graph"
    elif number_of(parent_id) >= number_of(node_id):
        yield f"is older than its parent {parent_id}"


def _root_problems(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    roots = [node_id for node_id, node in nodes.items() if node["parent_id"] is None]
    if nodes and len(roots) != 1:
        yield f"there are {len(roots)} roots"
    elif roots and nodes[roots[0]]["status"] in TERMINAL:
        for node_id, node in nodes.items():
            if node["status"] not in TERMINAL:
                yield f"{node_id} is {node['status']} below a closed root"
