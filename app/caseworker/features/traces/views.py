"""API schemas for traces: calls, steps, and an analysis of time and cost.

The models of an ExecutionGraph only document the dicts that ``caseworker.core.trace`` creates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import ConfigDict

from caseworker.core.trace.analysis import (
    Segment,
    ShownStatus,
    WorkTimes,
    costs_by_model,
    costs_by_tier,
    critical_path,
    duration_ms,
    first_halted,
    status_of,
    time_shares,
    waiting_nodes,
)
from caseworker.core.trace.node import NodeKind, NodeStatus, TraceNode, number_of
from caseworker.core.trace.payloads import Payload
from caseworker.core.trace.snapshot import Snapshot
from caseworker.core.trace.step_trace import StepUse, add_nested, uses_of
from caseworker.engine.step_path import StepPath
from caseworker.features.definitions.graph_shape import GraphShape
from caseworker.features.traces.payloads import CallPayload
from caseworker.platform.http.bodies import DocumentedAs, View
from caseworker.runs.http.views import Links
from caseworker.runs.run import RunStatus
from caseworker.runs.service import Trace


class CallNode(View):
    """One model call, tool call or system operation (a step, an attempt or the run itself)."""

    node_id: str
    """ID of the node: ``n`` and at least six digits. Numbers increase in order of creation."""
    parent_id: str | None
    """ID of the node that made this call; null only for the root."""
    kind: NodeKind
    name: str
    start_ts_ms: int
    """Time at which the node was created, in UTC epoch milliseconds."""
    end_ts_ms: int | None
    """Time at which the node ended, in UTC epoch milliseconds; null until then."""
    status: NodeStatus
    model: str | None
    retries_used: int
    cost_usd: float | None
    """Cost in US dollars; null if the model's price is unknown."""
    tokens_in: int | None
    tokens_out: int | None
    stop_reason: str | None
    error_class: str | None
    metadata: dict[str, Any]


class SnapshotAggregates(View):
    """Totals over all nodes of a snapshot."""

    total_cost_usd: float
    total_llm_calls: int
    """Number of successful model calls."""
    total_tool_calls: int
    """Number of successful tool calls."""
    total_retries: int
    total_tokens_in: int
    total_tokens_out: int
    max_depth: int
    """Depth of the deepest node; the root has depth 0."""


class TraceSnapshot(View):
    """The ExecutionGraph of a run at one point in time."""

    chain_id: str
    root_id: str | None
    nodes: dict[str, CallNode]
    """Nodes by ID, in order of creation."""
    aggregates: SnapshotAggregates
    snapshot_ts_ms: int
    """Time at which the snapshot was taken, in UTC epoch milliseconds."""


Handling = Literal["retried", "fallback", "skipped", "failed"]
"""What happened after a call or attempt failed."""


class ErrorView(View):
    """The error of a failed call or attempt, and what happened next."""

    error_class: str
    message: str | None
    handling: Handling
    """What happened next. ``retried``: another attempt followed. ``fallback``: a fallback was
    called instead. ``skipped``: the step's error policy supplied a value. ``failed``: the call or
    step failed."""


class AttemptView(View):
    """One attempt at a call or step that was attempted more than once."""

    node_id: str
    attempt: int
    status: ShownStatus
    started_at: datetime
    finished_at: datetime | None
    error: ErrorView | None


class CallUsage(View):
    """Tokens and cost of a call, summed over all its attempts."""

    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    """Cost in US dollars; null if the model's price is unknown."""


