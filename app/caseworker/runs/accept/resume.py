"""Selects the part of an ended run's journal that another run imports in order to resume it.

The selection covers the whole journal, or everything that had ended when a given node ended. It
treats nodes as follows:

- Successful nodes are imported unchanged, with all their descendants.
- A failed node is imported if a later node in the same step was imported. Replay must repeat the
  failure to reach the later node.
- A tool call whose effect is unknown is imported without an outcome. A tool that must not be called
  twice is then not called again.
- Nodes that were open are resumed. So are failed or stopped nodes that contain imported nodes.
- An incomplete reply, or one that made its step or agent fail, is left out if nothing started in
  that step or agent afterwards. Replaying it would only end the new run in the same way.
- All other nodes are executed again when the graph reaches them.

An LLM call ends before the tool calls that it requests start. Those tool calls therefore count as
children of the step or agent that made the LLM call.

Times are in milliseconds. If two nodes ended in the same millisecond, the one that was created
first precedes the other. A node's dependencies precede it, so they are imported as well.

See docs/internals.md, "Recovery".
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from caseworker.core.trace.node import ATTEMPT
from caseworker.engine.ports import CallOutcome
from caseworker.runs.errors import InvalidRunError

_FAILED_WITH_REPLY = frozenset({"ModelAnswerIncomplete", "OutputInvalidError", "UnfitReplyError"})
"""Error classes of steps and agents that failed because of the model's last reply."""

_NO_NODE = "The run has no node with this ID. GET /runs/{run_id}/trace lists all node IDs."


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRow:
    """The fields of a journal row that decide whether the row is imported."""

    seq: int
    node_id: str
    parent_id: str | None
    kind: str
    name: str
    status: str
    call_key: str | None
    outcome: str | None
    start_ts_ms: int
    end_ts_ms: int
    imported: bool
    """Whether the ended run had imported the node from another run."""
    error_class: str | None = None
    is_external: bool = False
    """Whether the node is the step of an external run, which a later run always resumes."""
    incomplete: bool = False
    """Whether the node is an LLM call with an incomplete reply."""

    @property
    def end(self) -> tuple[int, int]:
        """Sort key that orders nodes by end time, then by creation."""
        return self.end_ts_ms, self.seq

    @property
    def is_attempt(self) -> bool:
        """Whether the node is an attempt at a call or step; attempts have no journal entry."""
        return self.call_key is None and self.name == ATTEMPT and self.kind == "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRows:
    """The sequence numbers of the journal rows to import, grouped by how they are imported."""

    known: Sequence[int]
    """Rows to import with their outcome and value."""
    unknown: Sequence[int]
    """Rows to import without an outcome, because it is unknown or must not be replayed."""
    open: Sequence[int]
    """Rows of nodes that the new run resumes, including the root."""


def rows_to_import(rows: Sequence[ImportRow], until: str | None) -> ImportedRows:
    """Select the rows to import from the journal of an ended run.

    ``rows`` are in node order. ``until`` is the ID of the last node to import; None imports
    everything that can be imported.

    Raises:
        InvalidRunError: the node ``until`` does not exist.
    """
    rows = _reparented(rows)
    nodes = {row.node_id: row for row in rows}
    last = None if until is None else _last_node(nodes, until)
    around = {row.node_id for row in rows if row.is_external}
    if last is not None:
        around.update(_ancestors(nodes, last))
    ended = _ended_by(rows, last)
    known = _complete_subtrees(
        rows, {row.node_id for row in ended} - around - _failed_last_replies(nodes)
    )
    known |= _survived(ended, nodes, known, last)
    unknown = {row.node_id for row in ended if _may_have_taken_effect(row)} - known
    still_open = set(around) | {row.node_id for row in rows[:1]}
    for row in reversed(rows):
        is_chosen = row.node_id in known or row.node_id in unknown or row.node_id in still_open
        if is_chosen and row.parent_id is not None and row.parent_id not in known:
            still_open.add(row.parent_id)
    still_open -= known | unknown
    superseded = _superseded(rows, known | unknown | still_open) & still_open
    return ImportedRows(
        known=_seqs(rows, known),
        unknown=_seqs(rows, unknown | superseded),
        open=_seqs(rows, still_open - superseded),
    )


