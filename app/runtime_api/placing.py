"""Nodes placed in a graph, and what the engine makes of them."""

from dataclasses import dataclass
from typing import Any, Protocol

from app.control.budget import Budget
from app.control.retry import ErrorPolicy
from app.engine.concurrency import NodeLock
from app.engine.context import ExecutionContext
from app.engine.prepared import BoundNode, PreparedStep
from app.kernel.graph import Step as Placed
from app.nodes.function import ContextNode


class Executable(Protocol):
    """What a step can execute, such as a FunctionNode or a whole Graph."""

    @property
    def id(self) -> str:
        """Names the node in traces."""
        ...

    async def execute(self, context: ExecutionContext) -> Any:
        """Do the work and return its result."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node placed in a graph."""

    id: str
    node: Executable | BoundNode
    input: Any = None
    """What the node finds as ``context.input``; None: what the graph itself was given."""
    depends_on: tuple[str, ...] = ()
    error_policy: ErrorPolicy | None = None
    sub_budget: Budget | None = None


def prepared(step: Step) -> PreparedStep:
    """Return a step as the engine executes it."""
    policy = step.error_policy
    fallback = None if policy is None else policy.fallback_node
    return PreparedStep(
        step=Placed(id=step.id, type=type_of(step.node)),
        work=_bound(step.node, step.input),
        policy=policy,
        fallback=None if fallback is None else _bound(fallback, step.input),
        sub_budget=step.sub_budget,
    )


def _bound(node: Executable | BoundNode, step_input: Any) -> BoundNode:
    if isinstance(node, BoundNode):
        return node
    return BoundNode(ContextNode(node, step_input), step_input, lock_of(node), node.id)


def type_of(node: Executable | BoundNode) -> str:
    """Return what traces call the kind of a node."""
    return type(node.node if isinstance(node, BoundNode) else node).__name__


def lock_of(node: Executable | BoundNode) -> NodeLock | None:
    """Return the lock that a node takes while it works.

    Raises:
        TypeError: it is persistent and has none.
    """
    if isinstance(node, BoundNode):
        return node.lock
    if not getattr(node, "persistent", False):
        return None
    lock = getattr(node, "lock", None)
    if not isinstance(lock, NodeLock):
        raise TypeError(
            f"Persistent node {node.id!r} has no lock: give it an attribute lock = NodeLock(id)."
        )
    return lock
