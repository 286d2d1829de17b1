"""Prepared graphs: validated, with their nodes configured, and executable any number of times.

See docs/internals.md, "How a graph is executed".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.graph.graph import Edge, GraphStep, StepGraph
from caseworker.core.graph.topology import Topology
from caseworker.core.trace.json_values import Metadata
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.context import Node
from caseworker.engine.step_path import StepPath


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node together with its configuration for one step."""

    node: Node
    data: Any = None
    """Parsed and validated configuration, in the type that the node expects."""
    lock: NodeLock | None = None
    """Lock of a persistent node, held during each attempt; None for other nodes."""
    node_id: str | None = None
    """Name of the node in traces; None uses the step ID."""

    @property
    def replays(self) -> bool:
        """Whether a repeated execution only repeats recorded work, and continues after it."""
        return getattr(self.node, "replays", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """A step with its node, error policy and budget."""

    step: GraphStep
    work: BoundNode
    policy: ErrorPolicy | None = None
    """Error policy of the step; None means that the first failure fails the step."""
    fallback: BoundNode | None = None
    """Node to execute if the policy's ``on_error`` is ``fallback``; otherwise None."""
    sub_budget: Budget | None = None
    path: StepPath = field(init=False)
    """Path of the step, if its graph is the outermost one."""
    record_key: str = field(init=False)
    """Journal key of the step with this path."""
    metadata: Metadata = field(init=False)
    """Metadata for the step's CallNodes."""
    direct: bool = field(init=False)
    """Whether the engine can call the node directly: it has no lock, no sub-budget and no
    timeout."""

    def __post_init__(self) -> None:
        timeout_ms = None if self.policy is None else self.policy.timeout_ms
        limits = (timeout_ms, self.sub_budget, self.work.lock)
        object.__setattr__(self, "direct", limits == (None, None, None))
        object.__setattr__(self, "path", StepPath(self.step.id))
        object.__setattr__(self, "record_key", self.path.record_key)
        object.__setattr__(self, "metadata", _metadata_of(self.step.type))


class PreparedGraph:
    """A graph with its topology and its prepared steps by ID."""

    __slots__ = ("graph", "shared_handles", "steps", "topology")

    def __init__(self, graph: StepGraph, steps: Mapping[str, PreparedStep]) -> None:
        """Compute the topology of ``graph``.

        Raises:
            GraphError: the graph is inconsistent.
        """
        self.graph = graph
        self.topology = Topology(graph)
        self.steps = steps
        self.shared_handles = {
            step_id: shared
            for step_id, edges in self.topology.incoming.items()
            if (shared := _shared(edges))
        }
        """Input handles that have several incoming edges, by step ID."""


@lru_cache
def _metadata_of(step_type: str) -> Metadata:
    return Metadata({"step_type": step_type})


def _shared(edges: Sequence[Edge]) -> frozenset[str]:
    if len(edges) == 1:
        return frozenset()
    counts = Counter(edge.target_handle for edge in edges)
    return frozenset(handle for handle, count in counts.items() if count > 1)