class CallDetails(View):
    """A single call of a run (a CallNode of its trace): a model call, a tool call or a step."""

    run_id: str
    node_id: str
    parent_id: str | None
    kind: Literal["llm", "tool", "system"]
    """Kind of call: ``llm`` is a model call, ``tool`` a tool call. ``system`` is a step, an attempt
    or the run itself."""
    name: str
    model: str | None
    path: str | None
    """Path of the call within the run; it is the same in every execution of the run. Null for calls
    without one."""
    status: ShownStatus
    started_at: datetime
    finished_at: datetime | None
    reason: str | None
    """Reason why the call was halted or cancelled; otherwise null."""
    error: ErrorView | None
    retries: int
    attempts: list[AttemptView]
    """Attempts at the call, in order; empty if the first attempt succeeded."""
    usage: CallUsage
    payloads: Literal["redacted", "none", "full"]
    """How ``request`` and ``reply`` are shown, as configured: redacted and truncated, omitted, or
    unchanged."""
    request: dict[str, Any] | None
    """The request. For a model: messages, max_output_tokens, temperature, seed, json_schema. For a
    tool: args. For a step: its inputs, by handle; null for steps executed by a map or as a
    fallback."""
    reply: Any
    """The reply; null until there is one. For a model: text, model, finish_reason, incomplete,
    repairs, tokens. For a failed model call: raw_reply, the start of the response. For a tool: its
    result. For a step: its outputs, by handle."""
    metadata: dict[str, Any]
    """Further facts about the call, such as tier, provider and how JSON output was requested."""

    @classmethod
    def of(cls, call: CallPayload, mode: str) -> Self:
        """Return the view of a call with its payloads and attempts.

        ``mode`` is the configured display mode for payloads, returned as ``payloads``.
        """
        node, record = call.record.node, call.record
        cancelled = call.run.status is RunStatus.CANCELLED
        waiting = {record.node_id} if call.waits else frozenset[str]()
        status = status_of(node, call.root, cancelled=cancelled, waiting=waiting)  # type: ignore[arg-type]
        path = record.call_key or (node["name"] if "step_type" in node["metadata"] else None)
        return cls.model_validate(
            {
                **{name: node[name] for name in _AS_IT_IS},
                "run_id": call.run.key.run_id,
                "path": None if path is None else path.removeprefix("step:"),
                "status": status,
                "started_at": instant(node["start_ts_ms"]),
                "finished_at": None if call.waits else instant(node["end_ts_ms"]),
                "reason": node["stop_reason"] if node["status"] == "halt" else None,
                "error": _error_of(node, "failed"),
                "retries": node["retries_used"],
                "attempts": _attempts_of(call, cancelled),
                "usage": {name: node[name] for name in CallUsage.model_fields},
                "payloads": mode,
                "request": call.payload.request,
                "reply": call.payload.reply,
            },
        )


_AS_IT_IS = ("node_id", "parent_id", "kind", "name", "model", "metadata")


def instant(epoch_ms: int | None) -> datetime | None:
    """Convert a CallNode's timestamp in epoch milliseconds to a UTC datetime; None stays None."""
    return None if epoch_ms is None else datetime.fromtimestamp(epoch_ms / 1000, UTC)


def _attempts_of(call: CallPayload, cancelled: bool) -> Sequence[Mapping[str, Any]]:
    nodes, parent = call.attempts, call.record.node
    after = [following for _, following in pairwise(nodes)]
    return [
        {
            "node_id": node["node_id"],
            "attempt": node["metadata"].get("attempt", number),
            "status": status_of(node, call.root, cancelled=cancelled),  # type: ignore[arg-type]
            "started_at": instant(node["start_ts_ms"]),
            "finished_at": instant(node["end_ts_ms"]),
            "error": _error_of(node, _handling(then, parent)),
        }
        for number, (node, then) in enumerate(zip(nodes, [*after, None], strict=False), 1)
    ]


def _handling(then: Mapping[str, Any] | None, parent: Mapping[str, Any]) -> Handling:
    """Return how a failed attempt was handled; ``then`` is the next attempt, if any."""
    if then is not None:
        return "fallback" if then["metadata"].get("fallback") else "retried"
    return "skipped" if parent["status"] == "success" else "failed"


def _error_of(node: Mapping[str, Any], handling: Handling) -> dict[str, Any] | None:
    if node["status"] != "fail":
        return None
    return {
        "error_class": node["error_class"] or "Error",
        "message": node["stop_reason"],
        "handling": handling,
    }


class SegmentView(View):
    """A period of the critical path, in which one node determined when the run ended."""

    node_id: str
    name: str
    after_ms: int
    """Start of the period, in milliseconds after the start of the run."""
    duration_ms: int


