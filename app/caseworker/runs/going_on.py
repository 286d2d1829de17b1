"""Which part of the journal of an ended run another run takes over, to go on from there.

It is either everything, or what had ended when one of its nodes ended. Of that,

- what ended well is taken over as it is, with all that happened inside it;
- so is a failure that the run has survived: something in the same step began afterwards, and was
  taken over, so it must fail again on the way there;
- a tool call of which nobody knows whether it took effect stays unknown: a tool that must not be
  called twice is not called again;
- what was open then, or had failed or was stopped with something taken over inside it, goes on;
- a reply that is not complete, or that its step or agent has failed with, is left out if nothing
  began in there afterwards: replayed, it would only end the new run in the same way;
- everything else is not taken over, and made anew when the graph gets there.

What an LLM call has asked for is not inside that call, which had ended before: it counts as a call
of the step or agent around both.

Times are in milliseconds, so of two nodes that ended in the same one the older counts as the first.
Whatever a node depends on is older than it and had ended before, so it is taken over as well.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from caseworker.engine.ports import CallOutcome
from caseworker.runs.errors import InvalidRunError
from caseworker.trace.node import ATTEMPT

_FAILED_WITH_REPLY = frozenset({"ModelAnswerIncomplete", "OutputInvalidError", "UnfitReplyError"})
"""The classes of failures of steps and agents that the last reply of the model has caused."""

_NO_NODE = "The run has no node with this ID. GET /runs/{run_id}/trace lists all node IDs."


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """What the choice needs to know of one row of a journal."""

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
    """Whether the run has itself taken it over."""
    error_class: str | None = None
    incomplete: bool = False
    """Whether it is the reply of a model that is not complete."""

    @property
    def end(self) -> tuple[int, int]:
        """Its place in the order of ends."""
        return self.end_ts_ms, self.seq

    @property
    def is_attempt(self) -> bool:
        """True of one try of a call or step, which is no record of its own."""
        return self.call_key is None and self.name == ATTEMPT and self.kind == "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """The rows to take over, by their numbers."""

    known: Sequence[int]
    """With how they ended, and what they came to."""
    unknown: Sequence[int]
    """Without that: nobody knows it, or it does not matter any more."""
    open: Sequence[int]
    """To go on in the new run; the root is among them."""


def taken_over(lines: Sequence[NodeLine], until: str | None) -> TakenOver:
    """Choose from the journal of an ended run, given in the order of its nodes.

    Raises:
        InvalidRunError: there is no node ``until``.
    """
    lines = _by_what_they_are_inside(lines)
    nodes = {line.node_id: line for line in lines}
    last = None if until is None else _last(nodes, until)
    around = frozenset() if last is None else frozenset(_above(nodes, last))
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
    """Return the lines with the node that each is inside as its parent."""
    around = {line.node_id: line.parent_id for line in lines if line.kind == "llm"}
    return [
        replace(line, parent_id=around[line.parent_id])
        if line.parent_id in around and not line.is_attempt
        else line
        for line in lines
    ]


def _last(nodes: Mapping[str, NodeLine], until: str) -> NodeLine:
    """Return the record that a node stands for: an attempt for its call or step."""
    if until not in nodes:
        raise InvalidRunError("from.until", _NO_NODE)
    line = nodes[until]
    return nodes[line.parent_id] if line.is_attempt and line.parent_id else line


def _ended_by(lines: Sequence[NodeLine], last: NodeLine | None) -> Sequence[NodeLine]:
    """Return the nodes that had ended when one of them ended, those inside it included."""
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
    """Return the nodes that ended well, and all below them.

    What is no record is made again with the step that it is below, such as the attempts at it.
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
    """Return the replies that ended what asked for them, and would do so again."""
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
    """Return the failures after which something else began in the same step."""
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
    """Return the chosen nodes of which there is a later try, since a worker was lost."""
    of_key = {line.call_key: line.node_id for line in lines if line.node_id in chosen}
    return {
        line.node_id
        for line in lines
        if line.call_key is not None and of_key.get(line.call_key, line.node_id) != line.node_id
    }


def _numbers(lines: Sequence[NodeLine], chosen: Set[str]) -> list[int]:
    return [line.seq for line in lines if line.node_id in chosen]
