"""Prepared graphs: validated, with bound nodes, and reusable for any number of executions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.graph.graph import Edge, Graph, Step
from caseworker.core.graph.topology import Topology
from caseworker.core.trace.json_values import Metadata
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.node import Node
from caseworker.engine.step_path import StepPath


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with its configuration."""

    node: Node
    data: Any = None
    """The parsed and validated configuration, in the type that the node expects."""
    lock: NodeLock | None = None
    """The lock of a persistent node, held during each attempt; None for other nodes."""
    node_id: str | None = None
    """The node's name in traces; None uses the step ID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """A step with its node, error policy and budget."""

    step: Step
    work: BoundNode
    policy: ErrorPolicy | None = None
    """None: the first failure fails the step."""
    fallback: BoundNode | None = None
    """The node to execute if the policy's ``on_error`` is ``fallback``."""
    sub_budget: Budget | None = None
    path: StepPath = field(init=False)
    """The path of the step if its graph is the outermost one."""
    metadata: Metadata = field(init=False)
    """The metadata of the step's CallNodes."""
    direct: bool = field(init=False)
    """True if the node can be called directly: no lock, no sub-budget and no timeout."""

    def __post_init__(self) -> None:
        timeout_ms = None if self.policy is None else self.policy.timeout_ms
        limits = (timeout_ms, self.sub_budget, self.work.lock)
        object.__setattr__(self, "direct", limits == (None, None, None))
        object.__setattr__(self, "path", StepPath(self.step.id))
        object.__setattr__(self, "metadata", Metadata({"step_type": self.step.type}))


class PreparedGraph:
    """A graph with its topology and its prepared steps by ID."""

    __slots__ = ("graph", "shared_handles", "steps", "topology")

    def __init__(self, graph: Graph, steps: Mapping[str, PreparedStep]) -> None:
        """Compute the topology of ``graph``; raise GraphError if the graph is inconsistent."""
        self.graph = graph
        self.topology = Topology(graph)
        self.steps = steps
        self.shared_handles = {
            step_id: shared
            for step_id, edges in self.topology.incoming.items()
            if (shared := _shared(edges))
        }
        """By step, the input handles with several incoming edges."""


def _shared(edges: Sequence[Edge]) -> frozenset[str]:
    if len(edges) == 1:
        return frozenset()
    counts = Counter(edge.target_handle for edge in edges)
    return frozenset(handle for handle, count in counts.items() if count > 1)