def _reparented(rows: Sequence[ImportRow]) -> Sequence[ImportRow]:
    """Reparent children of LLM calls to the step or agent around the call."""
    around = {row.node_id: row.parent_id for row in rows if row.kind == "llm"}
    return [
        replace(row, parent_id=around[row.parent_id])
        if row.parent_id in around and not row.is_attempt
        else row
        for row in rows
    ]


def _last_node(nodes: Mapping[str, ImportRow], until: str) -> ImportRow:
    """Return the node of an ID; for an attempt, its call or step."""
    if until not in nodes:
        raise InvalidRunError("from.until", _NO_NODE)
    row = nodes[until]
    return nodes[row.parent_id] if row.is_attempt and row.parent_id else row


def _ended_by(rows: Sequence[ImportRow], last: ImportRow | None) -> Sequence[ImportRow]:
    """Return the nodes that had ended when ``last`` ended, and everything inside it."""
    if last is None or last.parent_id is None:
        return rows
    inside = {last.node_id}
    for row in rows:
        if row.parent_id in inside:
            inside.add(row.node_id)
    return [row for row in rows if row.end <= last.end or row.node_id in inside]


def _ancestors(nodes: Mapping[str, ImportRow], row: ImportRow) -> Iterator[str]:
    while row.parent_id is not None:
        row = nodes[row.parent_id]
        yield row.node_id


def _complete_subtrees(rows: Sequence[ImportRow], ended: Set[str]) -> set[str]:
    """Return the successful nodes and their descendants.

    Nodes without a journal entry, such as attempts, are recreated with their step.
    """
    inner = {row.parent_id for row in rows}
    complete: set[str] = set()
    for row in rows[1:]:
        is_kept = row.call_key is not None or (row.node_id in inner and not row.is_attempt)
        well = row.status == "success" and row.node_id in ended and is_kept
        if well or row.parent_id in complete:
            complete.add(row.node_id)
    return complete


def _failed_last_replies(nodes: Mapping[str, ImportRow]) -> set[str]:
    """Return the replies that ended their parent and would end it again on replay."""
    latest = {
        row.parent_id: (row.start_ts_ms, row.seq)
        for row in sorted(nodes.values(), key=lambda row: (row.start_ts_ms, row.seq))
    }
    return {
        row.node_id
        for row in nodes.values()
        if row.kind == "llm"
        and row.parent_id is not None
        and (row.incomplete or nodes[row.parent_id].error_class in _FAILED_WITH_REPLY)
        and latest[row.parent_id] <= row.end
    }


def _survived(
    ended: Sequence[ImportRow],
    nodes: Mapping[str, ImportRow],
    known: Set[str],
    last: ImportRow | None,
) -> set[str]:
    """Return the failures after which the same step continued."""
    latest: dict[str | None, int] = {}
    for node_id in known:
        row = nodes[node_id]
        latest[row.parent_id] = max(latest.get(row.parent_id, 0), row.start_ts_ms)
    return {
        row.node_id
        for row in ended
        if row.outcome == CallOutcome.FAILURE
        and row is not last
        and (row.imported or latest.get(row.parent_id, 0) > row.end_ts_ms)
    }


def _may_have_taken_effect(row: ImportRow) -> bool:
    return row.kind == "tool" and row.outcome is None and row.call_key is not None


def _superseded(rows: Sequence[ImportRow], chosen: Set[str]) -> set[str]:
    """Return the chosen nodes that a later attempt replaced after a worker was lost."""
    of_key = {row.call_key: row.node_id for row in rows if row.node_id in chosen}
    return {
        row.node_id
        for row in rows
        if row.call_key is not None and of_key.get(row.call_key, row.node_id) != row.node_id
    }


def _seqs(rows: Sequence[ImportRow], chosen: Set[str]) -> list[int]:
    return [row.seq for row in rows if row.node_id in chosen]
