"""Explains a run as a short text for human readers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any, Final

from caseworker.core.trace.analysis import (
    ModelCost,
    ShownStatus,
    TierCost,
    WorkTimes,
    costs_by_model,
    costs_by_tier,
    critical_path,
    duration_ms,
    time_shares,
    waited_for_people_ms,
)
from caseworker.core.trace.call_rows import CallRows, called, sort_of
from caseworker.core.trace.node import IMPORTED_FROM, TraceNode, estimated_of, imported_from_run
from caseworker.core.trace.payloads import NOTHING_KEPT, Payload
from caseworker.core.trace.plain_text import counted, cut, dollars_text, duration, plain
from caseworker.core.trace.snapshot import Snapshot

WIDTH: Final = 98
MAX_NODES: Final = 200
"""Maximum number of calls in the tree."""
_TOP: Final = 5
_FELT_MS: Final = 10
"""The shortest time in the queue that is shown."""

_WAITS: Final = "is waiting after"
_OUTCOMES: Final[Mapping[ShownStatus, str]] = {
    "waiting": "has not started yet after",
    "running": "has been running for",
    "completed": "completed in",
    "failed": "failed after",
    "halted": "was halted after",
    "cancelled": "was cancelled after",
}


def explain(
    snapshot: Snapshot,
    *,
    cancelled: bool = False,
    waiting: bool = False,
    max_nodes: int = MAX_NODES,
    payloads: Mapping[str, Payload] = NOTHING_KEPT,
    skipped: Sequence[str] = (),
    queued_ms: int = 0,
) -> str:
    """Explain a valid snapshot in lines of at most ``WIDTH`` columns.

    The text shows the outcome and the totals, the cause of a stop, failures, the tree of calls with
    their requests and replies, skipped steps, self times, the critical path, and the cost by model.
    Each error is shown once. Control characters are replaced with ``?``.

    ``cancelled`` and ``waiting`` (for an approval) are the status of the run. The tree shows at
    most ``max_nodes`` nodes. ``payloads`` maps node IDs to displayable requests and replies.
    ``skipped`` lists the IDs of skipped steps. ``queued_ms`` is the time that the run waited in the
    queue before it started.
    """
    if snapshot["root_id"] is None:
        return f"Run {plain(snapshot['chain_id'])} has not started yet.\n"
    root = snapshot["nodes"][snapshot["root_id"]]
    rows = CallRows(snapshot, root, payloads, cancelled=cancelled, waiting=waiting)
    times = WorkTimes.of(snapshot)
    sections = (
        _headline(snapshot, root, _WAITS if waiting else _OUTCOMES[rows.status(root)], queued_ms),
        _wrapped(rows.troubles()),
        rows.tree(max_nodes),
        _skipped(skipped),
        _times(times),
        _critical_path(times),
        _costs(snapshot),
    )
    texts = ("\n".join(cut(line, WIDTH) for line in section) for section in sections)
    return "\n\n".join(text for text in texts if text) + "\n"


def _headline(snapshot: Snapshot, root: TraceNode, outcome: str, queued_ms: int) -> Iterator[str]:
    totals = snapshot["aggregates"]
    nodes = snapshot["nodes"].values()
    kinds = Counter(node["kind"] for node in nodes if _was_made(node))
    retries = sum(node["retries_used"] for node in nodes if imported_from_run(node) is None)
    began = datetime.fromtimestamp(root["start_ts_ms"] / 1000, UTC)
    lasted = duration(duration_ms(root, snapshot))
    yield f"Run {plain(snapshot['chain_id'])} {outcome} {lasted}."
    yield (
        f"{_total_cost(snapshot)} · {counted(kinds['llm'], 'LLM call')} · "
        f"{counted(kinds['tool'], 'tool call')} · "
        f"{counted(retries, 'retry', 'retries')} · "
        f"{totals['total_tokens_in']:,} tokens in, {totals['total_tokens_out']:,} out · "
        f"depth {totals['max_depth']}"
    )
    queued = f", after {duration(queued_ms)} in the queue" if queued_ms >= _FELT_MS else ""
    yield f"Started {began:%Y-%m-%d %H:%M:%S} UTC{queued}."
    if waited_ms := waited_for_people_ms(snapshot):
        yield f"Waited {duration(waited_ms)} for approvals."
    yield from _imported(snapshot)


def _imported(snapshot: Snapshot) -> Iterator[str]:
    """Yield a line for each run from which calls were imported, with their original cost."""
    by_run: dict[str, list[TraceNode]] = {}
    for node in snapshot["nodes"].values():
        if (run_id := imported_from_run(node)) is not None:
            by_run.setdefault(run_id, []).append(node)
    for run_id, nodes in by_run.items():
        calls = sum(node["kind"] != "system" for node in nodes)
        cost = sum(_cost_there(node) for node in nodes)
        what = f"{counted(calls, 'call')} and {counted(len(nodes) - calls, 'step')}"
        yield f"Imported {what} from run {plain(run_id)}, where they cost {dollars_text(cost)}."


def _wrapped(lines: Iterator[str]) -> Iterator[str]:
    """Wrap lines instead of cutting them, because the full error is needed."""
    for line in lines:
        yield from wrap(line, WIDTH, subsequent_indent="  ")


def _skipped(steps: Sequence[str]) -> Iterator[str]:
    if steps:
        text = f"Skipped, because no path to them was taken: {', '.join(map(plain, steps))}"
        yield from wrap(text, WIDTH, subsequent_indent="  ")


def _total_cost(snapshot: Snapshot) -> str:
    """Format the cost of a run, with its estimated part and the number of unpriced calls."""
    nodes = snapshot["nodes"].values()
    total = dollars_text(snapshot["aggregates"]["total_cost_usd"])
    estimated = sum(estimated_of(node)[1] for node in nodes)
    unknown = sum(node["cost_usd"] is None for node in nodes)
    parts = [f"{dollars_text(estimated)} of it is an estimate"] if estimated else []
    if unknown:
        parts.append(f"plus {counted(unknown, 'call')} at an unknown price")
    return f"{total} ({', '.join(parts)})" if parts else total


def _cost_there(node: TraceNode) -> float:
    """Return the cost of an imported call in its original run, 0 if unknown."""
    origin: Any = node["metadata"][IMPORTED_FROM]
    return float((origin.get("usage") or {}).get("cost_usd") or 0)


def _was_made(node: TraceNode) -> bool:
    """Return whether this run made a call; a refused call starts and ends at once."""
    if imported_from_run(node) is not None:
        return False
    return node["status"] != "halt" or node["end_ts_ms"] != node["start_ts_ms"]


def _times(times: WorkTimes) -> Iterator[str]:
    shares = [share for share in time_shares(times) if share.own_ms]
    total = sum(share.own_ms for share in shares)
    if shares:
        yield "Where the time went"
    for share in shares[:_TOP]:
        label = plain(sort_of(share.kind, share.name, share.model))
        part = share.own_ms / total
        bar = "█" * max(round(part * 20), 1)
        count = f"{share.count}x"
        yield f"  {cut(label, 44):44} {count:>6} {duration(share.own_ms):>8} {part:>4.0%} {bar}"


def _critical_path(times: WorkTimes) -> Iterator[str]:
    spent = Counter[str]()
    for segment in critical_path(times):
        spent[segment.node_id] += segment.end_ms - segment.start_ms
    if not spent:
        return
    yield "Critical path"
    longest = {node_id for node_id, _ in spent.most_common(2 * _TOP)}
    steps = [
        f"{called(times.snapshot['nodes'][node_id])} {duration(ms)}"
        for node_id, ms in spent.items()
        if node_id in longest
    ]
    yield from wrap(" > ".join(steps), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _costs(snapshot: Snapshot) -> Iterator[str]:
    models, tiers = costs_by_model(snapshot), costs_by_tier(snapshot)
    if models:
        yield "Cost by model"
    for cost in models:
        yield _cost(cost.model + (f", {cost.tier} tier" if cost.tier else ""), cost)
    if len(tiers) < len(models):  # else each tier has one model, whose line shows both
        yield "Cost by tier"
        for of_tier in tiers:
            yield _cost(of_tier.tier or "no tier", of_tier)


def _cost(label: str, cost: ModelCost | TierCost) -> str:
    tokens = f"{cost.tokens_in:,} tokens in, {cost.tokens_out:,} out"
    count = f"{cost.count}x"
    return f"  {cut(plain(label), 38):38} {count:>6} {tokens:>36} {dollars_text(cost.cost_usd):>9}"
