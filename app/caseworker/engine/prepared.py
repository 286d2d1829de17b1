"""A graph that was checked, with everything its steps need, ready to be executed many times."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caseworker.control.budget import Budget
from caseworker.control.retry import ErrorPolicy
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.node import Node
from caseworker.engine.step_path import StepPath
from caseworker.kernel.graph import Edge, Graph, Step
from caseworker.kernel.topology import Topology
from caseworker.trace.json_values import Metadata


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with what it works on."""

    node: Node
    data: Any = None
    """Read and checked, in the form that the node wants."""
    lock: NodeLock | None = None
    """Of a persistent node: held while it works."""
    node_id: str | None = None
    """What traces call the node; None: as the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """A step with its work and its limits."""

    step: Step
    work: BoundNode
    policy: ErrorPolicy | None = None
    """None: the first failure is the step's failure."""
    fallback: BoundNode | None = None
    """Works in place of ``work`` where the policy says ``fallback``."""
    sub_budget: Budget | None = None
    path: StepPath = field(init=False)
    """Of the step in an outermost graph."""
    metadata: Metadata = field(init=False)
    """Of the step's CallNodes."""
    direct: bool = field(init=False)
    """Whether no lock, no budget of its own and no timeout stands between the step and its node."""

    def __post_init__(self) -> None:
        timeout_ms = None if self.policy is None else self.policy.timeout_ms
        limits = (timeout_ms, self.sub_budget, self.work.lock)
        object.__setattr__(self, "direct", limits == (None, None, None))
        object.__setattr__(self, "path", StepPath(self.step.id))
        object.__setattr__(self, "metadata", Metadata({"step_type": self.step.type}))


class PreparedGraph:
    """A graph, the way through it, and its steps by id."""

    __slots__ = ("graph", "shared_handles", "steps", "topology")

    def __init__(self, graph: Graph, steps: Mapping[str, PreparedStep]) -> None:
        """Join a graph with its steps, or raise GraphError: they do not fit together."""
        self.graph = graph
        self.topology = Topology(graph)
        self.steps = steps
        self.shared_handles = {
            step_id: shared
            for step_id, edges in self.topology.incoming.items()
            if (shared := _shared(edges))
        }
        """By step, the input handles that several edges lead to."""


def _shared(edges: Sequence[Edge]) -> frozenset[str]:
    if len(edges) == 1:
        return frozenset()
    counts = Counter(edge.target_handle for edge in edges)
    return frozenset(handle for handle, count in counts.items() if count > 1)
