"""A run as a text that a person reads at a glance."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from textwrap import wrap
from typing import Final

from app.trace.analysis import (
    ModelCost,
    TierCost,
    children_of,
    costs_by_model,
    costs_by_tier,
    critical_path,
    duration_ms,
    first_halted,
    is_attempt,
    time_shares,
)
from app.trace.node import WAITED_MS, Node, estimated_of
from app.trace.snapshot import Snapshot

WIDTH: Final = 98
_CANCELLED: Final = "cancelled"
_LABEL: Final = 42
_TOP: Final = 5

_OUTCOMES: Final = {
    "created": "has not begun yet, after",
    "running": "is running, after",
    "success": "completed in",
    "fail": "failed after",
    "halt": "was halted after",
    _CANCELLED: "was cancelled after",
}


def explain(snapshot: Snapshot, *, cancelled: bool = False, max_nodes: int = 200) -> str:
    """Describe a sound snapshot in lines of at most ``WIDTH`` columns.

    Shown are the outcome and the totals, what stopped the run, the tree of calls (its first
    ``max_nodes``), where the time went, the critical path, and the cost of each model. Of a
    ``cancelled`` run, the nodes that the cancel ended are shown as cancelled and not as halted.
    Control characters are shown as ``?``.
    """
    if snapshot["root_id"] is None:
        return f"Run {plain(snapshot['chain_id'])} has not begun yet.\n"
    root = snapshot["nodes"][snapshot["root_id"]]

    def status(node: Node) -> str:
        halted = (node["status"], node["stop_reason"]) == ("halt", root["stop_reason"])
        return _CANCELLED if cancelled and halted else node["status"]

    sections = (
        _headline(snapshot, root, status(root)),
        _troubles(snapshot, root),
        _tree(snapshot, root, max_nodes, status),
        _times(snapshot),
        _critical_path(snapshot),
        _costs(snapshot),
    )
    texts = ("\n".join(cut(line, WIDTH) for line in section) for section in sections)
    return "\n\n".join(text for text in texts if text) + "\n"


def _headline(snapshot: Snapshot, root: Node, status: str) -> Iterator[str]:
    totals = snapshot["aggregates"]
    nodes = snapshot["nodes"].values()
    kinds = Counter(node["kind"] for node in nodes if _was_made(node))
    retries = sum(node["retries_used"] for node in nodes)
    began = datetime.fromtimestamp(root["start_ts_ms"] / 1000, UTC)
    lasted = duration(duration_ms(root, snapshot))
    yield f"Run {plain(snapshot['chain_id'])} {_OUTCOMES[status]} {lasted}."
    yield (
        f"{_total_cost(snapshot)} · {counted(kinds['llm'], 'LLM call')} · "
        f"{counted(kinds['tool'], 'tool call')} · "
        f"{counted(retries, 'retry', 'retries')} · "
        f"{totals['total_tokens_in']:,} tokens in, {totals['total_tokens_out']:,} out · "
        f"depth {totals['max_depth']}"
    )
    yield f"Began {began:%Y-%m-%d %H:%M:%S} UTC."


def _total_cost(snapshot: Snapshot) -> str:
    """Return what a run cost, and how much of that is estimated or not known."""
    nodes = snapshot["nodes"].values()
    known = money(snapshot["aggregates"]["total_cost_usd"])
    estimated = sum(estimated_of(node)[1] for node in nodes)
    unknown = sum(node["cost_usd"] is None for node in nodes)
    parts = [f"{money(estimated)} of it estimated"] if estimated else []
    if unknown:
        parts.append(f"beside {counted(unknown, 'call')} of unknown price")
    return f"{known} ({', '.join(parts)})" if parts else known


def _was_made(node: Node) -> bool:
    """Return whether a call was made; one that was refused begins and ends at once."""
    return node["status"] != "halt" or node["end_ts_ms"] != node["start_ts_ms"]


def _troubles(snapshot: Snapshot, root: Node) -> Iterator[str]:
    if halted := first_halted(snapshot):
        after = duration((halted["end_ts_ms"] or 0) - root["start_ts_ms"])
        yield f"Stopped at {_called(halted)} after {after}: {_reason(halted)}"
    failed = [
        node
        for node in snapshot["nodes"].values()
        if node["status"] == "fail" and not is_attempt(node)
    ]
    for node in failed[:_TOP]:
        yield f"Failed: {_called(node)}: {_reason(node)}"
    if len(failed) > _TOP:
        yield f"… and {len(failed) - _TOP} more failures"


def _tree(
    snapshot: Snapshot, root: Node, max_nodes: int, status: Callable[[Node], str]
) -> Iterator[str]:
    children = children_of(snapshot)
    pending = [(root, "", "")]
    shown = 0
    while pending and shown < max_nodes:
        node, prefix, indent = pending.pop()
        below = children[node["node_id"]]
        shown += 1
        yield _row(node, prefix, status(node), snapshot)
        if node["stop_reason"] or node["error_class"]:
            yield f"{'':8}{indent}{'│  ' if below else '   '}{_reason(node)}"
        for note in _budget_notes(node):
            yield f"{'':8}{indent}{'│  ' if below else '   '}{note}"
        for child in reversed(below):
            last = child is below[-1]
            branch, trunk = ("└─ ", "   ") if last else ("├─ ", "│  ")
            pending.append((child, indent + branch, indent + trunk))
    if hidden := len(snapshot["nodes"]) - shown:
        yield f"… and {counted(hidden, 'more call')}, all of them in the snapshot"


def _row(node: Node, prefix: str, status: str, snapshot: Snapshot) -> str:
    again = node["retries_used"]
    retries = f" +{counted(again, 'retry', 'retries')}" if again else ""
    sort = _sort(node["kind"], node["name"], node["model"])
    label = cut(prefix + plain(f"{sort}{retries}"), _LABEL)
    tokens = ""
    if node["tokens_in"] or node["tokens_out"]:
        tokens = f"{node['tokens_in'] or 0:,} → {node['tokens_out'] or 0:,} tok"
    cost = money(node["cost_usd"]) if node["cost_usd"] != 0 else ""
    lasted = duration(duration_ms(node, snapshot))
    row = f"{node['node_id']:8}{label:{_LABEL}} {status:9} {lasted:>8} {tokens:>18} {cost:>9}"
    return row.rstrip()


def _budget_notes(node: Node) -> Iterator[str]:
    """Yield what a call's budget made of it: a wait, and amounts that are estimates."""
    waited = node["metadata"].get(WAITED_MS)
    if isinstance(waited, int):
        yield f"waited {duration(waited)} for its budget"
    tokens, usd = estimated_of(node)
    if tokens or usd:
        cost = f" and {money(usd)}" if usd else ""
        yield f"estimated: {counted(tokens, 'token')}{cost}"


