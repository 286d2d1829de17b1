"""API schemas for traces: calls, steps, and an analysis of time and cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self, cast

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
from caseworker.core.trace.node import TraceNode, number_of
from caseworker.core.trace.payloads import Payload
from caseworker.core.trace.snapshot import Snapshot
from caseworker.core.trace.step_trace import StepUse, add_nested, uses_of
from caseworker.engine.step_path import StepPath
from caseworker.features.traces.snapshot_views import TraceSnapshot
from caseworker.platform.http.bodies import DocumentedAs, View
from caseworker.runs.http.graph_shape import GraphShape
from caseworker.runs.http.views import Links
from caseworker.runs.run import RunStatus
from caseworker.runs.service import Trace


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
    """The call that caused the run to stop: the first that a limit or a cancel request ended."""

    node_id: str
    kind: str
    name: str
    reason: str | None
    after_ms: int
    """Time at which the call ended, in milliseconds after the start of the run; 0 if the call has
    no end time."""

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
