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
class NodeLine:
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
    taken_over: bool
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
class TakenOver:
    """The sequence numbers of the journal rows to import, grouped by how they are imported."""

    known: Sequence[int]
    """Rows to import with their outcome and value."""
    unknown: Sequence[int]
    """Rows to import without an outcome, because it is unknown or must not be replayed."""
    open: Sequence[int]
    """Rows of nodes that the new run resumes, including the root."""


def taken_over(lines: Sequence[NodeLine], until: str | None) -> TakenOver:
    """Select the rows to import from the journal of an ended run.

    ``lines`` are in node order. ``until`` is the ID of the last node to import; None imports
    everything that can be imported.

    Raises:
        InvalidRunError: the node ``until`` does not exist.
    """
    lines = _by_what_they_are_inside(lines)
    nodes = {line.node_id: line for line in lines}
    last = None if until is None else _last(nodes, until)
    around = {line.node_id for line in lines if line.is_external}
    if last is not None:
        around.update(_above(nodes, last))
    ended = _ended_by(lines, last)
    known = _whole(lines, {line.node_id for line in ended} - around - _last_words(nodes))
    known |= _survived(ended, nodes, known, last)
    unknown = {line.node_id for line in ended if _may_have_taken_effect(line)} - known
    still_open = set(around) | {line.node_id for line in lines[:1]}
    for line in reversed(lines):
        is_chosen = line.node_id in known or line.node_id in unknown or line.node_id in still_open
        if is_chosen and line.parent_id is not None and line.parent_id not in known:
            still_open.add(line.parent_id)
    still_open -= known | unknown
    superseded = _superseded(lines, known | unknown | still_open) & still_open
    return TakenOver(
        known=_numbers(lines, known),
        unknown=_numbers(lines, unknown | superseded),
        open=_numbers(lines, still_open - superseded),
    )


def _by_what_they_are_inside(lines: Sequence[NodeLine]) -> Sequence[NodeLine]:
    """Reparent children of LLM calls to the step or agent around the call."""
    around = {line.node_id: line.parent_id for line in lines if line.kind == "llm"}
    return [
        replace(line, parent_id=around[line.parent_id])
        if line.parent_id in around and not line.is_attempt
        else line
        for line in lines
    ]


def _last(nodes: Mapping[str, NodeLine], until: str) -> NodeLine:
    """Return the node of an ID; for an attempt, its call or step."""
    if until not in nodes:
        raise InvalidRunError("from.until", _NO_NODE)
    line = nodes[until]
    return nodes[line.parent_id] if line.is_attempt and line.parent_id else line


def _ended_by(lines: Sequence[NodeLine], last: NodeLine | None) -> Sequence[NodeLine]:
    """Return the nodes that had ended when ``last`` ended, and everything inside it."""
    if last is None or last.parent_id is None:
        return lines
    inside = {last.node_id}
    for line in lines:
        if line.parent_id in inside:
            inside.add(line.node_id)
    return [line for line in lines if line.end <= last.end or line.node_id in inside]


def _above(nodes: Mapping[str, NodeLine], line: NodeLine) -> Iterator[str]:
    while line.parent_id is not None:
        line = nodes[line.parent_id]
        yield line.node_id


def _whole(lines: Sequence[NodeLine], ended: Set[str]) -> set[str]:
    """Return the successful nodes and their descendants.

    Nodes without a journal entry, such as attempts, are recreated with their step.
    """
    inner = {line.parent_id for line in lines}
    whole: set[str] = set()
    for line in lines[1:]:
        is_kept = line.call_key is not None or (line.node_id in inner and not line.is_attempt)
        well = line.status == "success" and line.node_id in ended and is_kept
        if well or line.parent_id in whole:
            whole.add(line.node_id)
    return whole


def _last_words(nodes: Mapping[str, NodeLine]) -> set[str]:
    """Return the replies that ended their parent and would end it again on replay."""
    latest = {
        line.parent_id: (line.start_ts_ms, line.seq)
        for line in sorted(nodes.values(), key=lambda line: (line.start_ts_ms, line.seq))
    }
    return {
        line.node_id
        for line in nodes.values()
        if line.kind == "llm"
        and line.parent_id is not None
        and (line.incomplete or nodes[line.parent_id].error_class in _FAILED_WITH_REPLY)
        and latest[line.parent_id] <= line.end
    }


def _survived(
    ended: Sequence[NodeLine], nodes: Mapping[str, NodeLine], known: Set[str], last: NodeLine | None
) -> set[str]:
    """Return the failures after which the same step continued."""
    latest: dict[str | None, int] = {}
    for node_id in known:
        line = nodes[node_id]
        latest[line.parent_id] = max(latest.get(line.parent_id, 0), line.start_ts_ms)
    return {
        line.node_id
        for line in ended
        if line.outcome == CallOutcome.FAILURE
        and line is not last
        and (line.taken_over or latest.get(line.parent_id, 0) > line.end_ts_ms)
    }


def _may_have_taken_effect(line: NodeLine) -> bool:
    return line.kind == "tool" and line.outcome is None and line.call_key is not None


def _superseded(lines: Sequence[NodeLine], chosen: Set[str]) -> set[str]:
    """Return the chosen nodes that a later attempt replaced after a worker was lost."""
    of_key = {line.call_key: line.node_id for line in lines if line.node_id in chosen}
    return {
        line.node_id
        for line in lines
        if line.call_key is not None and of_key.get(line.call_key, line.node_id) != line.node_id
    }


def _numbers(lines: Sequence[NodeLine], chosen: Set[str]) -> list[int]:
    return [line.seq for line in lines if line.node_id in chosen]
