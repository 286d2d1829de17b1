"""The oracle for every stored or returned snapshot of an ExecutionGraph."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from math import isclose
from typing import Any

from caseworker.core.trace.invariants import node_violations
from caseworker.core.trace.node import TERMINAL, number_of
from caseworker.runs.run import CallRecord

_ASKED_FOR = re.compile(
    r"(?P<asked>.*/turn/\d+)/tool/(?P<place>\d+)(?:/approval)?"
    r"|(?P<plan>.*/(?:small|big)/\d+)/act/\d+(?:/approval)?"
)
"""Paths of calls that a model requested: by agent turn, or by pass of a case."""

_CONSTANT = ("parent_id", "kind", "name", "start_ts_ms", "model", "metadata")


def assert_sound(snapshot: Mapping[str, Any]) -> None:
    """Fail unless a snapshot keeps every invariant and survives a trip through strict JSON."""
    assert violations(snapshot) == []
    assert json.loads(json.dumps(snapshot, allow_nan=False)) == snapshot


def assert_no_regression(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> None:
    """Fail if a value decreased between two snapshots of one graph."""
    assert regressions(earlier, later) == []


def violations(snapshot: Mapping[str, Any], *, calls_in_place: bool = True) -> list[str]:
    """Return one sentence for every violated rule of a snapshot; an empty list means it is sound.

    It checks the five invariants of the graph and the 15 fields. No open node may be below a closed
    root, and requested calls must be children of the model call. The aggregates must be sums over
    the nodes. Without ``calls_in_place`` a requested call may be a child of its step, as in earlier
    versions.
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
    if calls_in_place:
        problems.extend(_misplaced(nodes))
    problems.extend(_wrong_sums(snapshot["aggregates"], nodes))
    return problems


def unasked_calls(records: Iterable[CallRecord]) -> Iterator[str]:
    """Yield the journaled calls that the reply of their parent does not request.

    The reply of a turn must name the tool or agent at the position in the key of the call.
    """
    stored = {record.node_id: record for record in records}
    for record in stored.values():
        path = _path_of(record.node)
        found = _ASKED_FOR.fullmatch(path or "")
        if found is None or found["place"] is None:
            continue
        parent = stored[str(record.node["parent_id"])]
        wanted = (parent.value or {}).get("tool_calls", ())
        place = int(found["place"])
        asked = wanted[place - 1]["name"] if place <= len(wanted) else None
        called = record.node["metadata"].get("agent") or record.node["name"]
        if asked is None or asked not in (called, str(called).removeprefix("approval of ")):
            yield f"{path} calls {called}, but {parent.node_id} asked for {asked}"


def unlike_journal(
    snapshot: Mapping[str, Any], stored: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the differences between the stored nodes of a finished run and its ``snapshot``."""
    yield from node_violations(stored)
    last = snapshot["nodes"]
    for node_id in stored.keys() | last.keys():
        ended = [each.get(node_id, {}).get("status") for each in (stored, last)]
        if ended[0] != ended[1]:
            yield f"{node_id} is {ended[0]} in the journal and {ended[1]} in the snapshot"


def stored_steps(records: Iterable[CallRecord]) -> dict[str, str]:
    """Return the status of the last node of every step in a journal, by the key of the step."""
    keys = ((str(each.call_key), each.node["status"]) for each in records)
    return {key: status for key, status in keys if key.startswith("step:")}


def regressions(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> list[str]:
    """Return the regressions between two sound snapshots of one graph.

    Nodes and their initial fields stay, a terminal status is final, and costs, retries and totals
    never decrease.
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
        "total_cost_usd": sum(node["cost_usd"] or 0 for node in every),
        "total_llm_calls": calls.count("llm"),
        "total_tool_calls": calls.count("tool"),
        "total_retries": sum(n["retries_used"] for n in every if n["status"] in TERMINAL),
        "total_tokens_in": sum(node["tokens_in"] or 0 for node in every),
        "total_tokens_out": sum(node["tokens_out"] or 0 for node in every),
        "max_depth": max(depths(nodes).values(), default=0),
    }


def depths(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the depth of each node below the root."""
    found: dict[str, int] = {}
    for node_id in sorted(nodes, key=number_of):
        parent_id = nodes[node_id]["parent_id"]
        found[node_id] = 0 if parent_id is None else found[parent_id] + 1
    return found


def _misplaced(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the requested calls that are not children of the requesting model call."""
    for node_id, node in nodes.items():
        found = _ASKED_FOR.fullmatch(_path_of(node) or "")
        if found is None or node["parent_id"] is None:
            continue
        parent = nodes[node["parent_id"]]
        by = str(parent["metadata"].get("call_key"))
        asked = found["asked"]
        if asked is None:
            fits = by.startswith((f"{found['plan']}/plan", f"{found['plan']}/reprompt"))
        else:
            fits = by == asked or (by.startswith(f"{asked}/") and "/tool/" not in by[len(asked) :])
        if parent["kind"] != "llm" or not fits:
            yield f"{node_id} ({_path_of(node)}) is a child of {by or parent['name']}"


def _path_of(node: Mapping[str, Any]) -> str | None:
    """Return the path of a call, an approval or an agent that was called as a tool."""
    if "agent" in node["metadata"]:
        return str(node["name"])
    key: str | None = node["metadata"].get("call_key")
    return key


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
