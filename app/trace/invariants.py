"""What must hold of every graph, checked on its nodes or its snapshot (seed 001, 3, and spec 2).

A graph cannot break these rules; a stored snapshot could have been cut, mixed up or edited. So
nothing here trusts a snapshot to be well made.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isclose, isfinite
from typing import Any, Final, cast

from app.trace.node import FIELDS, KINDS, NEXT, TERMINAL, Node, number_of

_NODE_ID: Final = re.compile(r"n\d{6,}")
_TEXT: Final[tuple[type, ...]] = (str,)
_TEXT_OR_NONE: Final[tuple[type, ...]] = (str, type(None))
_WHOLE: Final[tuple[type, ...]] = (int,)
_WHOLE_OR_NONE: Final[tuple[type, ...]] = (int, type(None))

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "node_id": _TEXT,
    "parent_id": _TEXT_OR_NONE,
    "kind": _TEXT,
    "name": _TEXT,
    "start_ts_ms": _WHOLE,
    "end_ts_ms": _WHOLE_OR_NONE,
    "status": _TEXT,
    "model": _TEXT_OR_NONE,
    "retries_used": _WHOLE,
    "cost_usd": (int, float),
    "tokens_in": _WHOLE_OR_NONE,
    "tokens_out": _WHOLE_OR_NONE,
    "stop_reason": _TEXT_OR_NONE,
    "error_class": _TEXT_OR_NONE,
    "metadata": (dict,),
}

_CONSTANT: Final = ("parent_id", "kind", "name", "start_ts_ms", "model", "metadata")


def well_formed(nodes: Iterable[Mapping[str, object]]) -> list[Node]:
    """Return the nodes of one graph in the order of their creation.

    Raises:
        ValueError: an invariant does not hold, or two nodes share an id.
    """
    by_id: dict[str, Mapping[str, object]] = {}
    for node in nodes:
        if by_id.setdefault(str(node.get("node_id")), node) is not node:
            raise ValueError(f"two nodes are called {node.get('node_id')}")
    if problems := node_violations(by_id):
        raise ValueError("; ".join(problems[:5]))
    return sorted((cast(Node, node) for node in by_id.values()), key=_number)


def violations(snapshot: Mapping[str, Any]) -> list[str]:
    """Return one sentence for every broken rule of a snapshot; none means it is sound.

    Checked are the five invariants of document 001, the 15 fields, that no open node stands below
    a closed root, and that the aggregates are the sums over the nodes.
    """
    missing = {"chain_id", "root_id", "nodes", "aggregates", "snapshot_ts_ms"} - snapshot.keys()
    if missing:
        return [f"the snapshot has no {key}" for key in sorted(missing)]
    nodes: Mapping[str, Mapping[str, Any]] = snapshot["nodes"]
    if problems := node_violations(nodes):
        return problems
    root_id = next((key for key, node in nodes.items() if node["parent_id"] is None), None)
    if snapshot["root_id"] != root_id:
        problems.append(f"root_id is {snapshot['root_id']}, but the root is {root_id}")
    problems.extend(_wrong_sums(snapshot["aggregates"], nodes))
    return problems


def node_violations(nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one sentence for every rule that nodes, by their ids, break."""
    problems = [p for node_id, node in nodes.items() for p in _misshapen(node_id, node)]
    if problems:
        return problems
    for node_id, node in nodes.items():
        problems.extend(f"{node_id} {p}" for p in _broken_life(node))
        problems.extend(f"{node_id} {p}" for p in _bad_usage(node))
        problems.extend(f"{node_id} {p}" for p in _misplaced(node_id, node, nodes))
    problems.extend(_root_problems(nodes))
    return problems


