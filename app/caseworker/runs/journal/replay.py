"""Restores the state that earlier executions of a run stored, for the next execution.

The ExecutionGraph is rebuilt from the journal. Nodes that were open when the worker was lost are
closed. All earlier costs are restored; a lost call counts with its estimate.

See docs/internals.md, "Recovery".
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.usage import Charge, sum_of
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import CONTINUES, ESTIMATED, IMPORTED_FROM, TERMINAL, WORKER_LOST
from caseworker.engine.ports import IF_LOST, CallOutcome, Entry, Recorded
from caseworker.engine.step_path import StepPath
from caseworker.runs.run import CallRecord, Run, RunSource

MANY_CALLS = 500

Restored = TypeVar("Restored")


async def restore(earlier: Sequence[CallRecord], build: Callable[[], Restored]) -> Restored:
    """Return ``build()``, which restores a run from its calls ``earlier``.

    Many calls are restored in a thread: five thousand would block the event loop for 0.1 s.
    """
    return await asyncio.to_thread(build) if len(earlier) > MANY_CALLS else build()


def graph_of(run: Run, earlier: Sequence[CallRecord]) -> tuple[ExecutionGraph, str]:
    """Return the ExecutionGraph of a run and the ID of its root.

    The graph is new, or restored from ``earlier``, the journal of previous executions.
    """
    if not earlier:
        graph = ExecutionGraph(run.key.run_id)
        root = graph.create_root(run.kind.value, {"run_id": run.key.run_id})
        graph.mark_running(root)
        return graph, root
    graph = ExecutionGraph.restore(run.key.run_id, [dict(record.node) for record in earlier])
    root = earlier[0].node_id
    waiting = _waiting_to_go_on(earlier)
    for record in reversed(earlier[1:]):  # children before their parents
        if record.node_id not in waiting:
            _close_lost(graph, record)
    graph.mark_running(root)
    return graph, root


def _waiting_to_go_on(earlier: Sequence[CallRecord]) -> frozenset[str]:
    """Return the imported open nodes that no execution of this run has started."""
    waiting = {earlier[0].node_id}
    for record in earlier[1:]:
        node = record.node  # a node whose parent does not wait was started here and lost
        if node["parent_id"] not in waiting:
            continue
        untouched = node["status"] == "created" and CONTINUES in node["metadata"]
        asks = node["kind"] == "llm" and node["status"] in TERMINAL  # the agent is resumed
        if untouched or asks:
            waiting.add(record.node_id)
    return frozenset(waiting)


def imported_from(source: RunSource, earlier: Sequence[CallRecord]) -> Mapping[str, Any]:
    """Return the source run and the numbers of imported nodes, for the run's start event."""
    kinds = [record.node["kind"] for record in earlier if IMPORTED_FROM in record.node["metadata"]]
    steps = kinds.count("system")
    counted = {"steps": steps, "calls": len(kinds) - steps}
    return {"from": {"run_id": source.run_id, "until": source.until, **counted}}


def _close_lost(graph: ExecutionGraph, record: CallRecord) -> None:
    """Close an open node; a call lost in flight is closed with its estimated usage."""
    lost = (record.value or {}).get(IF_LOST) if record.outcome is None else None
    if not lost or record.node["status"] in TERMINAL:
        cost = charge_of(record.charge).get(Dimension.COST_USD, 0)
        graph.mark_halt(record.node_id, WORKER_LOST, cost_usd=cost)
        return
    if lost[ESTIMATED]:
        graph.annotate(record.node_id, {ESTIMATED: lost[ESTIMATED]})
    cost = None if lost["cost_usd"] is None else Decimal(lost["cost_usd"])
    tokens = {name: lost[name] for name in ("tokens_in", "tokens_out")}
    graph.mark_halt(record.node_id, WORKER_LOST, cost_usd=cost, **tokens)


def reopened(graph: ExecutionGraph, root: str) -> ExecutionGraph:
    """Return the graph with its root reopened; used if the store rejected the run's end."""
    nodes = [dict(node) for node in graph.capture().as_dict()["nodes"].values()]
    nodes[0] |= {"status": "running", "end_ts_ms": None, "stop_reason": None, "error_class": None}
    return ExecutionGraph.restore(graph.chain_id, nodes)


def spent_before(earlier: Iterable[CallRecord]) -> Charge:
    """Return the total of all charges in the journal."""
    return sum_of(charge_of(record.charge) for record in earlier)


def spent_by_path(earlier: Sequence[CallRecord]) -> Mapping[str, Charge]:
    """Return the charges inside each step and attempt, by path text."""
    charges_by_path = defaultdict[str, list[Charge]](list)
    for record in earlier:
        if record.call_key and record.charge:
            charge = charge_of(record.charge)
            for path in StepPath.of_record(record.call_key).enclosing_paths():
                charges_by_path[path].append(charge)
    return {path: sum_of(charges) for path, charges in charges_by_path.items()}


def charge_of(stored: Mapping[str, Any]) -> dict[Dimension, Any]:
    """Convert a stored charge, as the journal writes it, back to amounts."""
    charge: dict[Dimension, Any] = {
        Dimension(name): Decimal(amount) if isinstance(amount, str) else amount
        for name, amount in stored.items()
    }
    if of_tiers := [charge[tier] for tier in TIERS if tier in charge]:
        charge[Dimension.LLM_CALLS] = sum(of_tiers) or 1
    return charge


TIERS = (Dimension.LLM_CALLS_SMALL, Dimension.LLM_CALLS_BIG)
"""Dimensions that count model calls by tier. A call to a model without a tier counts in neither."""


def entries_of(earlier: Sequence[CallRecord]) -> dict[str, Entry]:
    """Return the journal entries of earlier executions by node ID, to write them again."""
    return {
        record.node_id: Entry(
            call_key=record.call_key,
            request_hash=record.request_hash,
            charge=charge_of(record.charge),
            outcome=CallOutcome(record.outcome) if record.outcome else None,
            value=record.value,
        )
        for record in earlier
        if record.call_key is not None
    }


def tries_of(earlier: Sequence[CallRecord]) -> dict[str, Recorded]:
    """Return the last recorded attempt at each call and step, by its key."""
    return {
        record.call_key: Recorded(
            node_id=record.node_id,
            outcome=CallOutcome(record.outcome) if record.outcome else CallOutcome.UNKNOWN,
            request_hash=record.request_hash,
            value=record.value,
            imported=_is_imported(record),
        )
        for record in earlier
        if record.call_key is not None and record.outcome != CallOutcome.NOT_MADE
    }


def _is_imported(record: CallRecord) -> bool:
    """Return whether a record belongs to the imported run; a resumed step is ours once charged."""
    about = record.node["metadata"]
    return IMPORTED_FROM in about or (CONTINUES in about and not record.charge)
