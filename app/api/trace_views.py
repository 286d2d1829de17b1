"""Traces as callers see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import ConfigDict

from app.runs.service import Trace

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One execution of a step; a step that was begun again after a lost worker has several."""

    __pydantic_config__ = _DOCUMENTED

    step_id: str
    type: str
    node_id: str
    """Its CallNode in the snapshot, below which its calls are."""
    status: str
    """As in the snapshot: created, running, success, fail or halt."""
    started_at: datetime
    finished_at: datetime | None
    stop_reason: str | None
    error_class: str | None

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Self:
        """Return the view of a step's CallNode."""
        ended_ms = node["end_ts_ms"]
        return cls(
            step_id=node["name"],
            type=node["metadata"]["step_type"],
            node_id=node["node_id"],
            status=node["status"],
            started_at=_instant(node["start_ts_ms"]),
            finished_at=None if ended_ms is None else _instant(ended_ms),
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

    @classmethod
    def of(cls, trace: Trace) -> Self:
        """Return the view of a trace."""
        nodes = trace.snapshot["nodes"].values()
        return cls(
            run_id=trace.run.key.run_id,
            snapshot=trace.snapshot,
            steps=[StepView.of(node) for node in nodes if "step_type" in node["metadata"]],
        )


def _instant(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)