def _times(snapshot: Snapshot) -> Iterator[str]:
    shares = [share for share in time_shares(snapshot) if share.own_ms]
    total = sum(share.own_ms for share in shares)
    if shares:
        yield "Where the time went"
    for share in shares[:_TOP]:
        label = plain(_sort(share.kind, share.name, share.model))
        part = share.own_ms / total
        bar = "█" * max(round(part * 20), 1)
        count = f"{share.count}x"
        yield f"  {cut(label, 44):44} {count:>6} {duration(share.own_ms):>8} {part:>4.0%} {bar}"


def _critical_path(snapshot: Snapshot) -> Iterator[str]:
    spent = Counter[str]()
    for segment in critical_path(snapshot):
        spent[segment.node_id] += segment.end_ms - segment.start_ms
    if not spent:
        return
    yield "Critical path"
    longest = {node_id for node_id, _ in spent.most_common(2 * _TOP)}
    steps = [
        f"{_called(snapshot['nodes'][node_id])} {duration(ms)}"
        for node_id, ms in spent.items()
        if node_id in longest
    ]
    yield from wrap(" > ".join(steps), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _costs(snapshot: Snapshot) -> Iterator[str]:
    models, tiers = costs_by_model(snapshot), costs_by_tier(snapshot)
    if models:
        yield "What each model cost"
    for cost in models:
        yield _cost(cost.model + (f", {cost.tier} tier" if cost.tier else ""), cost)
    if len(tiers) < len(models):  # else each tier has one model, whose line shows both
        yield "What each tier cost"
        for of_tier in tiers:
            yield _cost(of_tier.tier or "no tier", of_tier)


def _cost(label: str, cost: ModelCost | TierCost) -> str:
    tokens = f"{cost.tokens_in:,} tokens in, {cost.tokens_out:,} out"
    count = f"{cost.count}x"
    return f"  {cut(plain(label), 38):38} {count:>6} {tokens:>36} {money(cost.cost_usd):>9}"


def _called(node: Node) -> str:
    return plain(_sort(node["kind"], node["name"])) + f" ({node['node_id']})"


def _sort(kind: str, name: str, model: str | None = None) -> str:
    """Return a name with its kind, which a system operation has none of, and its model."""
    return ("" if kind == "system" else f"{kind} ") + name + (f" ({model})" if model else "")


def _reason(node: Node) -> str:
    parts = [part for part in (node["error_class"], node["stop_reason"]) if part]
    return plain(": ".join(parts)) or "no reason given"


def plain(text: str) -> str:
    """Return ``text`` with ``?`` for characters that could steer a terminal or break a line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def cut(text: str, width: int) -> str:
    """Return at most ``width`` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def duration(ms: int) -> str:
    """Return a duration in units that fit it."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.2f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02} s"
    return f"{minutes // 60} h {minutes % 60:02} m"


def money(usd: float | None) -> str:
    """Return dollars to a hundredth of a cent."""
    if usd is None:
        return "unknown"
    return f"${usd:,.4f}" if usd >= 0.0001 or not usd else "<$0.0001"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