class TimeShareView(View):
    """Total self time of all calls with the same kind, name and model.

    Self time excludes the time that a call spends waiting for its child calls.
    """

    kind: str
    name: str
    """Name of the calls; ``map/*`` covers all items of the step ``map``."""
    model: str | None
    count: int
    own_ms: int
    """Total self time in milliseconds. Calls that overlap in time are each counted in full."""


class ModelCostView(View):
    """Cost of the calls to one model in one tier, including failed and halted calls."""

    model: str
    tier: str | None
    """Tier of the model: ``small`` or ``big``; null for models that belong to no tier."""
    count: int
    cost_usd: float | None
    """Cost in US dollars; null if the price of a call is unknown."""
    cost_usd_estimated: float
    """Part of the cost that is estimated, in US dollars."""
    tokens_in: int
    tokens_out: int


class TierCostView(View):
    """Cost of the calls in one tier, over all its models."""

    tier: str | None
    """Tier: ``small`` or ``big``; null for models that belong to no tier."""
    count: int
    cost_usd: float | None
    """Cost in US dollars; null if the price of a call is unknown."""
    cost_usd_estimated: float
    """Part of the cost that is estimated, in US dollars."""
    tokens_in: int
    tokens_out: int


class StopView(View):
    """The call that caused the run to stop: the first one halted by a limit or a stop."""

    node_id: str
    kind: str
    name: str
    reason: str | None
    after_ms: int
    """Time at which the call ended, in milliseconds after the start of the run."""

    @classmethod
    def of(cls, node: TraceNode, began_ms: int) -> Self:
        """Return the view of a halted node.

        ``began_ms`` is the start of the run in epoch milliseconds.
        """
        return cls(
            node_id=node["node_id"],
            kind=node["kind"],
            name=node["name"],
            reason=node["stop_reason"],
            after_ms=(node["end_ts_ms"] or began_ms) - began_ms,
        )


class AnalysisView(View):
    """Analysis of a run: how time and cost are distributed, and what stopped it."""

    critical_path: list[SegmentView]
    """Periods of the critical path, in chronological order: the calls that determined when the run
    ended."""
    time: list[TimeShareView]
    """Self time by kind, name and model, longest first."""
    cost_by_model: list[ModelCostView]
    """Cost by model and tier, highest first."""
    cost_by_tier: list[TierCostView]
    """Cost by tier, highest first."""
    stopped_at: StopView | None
    """Call that caused the run to stop; null if nothing was halted."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Return the analysis of a snapshot, which must have a root."""
        nodes = snapshot["nodes"]
        began_ms = nodes[snapshot["root_id"] or ""]["start_ts_ms"]
        halted, times = first_halted(snapshot), WorkTimes.of(snapshot)

        def segment(of: Segment) -> SegmentView:
            return SegmentView(
                node_id=of.node_id,
                name=nodes[of.node_id]["name"],
                after_ms=of.start_ms - began_ms,
                duration_ms=of.end_ms - of.start_ms,
            )

        return cls(
            critical_path=[segment(of) for of in critical_path(times)],
            time=[TimeShareView.model_validate(share) for share in time_shares(times)],
            cost_by_model=[ModelCostView(**asdict(cost)) for cost in costs_by_model(snapshot)],
            cost_by_tier=[TierCostView(**asdict(cost)) for cost in costs_by_tier(snapshot)],
            stopped_at=None if halted is None else StopView.of(halted, began_ms),
        )


