"""Traces as callers see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, cast

from pydantic import ConfigDict

from app.api.run_views import Links
from app.api.trace_analysis_views import AnalysisView
from app.engine.step_path import StepPath
from app.runs.service import Trace
from app.trace.analysis import duration_ms
from app.trace.node import Node, number_of
from app.trace.snapshot import Snapshot
from app.trace.step_trace import StepUse, add_nested, uses_of

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One execution of a step; a step that was begun again after a lost worker has several."""

    __pydantic_config__ = _DOCUMENTED

    step_id: str
    """Its id in its own graph."""
    path: str
    """Where it stands in the run: ``outer/inner`` for a step of a nested graph."""
    type: str
    node_id: str
    """Its CallNode in the snapshot, below which its calls are."""
    status: str
    """As in the snapshot: created, running, success, fail or halt."""
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
    cost_usd: float
    """Of all calls below it, those of steps nested in it included."""
    stop_reason: str | None
    error_class: str | None

    @classmethod
    def of(cls, node: Node, use: StepUse, snapshot: Snapshot) -> Self:
        """Return the view of a step's CallNode and of what was used below it."""
        path, ended_ms = node["name"], node["end_ts_ms"]
        return cls(
            step_id=path if use.nested_in is None else StepPath(path).step_id,
            path=path,
            type=str(node["metadata"]["step_type"]),
            node_id=node["node_id"],
            status=node["status"],
            started_at=_instant(node["start_ts_ms"]),
            finished_at=None if ended_ms is None else _instant(ended_ms),
            duration_ms=duration_ms(node, snapshot),
            retries=use.attempts - 1,
            tokens_in=use.tokens_in,
            tokens_out=use.tokens_out,
            cost_usd=float(use.cost_usd),
            stop_reason=node["stop_reason"],
            error_class=node["error_class"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """What a run did, call by call."""

    __pydantic_config__ = _DOCUMENTED

    run_id: str
    snapshot: Mapping[str, Any]
    """The ExecutionGraph: chain_id, root_id, nodes by id, aggregates, snapshot_ts_ms."""
    steps: Sequence[StepView]
    """In the order in which they began."""
    analysis: AnalysisView
    """Where its time and its money went, and what stopped it."""
    events_url: str
    """Where the events of the run can be followed."""

    @classmethod
    def of(cls, trace: Trace, root: str) -> Self:
        """Return the view of a trace; its links begin with the path the service is served under."""
        run_id, snapshot = trace.run.key.run_id, cast("Snapshot", trace.snapshot)
        return cls(
            run_id=run_id,
            snapshot=trace.snapshot,
            steps=_steps_of(snapshot),
            analysis=AnalysisView.of(snapshot),
            events_url=Links.of(run_id, root).events,
        )


def _steps_of(snapshot: Snapshot) -> list[StepView]:
    nodes = sorted(snapshot["nodes"].values(), key=lambda node: number_of(node["node_id"]))
    steps = {node["node_id"]: node for node in nodes if "step_type" in node["metadata"]}
    uses = uses_of(nodes, steps)
    add_nested(uses)
    return [StepView.of(node, uses[node_id], snapshot) for node_id, node in steps.items()]


def _instant(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)
