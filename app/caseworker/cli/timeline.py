"""Print the calls of a run as a tree, each next to a bar on a shared time axis."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from caseworker.cli.output import STYLES, PrintableConsole, out, show
from caseworker.core.trace.analysis import WorkTimes, children_of, critical_path, duration_ms
from caseworker.core.trace.call_rows import CallRows, sort_of
from caseworker.core.trace.node import TraceNode
from caseworker.core.trace.payloads import NOTHING_KEPT
from caseworker.core.trace.plain_text import counted, dollars_text, duration, plain
from caseworker.core.trace.snapshot import Snapshot

MAX_CALLS: Final = 200
_WIDTH: Final = 110
"""Width in columns if the output is not a terminal."""
_BAR: Final = 32
_LABEL: Final = 44


def print_timeline(snapshot: Snapshot, *, status: str, max_calls: int = MAX_CALLS) -> None:
    """Print the problems of a run and its first ``max_calls`` calls as a tree.

    Calls on the critical path, which determined when the run ended, are marked.
    """
    if snapshot["root_id"] is None:
        show("The run has not started yet.")
        return
    root = snapshot["nodes"][snapshot["root_id"]]
    rows = CallRows(
        snapshot, root, NOTHING_KEPT, cancelled=status == "cancelled", waiting=status == "waiting"
    )
    for trouble in rows.troubles():
        show(trouble)
    began = root["start_ts_ms"]
    ends = (
        node["start_ts_ms"] + duration_ms(node, snapshot) for node in snapshot["nodes"].values()
    )
    total_ms = max(max(ends) - began, 1)
    critical = {segment.node_id for segment in critical_path(WorkTimes.of(snapshot))}
    table = _empty_table(total_ms)
    shortest_ms = total_ms / _BAR  # keeps calls of zero duration visible
    for node, branch in islice(_tree(snapshot, root), max_calls):
        node_status, lasted = rows.status(node), duration_ms(node, snapshot)
        style = STYLES[node_status]
        start = min(node["start_ts_ms"] - began, total_ms - shortest_ms)
        color = style.removeprefix("dim") or "white"
        table.add_row(
            _label(node, branch, is_critical=node["node_id"] in critical),
            Text(node_status, style),
            Bar(total_ms, start, start + max(lasted, shortest_ms), color=color),
            duration(lasted),
            *_amounts(node),
        )
    PrintableConsole(highlight=False, width=None if out.is_terminal else _WIDTH).print(table)
    if critical:
        show("* on the critical path of the run")
    if (hidden := len(snapshot["nodes"]) - max_calls) > 0:
        show(f"… and {counted(hidden, 'more call')}. --max-calls shows more, --json shows all.")


def _empty_table(total_ms: int) -> Table:
    table = Table("  call", "status", f"0 to {duration(total_ms)}", box=None, pad_edge=False)
    table.columns[0].no_wrap, table.columns[0].max_width = True, _LABEL
    table.columns[2].min_width = table.columns[2].max_width = _BAR
    for heading in ("took", "tokens", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _label(node: TraceNode, branch: str, *, is_critical: bool) -> Text:
    """Return the name of a call after its mark and its branch of the tree."""
    mark = "* " if is_critical else "  "
    name = plain(sort_of(node["kind"], node["name"], node["model"]))
    return Text.assemble((mark, "bold"), (branch, "dim"), name, overflow="ellipsis")


def _amounts(node: TraceNode) -> tuple[str, str]:
    """Return the tokens and the cost of a call; empty if it used none."""
    used = (node["tokens_in"] or 0, node["tokens_out"] or 0)
    tokens = f"{used[0]:,} → {used[1]:,}" if any(used) else ""
    return tokens, dollars_text(node["cost_usd"]) if node["cost_usd"] != 0 else ""


def _tree(snapshot: Snapshot, root: TraceNode) -> Iterator[tuple[TraceNode, str]]:
    """Yield each call after its caller, with the tree branch to draw before it."""
    children = children_of(snapshot)
    pending = [(root, "", "")]
    while pending:
        node, branch, indent = pending.pop()
        yield node, branch
        callees = children[node["node_id"]]
        for child in reversed(callees):
            fork, trunk = ("└─ ", "   ") if child is callees[-1] else ("├─ ", "│  ")
            pending.append((child, indent + fork, indent + trunk))