@dataclass(slots=True, kw_only=True)
class StepView:
    """One execution of a step. A step that was restarted after a lost worker has several."""

    # Not a pydantic model: a trace may hold ten thousand, and they need no validation.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    step_id: str
    """ID of the step in its own graph."""
    path: str
    """Path of the step within the run: ``outer/inner`` for a step of a nested graph."""
    type: str
    node_id: str
    """ID of the step's CallNode in the snapshot, which is the parent of its calls."""
    status: ShownStatus
    """Status of the step, with the same values as the status of a run."""
    started_at: datetime
    finished_at: datetime | None
    duration_ms: int
    """Duration in milliseconds; so far, if the step has not finished."""
    retries: int
    """Number of retries, as ``retries_used`` of the step's CallNode; a fallback is not a retry."""
    tokens_in: int
    """Number of input tokens of all calls below the step, including those of nested steps."""
    tokens_out: int
    """Number of output tokens of all calls below the step, including those of nested steps."""
    cost_usd: float | None
    """Cost, in US dollars, of all calls below the step, including those of nested steps. Null if
    the price of a call is unknown."""
    tokens_estimated: int
    """Number of tokens that are estimated because the response to a request, or its usage data, was
    lost."""
    cost_usd_estimated: float
    """Part of the cost that is estimated, in US dollars."""
    stop_reason: str | None
    error_class: str | None

    @classmethod
    def of(cls, node: TraceNode, use: StepUse, snapshot: Snapshot, status: ShownStatus) -> Self:
        """Return the view of a step from its CallNode and the usage of the calls below it."""
        path = node["name"]
        if status == "waiting":  # the end is when it was suspended; it will resume
            node = {**node, "end_ts_ms": None}
        ended_ms = node["end_ts_ms"]
        return cls(
            step_id=path if use.nested_in is None else StepPath(path).step_id,
            path=path,
            type=str(node["metadata"]["step_type"]),
            node_id=node["node_id"],
            status=status,
            started_at=_instant(node["start_ts_ms"]),
            finished_at=None if ended_ms is None else _instant(ended_ms),
            duration_ms=duration_ms(node, snapshot),
            retries=node["retries_used"],
            tokens_in=use.tokens_in,
            tokens_out=use.tokens_out,
            cost_usd=None if use.cost_usd is None else float(use.cost_usd),
            tokens_estimated=use.tokens_estimated,
            cost_usd_estimated=float(use.cost_usd_estimated),
            stop_reason=node["stop_reason"],
            error_class=node["error_class"],
        )


class PayloadView(View):
    """The request and reply of a call."""

    request: Any
    reply: Any


class TraceView(View):
    """The trace of a run: its calls, steps and their analysis."""

    run_id: str
    snapshot: Annotated[dict[str, Any], DocumentedAs(TraceSnapshot)]
    """ExecutionGraph of the run: chain_id, root_id, nodes by ID, aggregates, snapshot_ts_ms."""
    steps: list[StepView]
    """Executions of steps, in the order in which they started."""
    analysis: AnalysisView
    """Analysis of time and cost, and what stopped the run."""
    graph: GraphShape | None
    """Shape of the graph that the run executes; null for a case."""
    events_url: str
    """URL of the run's event stream."""
    payloads: dict[str, PayloadView] | None = None
    """Requests and replies by node ID; null unless ``payloads=true``. Calls that would exceed the
    size limit are omitted; request them individually."""

    @classmethod
    def of(cls, trace: Trace, root: str, payloads: Mapping[str, Payload] | None = None) -> Self:
        """Return the view of a trace.

        ``root`` is the path prefix for its URLs; ``payloads`` holds requests and replies by node
        ID, if requested.
        """
        run_id, snapshot = trace.run.key.run_id, cast("Snapshot", trace.snapshot)
        graph = trace.run.request.graph
        return cls(
            run_id=run_id,
            snapshot=trace.snapshot,
            steps=_steps_of(snapshot, trace.run.status),
            analysis=AnalysisView.of(snapshot),
            graph=None if graph is None else GraphShape.of(graph),
            events_url=Links.of(run_id, root).events,
            payloads=None
            if payloads is None
            else {node_id: PayloadView.model_validate(one) for node_id, one in payloads.items()},
        )


def _steps_of(snapshot: Snapshot, status: RunStatus) -> list[StepView]:
    cancelled = status is RunStatus.CANCELLED
    waiting = waiting_nodes(snapshot) if status is RunStatus.WAITING else frozenset[str]()
    nodes = sorted(snapshot["nodes"].values(), key=lambda node: number_of(node["node_id"]))
    steps = {node["node_id"]: node for node in nodes if "step_type" in node["metadata"]}
    uses = uses_of(nodes, steps)
    add_nested(uses)
    root = snapshot["nodes"][snapshot["root_id"] or ""]
    return [
        StepView.of(
            node,
            uses[node_id],
            snapshot,
            status_of(node, root, cancelled=cancelled, waiting=waiting),
        )
        for node_id, node in steps.items()
    ]


def _instant(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)