def regressions(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> list[str]:
    """Return what went backwards between two sound snapshots of one graph.

    Nodes stay, what they began with stays, a terminal status is final, and neither costs nor
    retries nor the totals ever decrease.
    """
    problems = []
    for node_id, before in earlier["nodes"].items():
        after = later["nodes"].get(node_id)
        if after is None:
            problems.append(f"{node_id} has vanished")
            continue
        problems.extend(
            f"{node_id}.{field} changed" for field in _CONSTANT if before[field] != after[field]
        )
        problems.extend(f"{node_id} {p}" for p in _life_gone_back(before, after))
    for name, total in earlier["aggregates"].items():
        if later["aggregates"][name] < total:
            problems.append(f"{name} fell from {total} to {later['aggregates'][name]}")
    return problems


def aggregates_of(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Compute the aggregates of sound nodes from scratch."""
    every = nodes.values()
    calls = [node["kind"] for node in every if node["status"] == "success"]
    return {
        "total_cost_usd": sum(node["cost_usd"] for node in every),
        "total_llm_calls": calls.count("llm"),
        "total_tool_calls": calls.count("tool"),
        "total_retries": sum(n["retries_used"] for n in every if n["status"] in TERMINAL),
        "total_tokens_in": sum(node["tokens_in"] or 0 for node in every),
        "total_tokens_out": sum(node["tokens_out"] or 0 for node in every),
        "max_depth": max(depths(nodes).values(), default=0),
    }


def depths(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return how far below the root each of the sound nodes stands."""
    found: dict[str, int] = {}
    for node_id in sorted(nodes, key=number_of):
        parent_id = nodes[node_id]["parent_id"]
        found[node_id] = 0 if parent_id is None else found[parent_id] + 1
    return found


def _misshapen(node_id: str, node: Mapping[str, Any]) -> Iterator[str]:
    for field in sorted(set(FIELDS) ^ node.keys()):
        yield f"{node_id} {'lacks' if field in FIELDS else 'has the unknown field'} {field}"
    wrong = [name for name, types in _TYPES.items() if type(node.get(name)) not in types]
    for field in wrong:
        yield f"{node_id}.{field} is {type(node.get(field)).__name__}"
    if not wrong:
        yield from _unknown_words(node_id, node)


def _unknown_words(node_id: str, node: Mapping[str, Any]) -> Iterator[str]:
    if not _NODE_ID.fullmatch(node_id) or node["node_id"] != node_id:
        yield f"{node_id} is not the id of {node['node_id']}"
    if node["kind"] not in KINDS:
        yield f"{node_id} is of kind {node['kind']}"
    if node["status"] not in NEXT:
        yield f"{node_id} has the status {node['status']}"


def _broken_life(node: Mapping[str, Any]) -> Iterator[str]:
    ended = node["status"] in TERMINAL
    if ended != (node["end_ts_ms"] is not None):
        yield f"is {node['status']} with end_ts_ms {node['end_ts_ms']}"
    elif ended and node["end_ts_ms"] < node["start_ts_ms"]:
        yield "ends before it starts"
    if node["error_class"] is not None and node["status"] != "fail":
        yield f"is {node['status']} with an error_class"


def _bad_usage(node: Mapping[str, Any]) -> Iterator[str]:
    if not isfinite(node["cost_usd"]) or node["cost_usd"] < 0:
        yield f"costs {node['cost_usd']}"
    for field in ("retries_used", "tokens_in", "tokens_out"):
        if (node[field] or 0) < 0:
            yield f"has {field} {node[field]}"
    used = node["cost_usd"] or node["tokens_in"] or node["tokens_out"]
    if used and node["status"] not in TERMINAL:
        yield f"is {node['status']} and has usage already"


def _misplaced(
    node_id: str, node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
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


def _wrong_sums(
    aggregates: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    for name, total in aggregates_of(nodes).items():
        if name not in aggregates:
            yield f"the aggregates lack {name}"
        elif not isclose(aggregates[name], total, rel_tol=1e-9, abs_tol=1e-9):
            yield f"{name} is {aggregates[name]}, but the nodes add up to {total}"


def _life_gone_back(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if before["status"] in TERMINAL:
        for field in ("status", "end_ts_ms", "stop_reason", "error_class", "retries_used"):
            if before[field] != after[field]:
                yield f"had ended and its {field} changed"
    if (before["status"], after["status"]) == ("running", "created"):
        yield "went from running back to created"
    for field in ("cost_usd", "tokens_in", "tokens_out", "retries_used"):
        if (after[field] or 0) < (before[field] or 0):
            yield f"has less {field} than before"


def _number(node: Node) -> int:
    return number_of(node["node_id"])
