"""Analysis of a snapshot: where time and money went, and what stopped the run.

All functions are pure and expect a sound snapshot. A node that is still
open counts as lasting until the snapshot was taken.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar

from caseworker.trace.call_tree import CUT_OFF, ROOT_ENDED, WAITS
from caseworker.trace.node import (
    ATTEMPT,
    Node,
    NodeStatus,
    estimated_of,
    made_by,
    number,
    number_of,
)
from caseworker.trace.snapshot import Snapshot

Key = TypeVar("Key", bound=Hashable)

ShownStatus = Literal["waiting", "running", "completed", "failed", "halted", "cancelled"]
"""The words of a run's status; what is ``waiting`` has not been let through yet, or waits for a
person."""

_WORDS: Final[dict[NodeStatus, ShownStatus]] = {
    "created": "waiting",
    "running": "running",
    "success": "completed",
    "fail": "failed",
}

_MAP: Final = "map"
"""The type of the steps whose items are counted as one sort."""

_TOKENS: Final[tuple[Literal["tokens_in", "tokens_out"], ...]] = ("tokens_in", "tokens_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """How long calls of one kind, name and model took, without the time of the calls below them."""

    kind: str
    name: str
    """``map/*`` of all items of a map."""
    model: str | None
    count: int
    own_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCost:
    """What the calls of one tier cost, failed and halted ones included."""

    tier: str | None
    """``small`` or ``big``, from ``metadata.tier``; None for models that belong to no tier."""
    count: int
    cost_usd: float | None
    """None if the price of one of the calls is not known."""
    cost_usd_estimated: float
    """The part of it that was estimated: sent, and the answer or its usage was lost."""
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost(TierCost):
    """What the calls of one model cost in one tier."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of time in which one node alone held up the end of the run."""

    node_id: str
    start_ms: int
    end_ms: int


def time_shares(snapshot: Snapshot) -> list[TimeShare]:
    """Return where the time went, the longest first; attempts count as part of their call."""
    snapshot = _with_waits(snapshot)
    children, names = _worked_within(snapshot), _items(snapshot)
    ends = _ends_with(children, snapshot)
    own = defaultdict[tuple[str, str, str | None], list[int]](list)
    for node_id, node in snapshot["nodes"].items():
        if not is_attempt(node):
            own_ms = _end_ms(node, snapshot) - node["start_ts_ms"]
            if node_id in children:
                own_ms -= _covered_ms(node, calls_of(children[node_id]), ends)
            name = names.get(node_id) or node["name"]
            own[node["kind"], name, node["model"]].append(max(own_ms, 0))
    shares = [
        TimeShare(kind=kind, name=name, model=model, count=len(times), own_ms=sum(times))
        for (kind, name, model), times in own.items()
    ]
    return sorted(shares, key=lambda share: -share.own_ms)


def costs_by_model(snapshot: Snapshot) -> list[ModelCost]:
    """Return what each model cost in each tier, the most expensive first."""
    costs = _sums(snapshot, lambda node: (str(node["model"]), _tier_of(node)))
    return [ModelCost(model=model, tier=tier, **sums) for (model, tier), sums in costs]


def costs_by_tier(snapshot: Snapshot) -> list[TierCost]:
    """Return what each tier cost, the most expensive first."""
    return [TierCost(tier=tier, **sums) for tier, sums in _sums(snapshot, _tier_of)]


def first_halted(snapshot: Snapshot) -> Node | None:
    """Return the call that hit a limit or a stop, or None if nothing was halted.

    Of the halted nodes it is the first to end. What ended in the same millisecond ended because
    of it, unless it began last: a refused call begins and ends at once. A call that was cut off
    with its worker and begun anew stopped nothing.
    """
    last = _halted_last(snapshot)
    halted = [node for node in last if made_by(node) is None and node["stop_reason"] != WAITS]
    calls = [node for node in halted if node["parent_id"] is not None]
    return min(calls or halted, key=_halt_order, default=None)


def waiting_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Return what waits for a person in a run that does, the run's own node included.

    In the graph such nodes are halted: their execution was given up, and goes on with new ones.
    """
    waiting = {node["node_id"] for node in _halted_last(snapshot) if node["stop_reason"] == WAITS}
    return frozenset(waiting | {snapshot["root_id"] or ""})


def _halted_last(snapshot: Snapshot) -> list[Node]:
    """Return the halted nodes that were not begun anew, nor is anything around them.

    A call that replays the answer of an earlier try belongs to the later try of what is around it.
    """
    nodes = snapshot["nodes"].values()
    latest = {(node["parent_id"], node["kind"], node["name"]): node for node in nodes}
    cut_off: dict[str | None, Node] = {}
    halted: list[Node] = []
    for node in nodes:
        again = latest[node["parent_id"], node["kind"], node["name"]]
        around = cut_off.get(node["parent_id"])
        if around is not None and number(node) < number(around):
            cut_off[node["node_id"]] = around
        elif _began_anew(node, again):
            cut_off[node["node_id"]] = again
        elif node["status"] == "halt":
            halted.append(node)
    return halted


def _began_anew(node: Node, again: Node) -> bool:
    """Tell whether a halted call was made once more, as ``again``, after it had ended."""
    halted = node["status"] == "halt" and again is not node
    return halted and again["start_ts_ms"] >= (node["end_ts_ms"] or 0)


def critical_path(snapshot: Snapshot) -> list[Segment]:
    """Return the critical path of the run, from its start to its end.

    Seen backwards from the end, the node that is on the path is the child that ended last; before
    that child began, its parent is, until another child ended, and so on.
    """
    if (root_id := snapshot["root_id"]) is None:
        return []
    snapshot = _with_waits(snapshot)
    nodes, children = snapshot["nodes"], _worked_within(snapshot)
    ends = _ends_with(children, snapshot)
    segments: list[Segment] = []
    frames = [_Frame(root_id, ends[root_id], _latest_first(children[root_id], ends))]
    while frames:
        frame = frames[-1]
        child = next((c for c in frame.children if c["start_ts_ms"] < frame.until_ms), None)
        if child is None:
            since_ms = nodes[frame.node_id]["start_ts_ms"]
            frames.pop()
        else:
            child_id = child["node_id"]
            since_ms = min(ends[child_id], frame.until_ms)
            frames.append(_Frame(child_id, since_ms, _latest_first(children[child_id], ends)))
        if since_ms < frame.until_ms:
            segments.append(
                Segment(node_id=frame.node_id, start_ms=since_ms, end_ms=frame.until_ms)
            )
        if child is not None:
            frame.until_ms = child["start_ts_ms"]
    return segments[::-1]


def waited_for_people_ms(snapshot: Snapshot) -> int:
    """Return how long the run has waited for people; waits at the same time count once."""
    waited = reached = 0
    asked = [node for node in _with_waits(snapshot)["nodes"].values() if _question_of(node)]
    for node in sorted(asked, key=lambda node: node["start_ts_ms"]):
        end = _end_ms(node, snapshot)
        waited += max(end - max(node["start_ts_ms"], reached), 0)
        reached = max(reached, end)
    return waited


def _with_waits(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with each question open until the run went on after it was suspended.

    A run that is suspended holds no worker: its nodes are halted, and what goes on has new ones.
    """
    last: dict[str, Node] = {}
    changed: dict[str, Node] = {}
    for node_id in sorted(snapshot["nodes"], key=number_of):
        node = snapshot["nodes"][node_id]
        if (question := _question_of(node)) is None:
            continue
        before = last.get(question)
        if before is not None and before["stop_reason"] == WAITS:
            changed[before["node_id"]] = {**before, "end_ts_ms": node["start_ts_ms"]}
        last[question] = node
    return {**snapshot, "nodes": {**snapshot["nodes"], **changed}} if changed else snapshot


def _question_of(node: Node) -> str | None:
    """Return the id of the question that a node asks a person, if it does."""
    question = node["metadata"].get("approval_id")
    return question if isinstance(question, str) else None


def children_of(snapshot: Snapshot) -> defaultdict[str, list[Node]]:
    """Return the children of every node that has any, in the order of creation."""
    children = defaultdict[str, list[Node]](list)
    for node_id in sorted(snapshot["nodes"], key=number_of):
        node = snapshot["nodes"][node_id]
        if node["parent_id"] is not None:
            children[node["parent_id"]].append(node)
    return children


def _worked_within(snapshot: Snapshot) -> defaultdict[str, list[Node]]:
    """Return the nodes by the one in whose time they worked, in the order of creation.

    That is the parent, except where an LLM call had ended when what it asked for began: then it is
    the step or agent around it, in its latest try.
    """
    nodes = snapshot["nodes"]
    within = defaultdict[str, list[Node]](list)
    latest: dict[tuple[str | None, str, str], str] = {}
    for node_id in sorted(nodes, key=number_of):
        node = nodes[node_id]
        latest[node["parent_id"], node["kind"], node["name"]] = node_id
        if node["parent_id"] is None:
            continue
        above = nodes[node["parent_id"]]
        ended_before = _end_ms(above, snapshot) <= node["start_ts_ms"]
        if above["kind"] == "llm" and above["parent_id"] is not None and ended_before:
            around = nodes[above["parent_id"]]
            within[latest[around["parent_id"], around["kind"], around["name"]]].append(node)
        else:
            within[above["node_id"]].append(node)
    return within


def duration_ms(node: Node, snapshot: Snapshot) -> int:
    """Return how long a node lasted, or has lasted so far."""
    return max(_end_ms(node, snapshot) - node["start_ts_ms"], 0)


def status_of(
    node: Node, root: Node, *, cancelled: bool, waiting: Set[str] = frozenset()
) -> ShownStatus:
    """Return how a node stands, in the words of a run's status.

    ``waiting`` are the nodes that wait for a person. What a limit has stopped was halted. What was
    cut off for another reason was cancelled: with the ``cancelled`` run, because a step beside it
    failed, or because its worker was lost.
    """
    if node["node_id"] in waiting:
        return "waiting"
    if node["status"] != "halt":
        return _WORDS[node["status"]]
    with_the_run = cancelled and node["stop_reason"] == root["stop_reason"]
    return "cancelled" if with_the_run or node["stop_reason"] in CUT_OFF else "halted"


def calls_of(children: Iterable[Node]) -> list[Node]:
    """Return the children without the attempts."""
    return [child for child in children if not is_attempt(child)]


def is_attempt(node: Node) -> bool:
    """Return whether a node is one try of the call above it."""
    return node["kind"] == "system" and node["name"] == ATTEMPT


@dataclass(slots=True)
class _Frame:
    node_id: str
    until_ms: int
    children: Iterator[Node]


def _latest_first(children: Iterable[Node], ends: dict[str, int]) -> Iterator[Node]:
    return iter(sorted(calls_of(children), key=lambda child: -ends[child["node_id"]]))


def _end_ms(node: Node, snapshot: Snapshot) -> int:
    end = node["end_ts_ms"]
    return snapshot["snapshot_ts_ms"] if end is None else end


def _ends_with(within: Mapping[str, Iterable[Node]], snapshot: Snapshot) -> dict[str, int]:
    """Return when each node and all inside it were over: a child may outlast its parent."""
    ends: dict[str, int] = {}
    for node_id in sorted(snapshot["nodes"], key=number_of, reverse=True):
        inside = (ends[node["node_id"]] for node in within.get(node_id, ()))
        ends[node_id] = max([_end_ms(snapshot["nodes"][node_id], snapshot), *inside])
    return ends


def _covered_ms(node: Node, children: Iterable[Node], ends: dict[str, int]) -> int:
    """Return for how long of a node's time a child of it, or a call below one, was at work."""
    covered, reached = 0, node["start_ts_ms"]
    for child in sorted(children, key=lambda child: child["start_ts_ms"]):
        end = ends[child["node_id"]]
        if node["end_ts_ms"] is not None:
            end = min(end, node["end_ts_ms"])
        covered += max(end - max(child["start_ts_ms"], reached), 0)
        reached = max(reached, end)
    return covered


def _items(snapshot: Snapshot) -> dict[str, str]:
    """Return what the steps inside maps are called together, by node id: ``map/*/inner``."""
    nodes = snapshot["nodes"]
    if not any(node["metadata"].get("step_type") == _MAP for node in nodes.values()):
        return {}
    names: dict[str, str] = {}
    nearest: dict[str | None, Node] = {}
    for node_id in sorted(nodes, key=number_of):
        node = nodes[node_id]
        above = nearest.get(node["parent_id"])
        if "step_type" not in node["metadata"]:
            if above is not None:
                nearest[node_id] = above
            continue
        nearest[node_id] = node
        if above is None:
            continue
        prefix = names.get(above["node_id"])
        if above["metadata"]["step_type"] == _MAP:
            names[node_id] = f"{prefix or above['name']}/*"
        elif prefix is not None:
            names[node_id] = prefix + node["name"].removeprefix(above["name"])
    return names


def _tier_of(node: Node) -> str | None:
    tier = node["metadata"].get("tier")
    return tier if isinstance(tier, str) else None


def _sums(snapshot: Snapshot, group: Callable[[Node], Key]) -> list[tuple[Key, dict[str, Any]]]:
    """Count the calls of models by group and add up what they used, the dearest group first.

    Money is added exactly, as the totals of the graph are.
    """
    groups = defaultdict[Key, list[Node]](list)
    for node in snapshot["nodes"].values():
        if node["model"] is not None and made_by(node) is None:
            groups[group(node)].append(node)
    found = []
    for key, nodes in groups.items():
        tokens = {name: sum(node[name] or 0 for node in nodes) for name in _TOKENS}
        found.append((key, {"count": len(nodes), **_costs_of(nodes)} | tokens))
    return sorted(found, key=lambda pair: -(pair[1]["cost_usd"] or 0))


def _costs_of(nodes: Iterable[Node]) -> dict[str, float | None]:
    costs = [node["cost_usd"] for node in nodes]
    known = [Decimal(str(cost)) for cost in costs if cost is not None]
    return {
        "cost_usd": float(sum(known)) if len(known) == len(costs) else None,
        "cost_usd_estimated": float(sum(Decimal(str(estimated_of(n)[1])) for n in nodes)),
    }


def _halt_order(node: Node) -> tuple[int, bool, int, int]:
    began = -node["start_ts_ms"], -number(node)
    return (node["end_ts_ms"] or 0, node["stop_reason"] == ROOT_ENDED, *began)
