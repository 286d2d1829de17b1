"""Analysis of a snapshot: time and cost by call, the critical path, and the cause of a stop.

All functions are pure and expect a valid snapshot. An open node is treated as if it ended at the
time of the snapshot.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, Self, TypeVar

from caseworker.core.trace.node import (
    APPROVAL_ID,
    ATTEMPT,
    CALL_ID,
    CUT_OFF,
    ROOT_ENDED,
    WAITS,
    NodeStatus,
    TraceNode,
    estimated_of,
    imported_from_run,
    number,
    path_of,
)
from caseworker.core.trace.snapshot import Snapshot

Key = TypeVar("Key", bound=Hashable)

ShownStatus = Literal["waiting", "running", "completed", "failed", "halted", "cancelled"]
"""Status of a node, with the same names as for runs. ``waiting`` means that a call has not passed
the gateway yet, or that it waits for an answer from outside."""

_WORDS: Final[dict[NodeStatus, ShownStatus]] = {
    "created": "waiting",
    "running": "running",
    "success": "completed",
    "fail": "failed",
}

_MAP: Final = "map"
"""The step type whose items are grouped under one name."""

_TOKENS: Final[tuple[Literal["tokens_in", "tokens_out"], ...]] = ("tokens_in", "tokens_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """Total self time of all calls with the same kind, name and model.

    Self time is the duration of a call without the time in which its children were running.
    """

    kind: str
    name: str
    """Name of the calls; ``<map>/*`` means all items of a map step."""
    model: str | None
    count: int
    own_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCost:
    """Total cost of all calls to models of one tier, including failed and halted calls."""

    tier: str | None
    """Model tier, ``small`` or ``big``, as in ``metadata.tier``; None for models without a tier."""
    count: int
    cost_usd: float | None
    """Cost in US dollars; None if the price of any of the calls is unknown."""
    cost_usd_estimated: float
    """Estimated part of the cost, from calls whose response or usage was lost."""
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost(TierCost):
    """Total cost of all calls to one model of one tier."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A period of the critical path, in which one node determined when the run would end."""

    node_id: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class WorkTimes:
    """When the calls of a snapshot ran, and inside which call; several analyses share it."""

    snapshot: Snapshot
    """The snapshot, with each pending approval extended until the run was resumed."""
    within: Mapping[str, list[TraceNode]]
    """The nodes that ran in the time of another one, by its ID, in the order of creation."""
    ends_ms: Mapping[str, int]
    """The time when each node and all nodes within it had ended, by node ID."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Return the times of a snapshot."""
        snapshot = _with_waits(snapshot)
        within = _worked_within(snapshot)
        return cls(snapshot, within, _ends_with(within, snapshot))


def time_shares(times: WorkTimes) -> list[TimeShare]:
    """Return the self time by kind, name and model, longest first; retries included."""
    snapshot, children, ends = times.snapshot, times.within, times.ends_ms
    names = _items(snapshot)
    self_times = defaultdict[tuple[str, str, str | None], list[int]](list)
    for node_id, node in snapshot["nodes"].items():
        if not is_attempt(node):
            own_ms = _end_ms(node, snapshot) - node["start_ts_ms"]
            if node_id in children:
                own_ms -= _covered_ms(node, calls_of(children[node_id]), ends)
            name = names.get(node_id) or node["name"]
            self_times[node["kind"], name, node["model"]].append(max(own_ms, 0))
    shares = [
        TimeShare(kind=kind, name=name, model=model, count=len(times), own_ms=sum(times))
        for (kind, name, model), times in self_times.items()
    ]
    return sorted(shares, key=lambda share: -share.own_ms)


def costs_by_model(snapshot: Snapshot) -> list[ModelCost]:
    """Return the total cost of each model and tier, most expensive first."""
    costs = _sums(snapshot, lambda node: (str(node["model"]), _tier_of(node)))
    return [ModelCost(model=model, tier=tier, **sums) for (model, tier), sums in costs]


def costs_by_tier(snapshot: Snapshot) -> list[TierCost]:
    """Return the total cost of each tier, most expensive first."""
    return [TierCost(tier=tier, **sums) for tier, sums in _sums(snapshot, _tier_of)]


def first_halted(snapshot: Snapshot) -> TraceNode | None:
    """Return the call that caused the stop, or None if no node was halted.

    That is the first halted node to end. If several ended in the same millisecond, it is the one
    that started last: a refused call starts and ends at once, and it made the other nodes end. A
    call that was interrupted by a worker loss and then repeated does not count.
    """
    last = _halted_last(snapshot)
    halted = [
        node for node in last if imported_from_run(node) is None and node["stop_reason"] != WAITS
    ]
    calls = [node for node in halted if node["parent_id"] is not None]
    return min(calls or halted, key=_halt_order, default=None)


def waiting_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Return the IDs of the nodes that wait for answers in a suspended run, and of its root.

    In the graph these nodes are halted, because suspension ended their execution. When the run is
    resumed, it continues with new nodes.
    """
    waiting = {node["node_id"] for node in _halted_last(snapshot) if node["stop_reason"] == WAITS}
    return frozenset(waiting | {snapshot["root_id"] or ""})


def _halted_last(snapshot: Snapshot) -> list[TraceNode]:
    """Return the halted nodes that were not repeated, and whose ancestors were not repeated.

    A replayed call keeps its old node, so calls that it requests in the repetition are below an
    interrupted ancestor. They count as part of the repetition, because they are newer than it.
    """
    nodes = snapshot["nodes"].values()
    latest = {_work_of(node): node for node in nodes}
    cut_off: dict[str | None, TraceNode] = {}
    halted: list[TraceNode] = []
    for node in nodes:
        repetition = latest[_work_of(node)]
        cut_ancestor = cut_off.get(node["parent_id"])
        if cut_ancestor is not None and number(node) < number(cut_ancestor):
            cut_off[node["node_id"]] = cut_ancestor
        elif _was_repeated(node, repetition):
            cut_off[node["node_id"]] = repetition
        elif node["status"] == "halt":
            halted.append(node)
    return halted


def _work_of(node: TraceNode) -> tuple[str | None, str, str]:
    """Return the identity that a node shares with its repetitions after an interruption."""
    is_system = node["kind"] == "system"
    name = path_of(node, node["metadata"]) if is_system else node["name"]
    return node["parent_id"], node["kind"], name


def _was_repeated(node: TraceNode, repetition: TraceNode) -> bool:
    """Return whether a halted call was repeated, as ``repetition``, after it had ended."""
    halted = node["status"] == "halt" and repetition is not node
    return halted and repetition["start_ts_ms"] >= (node["end_ts_ms"] or 0)


def critical_path(times: WorkTimes) -> list[Segment]:
    """Return the critical path of the run, from its start to its end.

    It is computed backwards from the end. The child that ended last is on the path. Before that
    child started, its parent is on the path, back to the end of an earlier child, and so on.
    """
    nodes, ends = times.snapshot["nodes"], times.ends_ms
    if (root_id := times.snapshot["root_id"]) is None:
        return []
    segments: list[Segment] = []
    frames = [_Frame(root_id, ends[root_id], _latest_first(root_id, times))]
    while frames:
        frame = frames[-1]
        child = next((c for c in frame.children if c["start_ts_ms"] < frame.until_ms), None)
        if child is None:
            since_ms = nodes[frame.node_id]["start_ts_ms"]
            frames.pop()
        else:
            child_id = child["node_id"]
            since_ms = min(ends[child_id], frame.until_ms)
            frames.append(_Frame(child_id, since_ms, _latest_first(child_id, times)))
        if since_ms < frame.until_ms:
            segments.append(
                Segment(node_id=frame.node_id, start_ms=since_ms, end_ms=frame.until_ms)
            )
        if child is not None:
            frame.until_ms = child["start_ts_ms"]
    return segments[::-1]


def waited_for_people_ms(snapshot: Snapshot) -> int:
    """Return for how many milliseconds the run waited for approvals; overlaps count once."""
    waited = reached = 0
    nodes = _with_waits(snapshot)["nodes"].values()
    approvals = [node for node in nodes if APPROVAL_ID in node["metadata"]]
    for node in sorted(approvals, key=lambda node: node["start_ts_ms"]):
        end = _end_ms(node, snapshot)
        waited += max(end - max(node["start_ts_ms"], reached), 0)
        reached = max(reached, end)
    return waited


def _with_waits(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with each waiting call extended until the run was resumed.

    Suspension halts the node of the call; the resumed run continues it in a new node.
    """
    last: dict[str, TraceNode] = {}
    changed: dict[str, TraceNode] = {}
    for node in snapshot["nodes"].values():
        if (call_id := _waiting_call_of(node)) is None:
            continue
        before = last.get(call_id)
        if before is not None and before["stop_reason"] == WAITS:
            changed[before["node_id"]] = {**before, "end_ts_ms": node["start_ts_ms"]}
        last[call_id] = node
    return {**snapshot, "nodes": {**snapshot["nodes"], **changed}} if changed else snapshot


def _waiting_call_of(node: TraceNode) -> str | None:
    """Return the ID of the waiting call of a node; None if somebody outside does not answer it."""
    metadata = node["metadata"]
    call_id = metadata.get(APPROVAL_ID) or metadata.get(CALL_ID)
    return call_id if isinstance(call_id, str) else None


def children_of(snapshot: Snapshot) -> defaultdict[str, list[TraceNode]]:
    """Return the children of each node that has any, by node ID, in the order of creation."""
    children = defaultdict[str, list[TraceNode]](list)
    for node in snapshot["nodes"].values():
        if node["parent_id"] is not None:
            children[node["parent_id"]].append(node)
    return children


def _worked_within(snapshot: Snapshot) -> defaultdict[str, list[TraceNode]]:
    """Group the nodes by the node in whose time they ran, in the order of creation.

    Usually that is the parent. If the parent is an LLM call that had ended before the node started
    (it requested a tool call), it is the enclosing step or agent, in its latest attempt.
    """
    nodes = snapshot["nodes"]
    within = defaultdict[str, list[TraceNode]](list)
    latest: dict[tuple[str | None, str, str], str] = {}
    for node_id, node in nodes.items():
        latest[_work_of(node)] = node_id
        if node["parent_id"] is None:
            continue
        parent = nodes[node["parent_id"]]
        grandparent = nodes.get(parent["parent_id"] or "") if parent["kind"] == "llm" else None
        if grandparent is not None and _end_ms(parent, snapshot) <= node["start_ts_ms"]:
            within[latest[_work_of(grandparent)]].append(node)
        else:
            within[parent["node_id"]].append(node)
    return within


def duration_ms(node: TraceNode, snapshot: Snapshot) -> int:
    """Return the duration of a node in milliseconds; an open node lasts until the snapshot."""
    return max(_end_ms(node, snapshot) - node["start_ts_ms"], 0)


def status_of(
    node: TraceNode, root: TraceNode, *, cancelled: bool, waiting: Set[str] = frozenset()
) -> ShownStatus:
    """Return the status of a node, with the same names as for runs.

    ``waiting`` holds the IDs of the nodes that wait in a suspended run. A node is halted if a limit
    stopped it. It is cancelled if something else interrupted it: the cancellation of the run
    (``cancelled``), the failure of a parallel step, or the loss of its worker.
    """
    if node["node_id"] in waiting or (node["status"] == "running" and _waiting_call_of(node)):
        return "waiting"
    if node["status"] != "halt":
        return _WORDS[node["status"]]
    with_the_run = cancelled and node["stop_reason"] == root["stop_reason"]
    return "cancelled" if with_the_run or node["stop_reason"] in CUT_OFF else "halted"


def calls_of(children: Iterable[TraceNode]) -> list[TraceNode]:
    """Return the children that are calls or steps, without attempts."""
    return [child for child in children if not is_attempt(child)]


def is_attempt(node: TraceNode) -> bool:
    """Return whether a node represents one attempt of its parent."""
    return node["kind"] == "system" and node["name"] == ATTEMPT


@dataclass(slots=True)
class _Frame:
    node_id: str
    until_ms: int
    children: Iterator[TraceNode]


def _latest_first(node_id: str, times: WorkTimes) -> Iterator[TraceNode]:
    children = calls_of(times.within.get(node_id, ()))
    return iter(sorted(children, key=lambda child: -times.ends_ms[child["node_id"]]))


def _end_ms(node: TraceNode, snapshot: Snapshot) -> int:
    end = node["end_ts_ms"]
    return snapshot["snapshot_ts_ms"] if end is None else end


def _ends_with(within: Mapping[str, Iterable[TraceNode]], snapshot: Snapshot) -> dict[str, int]:
    """Return the time when each node and all its descendants had ended.

    A child can end after its parent.
    """
    ends: dict[str, int] = {}
    for node_id, node in reversed(snapshot["nodes"].items()):
        ends[node_id] = _end_ms(node, snapshot)
        for inner in within.get(node_id, ()):
            ends[node_id] = max(ends[node_id], ends[inner["node_id"]])
    return ends


def _covered_ms(node: TraceNode, children: Iterable[TraceNode], ends: Mapping[str, int]) -> int:
    """Return the part of a node's duration in which at least one child or its descendants ran."""
    covered, reached = 0, node["start_ts_ms"]
    for child in sorted(children, key=lambda child: child["start_ts_ms"]):
        end = ends[child["node_id"]]
        if node["end_ts_ms"] is not None:
            end = min(end, node["end_ts_ms"])
        covered += max(end - max(child["start_ts_ms"], reached), 0)
        reached = max(reached, end)
    return covered


def _items(snapshot: Snapshot) -> dict[str, str]:
    """Return the common names of steps inside maps, by node ID, such as ``map/*/inner``."""
    nodes = snapshot["nodes"]
    if not any(node["metadata"].get("step_type") == _MAP for node in nodes.values()):
        return {}
    names: dict[str, str] = {}
    nearest: dict[str | None, TraceNode] = {}
    for node_id, node in nodes.items():
        enclosing = nearest.get(node["parent_id"])
        if "step_type" not in node["metadata"]:
            if enclosing is not None:
                nearest[node_id] = enclosing
            continue
        nearest[node_id] = node
        if enclosing is None:
            continue
        prefix = names.get(enclosing["node_id"])
        if enclosing["metadata"]["step_type"] == _MAP:
            names[node_id] = f"{prefix or enclosing['name']}/*"
        elif prefix is not None:
            names[node_id] = prefix + node["name"].removeprefix(enclosing["name"])
    return names


def _tier_of(node: TraceNode) -> str | None:
    tier = node["metadata"].get("tier")
    return tier if isinstance(tier, str) else None


def _sums(
    snapshot: Snapshot, group: Callable[[TraceNode], Key]
) -> list[tuple[Key, dict[str, Any]]]:
    """Count the model calls by group and add up their usage, most expensive group first.

    Money is added as Decimal, like the totals of the graph.
    """
    groups = defaultdict[Key, list[TraceNode]](list)
    for node in snapshot["nodes"].values():
        if node["model"] is not None and imported_from_run(node) is None:
            groups[group(node)].append(node)
    sums = []
    for key, nodes in groups.items():
        tokens = {name: sum(node[name] or 0 for node in nodes) for name in _TOKENS}
        sums.append((key, {"count": len(nodes), **_costs_of(nodes)} | tokens))
    return sorted(sums, key=lambda pair: -(pair[1]["cost_usd"] or 0))


def _costs_of(nodes: Iterable[TraceNode]) -> dict[str, float | None]:
    costs = [node["cost_usd"] for node in nodes]
    prices = [Decimal(str(cost)) for cost in costs if cost is not None]
    return {
        "cost_usd": float(sum(prices)) if len(prices) == len(costs) else None,
        "cost_usd_estimated": float(sum(Decimal(str(estimated_of(n)[1])) for n in nodes)),
    }


def _halt_order(node: TraceNode) -> tuple[int, bool, int, int]:
    began = -node["start_ts_ms"], -number(node)
    return (node["end_ts_ms"] or 0, node["stop_reason"] == ROOT_ENDED, *began)
