"""What a trace tells of a run as a whole, as callers see it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from pydantic import ConfigDict

from app.trace.analysis import (
    Segment,
    TimeShare,
    costs_by_model,
    costs_by_tier,
    critical_path,
    first_halted,
    time_shares,
)
from app.trace.node import Node
from app.trace.snapshot import Snapshot

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """A stretch of time in which one node alone held up the end of the run."""

    __pydantic_config__ = _DOCUMENTED

    node_id: str
    name: str
    after_ms: int
    """When it began, counted from the beginning of the run."""
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShareView:
    """How long the calls of one sort were at work themselves, not waiting for calls below them."""

    __pydantic_config__ = _DOCUMENTED

    kind: str
    name: str
    model: str | None
    count: int
    own_ms: int
    """Calls that overlap count each for itself."""

    @classmethod
    def of(cls, share: TimeShare) -> Self:
        """Return the view of a share."""
        return cls(**asdict(share))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCostView:
    """What the calls of one model cost in one tier, failed and halted ones included."""

    __pydantic_config__ = _DOCUMENTED

    model: str
    tier: str | None
    """``small`` or ``big``."""
    count: int
    cost_usd: float
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCostView:
    """What the calls of one tier cost, whatever its models."""

    __pydantic_config__ = _DOCUMENTED

    tier: str | None
    """``small`` or ``big``; null stands for models that belong to neither."""
    count: int
    cost_usd: float
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopView:
    """The call that hit a limit or a stop."""

    __pydantic_config__ = _DOCUMENTED

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisView:
    """Where the time and the money of a run went, and what stopped it."""

    __pydantic_config__ = _DOCUMENTED

    critical_path: Sequence[SegmentView]
    """Which calls determined the end of the run, from its beginning to its end."""
    time: Sequence[TimeShareView]
    """The longest first."""
    cost_by_model: Sequence[ModelCostView]
    """The dearest first."""
    cost_by_tier: Sequence[TierCostView]
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
            time=[TimeShareView.of(share) for share in time_shares(snapshot)],
            cost_by_model=[ModelCostView(**asdict(cost)) for cost in costs_by_model(snapshot)],
            cost_by_tier=[TierCostView(**asdict(cost)) for cost in costs_by_tier(snapshot)],
            stopped_at=None if halted is None else StopView.of(halted, began_ms),
        )
