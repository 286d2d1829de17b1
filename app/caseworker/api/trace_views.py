"""Traces as callers see them: the calls of a run, its steps, and where its time and money went."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import ConfigDict

from caseworker.api.field_types import DocumentedAs, View
from caseworker.api.graph_shape import GraphShape
from caseworker.api.run_views import Links
from caseworker.api.snapshot_views import TraceSnapshot
from caseworker.engine.step_path import StepPath
from caseworker.runs.run import RunStatus
from caseworker.runs.service import Trace
from caseworker.trace.analysis import (
    Segment,
    ShownStatus,
    costs_by_model,
    costs_by_tier,
    critical_path,
    duration_ms,
    first_halted,
    status_of,
    time_shares,
    waiting_nodes,
)
from caseworker.trace.node import Node, number_of
from caseworker.trace.payloads import Payload
from caseworker.trace.snapshot import Snapshot
from caseworker.trace.step_trace import StepUse, add_nested, uses_of


class SegmentView(View):
    """A stretch of time in which one node alone held up the end of the run."""

    node_id: str
    name: str
    after_ms: int
    """When it began, counted from the beginning of the run."""
    duration_ms: int


class TimeShareView(View):
    """How long the calls of one sort were at work themselves, not waiting for calls below them."""

    kind: str
    name: str
    """``map/*`` of all items of a map."""
    model: str | None
    count: int
    own_ms: int
    """Calls that overlap count each for itself."""


class ModelCostView(View):
    """What the calls of one model cost in one tier, failed and halted ones included."""

    model: str
    tier: str | None
    """``small`` or ``big``."""
    count: int
    cost_usd: float | None
    """Null if the price of one of the calls is not known."""
    cost_usd_estimated: float
    """The part of it that is an estimate."""
    tokens_in: int
    tokens_out: int


class TierCostView(View):
    """What the calls of one tier cost, whatever its models."""

    tier: str | None
    """``small`` or ``big``; null stands for models that belong to neither."""
    count: int
    cost_usd: float | None
    """Null if the price of one of the calls is not known."""
    cost_usd_estimated: float
    """The part of it that is an estimate."""
    tokens_in: int
    tokens_out: int


class StopView(View):
    """The call that hit a limit or a stop."""

    node_id: str
    kind: str
    name: str
    reason: str | None
    after_ms: int
    """Counted from the beginning of the run."""

    @classmethod
    def of(cls, node: Node, began_ms: int) -> Self:
        """Return the view of a halted node."""
        return cls(
            node_id=node["node_id"],
            kind=node["kind"],
            name=node["name"],
            reason=node["stop_reason"],
            after_ms=(node["end_ts_ms"] or began_ms) - began_ms,
        )


class AnalysisView(View):
    """Where the time and the money of a run went, and what stopped it."""

    critical_path: list[SegmentView]
    """Which calls determined the end of the run, from its beginning to its end."""
    time: list[TimeShareView]
    """The longest first."""
    cost_by_model: list[ModelCostView]
    """The dearest first."""
    cost_by_tier: list[TierCostView]
    """The dearest first."""
    stopped_at: StopView | None
    """Null if nothing was stopped."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Analyse a snapshot that has a root."""
        nodes = snapshot["nodes"]
        began_ms = nodes[snapshot["root_id"] or ""]["start_ts_ms"]
        halted = first_halted(snapshot)

        def segment(of: Segment) -> SegmentView:
            return SegmentView(
                node_id=of.node_id,
                name=nodes[of.node_id]["name"],
                after_ms=of.start_ms - began_ms,
                duration_ms=of.end_ms - of.start_ms,
            )

        return cls(
            critical_path=[segment(of) for of in critical_path(snapshot)],
            time=[TimeShareView.model_validate(share) for share in time_shares(snapshot)],
            cost_by_model=[ModelCostView(**asdict(cost)) for cost in costs_by_model(snapshot)],
            cost_by_tier=[TierCostView(**asdict(cost)) for cost in costs_by_tier(snapshot)],
            stopped_at=None if halted is None else StopView.of(halted, began_ms),
        )


@dataclass(slots=True, kw_only=True)
class StepView:
    """One execution of a step; a step that was begun again after a lost worker has several."""

    # No model: a trace holds ten thousand of them, made of what needs no validation.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    step_id: str
    """Its id in its own graph."""
    path: str
    """Where it stands in the run: ``outer/inner`` for a step of a nested graph."""
    type: str
    node_id: str
    """Its CallNode in the snapshot, below which its calls are."""
    status: ShownStatus
    """In the words of a run's status."""
    started_at: datetime
    finished_at: datetime | None
    duration_ms: int
    """Until now, if it has not finished."""
    retries: int
    """Tries after the first one, that of a fallback included."""
    tokens_in: int
    """Of all calls below it, those of steps nested in it included."""
    tokens_out: int
    """Of all calls below it, those of steps nested in it included."""
    cost_usd: float | None
    """Of all calls below it, those of steps nested in it included; null if the price of one is not
    known."""
    tokens_estimated: int
    """The part of the tokens that is an estimate: sent, and the answer or its usage was lost."""
    cost_usd_estimated: float
    """The part of the cost that is an estimate."""
    stop_reason: str | None
    error_class: str | None

    @classmethod
    def of(cls, node: Node, use: StepUse, snapshot: Snapshot, status: ShownStatus) -> Self:
        """Return the view of a step's CallNode and of what was used below it."""
        path = node["name"]
        if status == "waiting":  # the graph says when it was given up: it goes on all the same
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
            retries=use.attempts - 1,
            tokens_in=use.tokens_in,
            tokens_out=use.tokens_out,
            cost_usd=None if use.cost_usd is None else float(use.cost_usd),
            tokens_estimated=use.tokens_estimated,
            cost_usd_estimated=float(use.cost_usd_estimated),
            stop_reason=node["stop_reason"],
            error_class=node["error_class"],
        )


class PayloadView(View):
    """What a call asked and what it got."""

    request: Any
    reply: Any


class TraceView(View):
    """What a run did, call by call."""

    run_id: str
    snapshot: Annotated[dict[str, Any], DocumentedAs(TraceSnapshot)]
    """The ExecutionGraph: chain_id, root_id, nodes by id, aggregates, snapshot_ts_ms."""
    steps: list[StepView]
    """In the order in which they began."""
    analysis: AnalysisView
    """Where its time and its money went, and what stopped it."""
    graph: GraphShape | None
    """The graph that it executes; null of a case."""
    events_url: str
    """Where the events of the run can be followed."""
    payloads: dict[str, PayloadView] | None = None
    """What calls and steps asked and got, by node id, if the request says ``payloads=true``. A
    call that is missing here would have made it too large; ask for it alone."""

    @classmethod
    def of(cls, trace: Trace, root: str, payloads: Mapping[str, Payload] | None = None) -> Self:
        """Return the view of a trace; its links begin with the path the service is served under."""
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
