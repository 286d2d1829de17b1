"""What the calls of each step used, found in one pass through a graph."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from app.trace.charges import FREE
from app.trace.node import ATTEMPT, NodeFields


@dataclass(slots=True)
class StepUse:
    """What one step came to; a call counts for the nearest step above it alone."""

    node: NodeFields
    """The step's own CallNode."""
    nested_in: str | None
    """The CallNode of the step around it."""
    attempt_nodes: int = 0
    """How many attempts stand below it; none if the first one was enough."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal = FREE

    @property
    def attempts(self) -> int:
        """How often it was tried; a fallback is a try too."""
        return self.attempt_nodes or 1

    def add(self, cost_usd: Decimal, tokens_in: int, tokens_out: int) -> None:
        """Add what something below it used."""
        self.cost_usd += cost_usd
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out


def uses_of(nodes: Iterable[NodeFields], steps: Container[str]) -> dict[str, StepUse]:
    """Return what each of ``steps`` (ids of CallNodes) used, in the order of ``nodes``.

    Every parent must stand before its children. Attempts carry no usage: nothing counts twice.
    """
    uses: dict[str, StepUse] = {}
    nearest: dict[str | None, StepUse] = {}
    for node in nodes:
        node_id, parent_id = node["node_id"], node["parent_id"]
        use = nearest.get(parent_id)
        if node_id in steps:
            use = uses[node_id] = StepUse(node, None if use is None else use.node["node_id"])
        elif use is None:
            continue
        elif parent_id == use.node["node_id"] and node["name"] == ATTEMPT:
            use.attempt_nodes += node["kind"] == "system"
        nearest[node_id] = use
        cost = node["cost_usd"]
        use.add(
            Decimal(str(cost)) if cost else FREE, node["tokens_in"] or 0, node["tokens_out"] or 0
        )
    return uses


def add_nested(uses: Mapping[str, StepUse]) -> None:
    """Add to each step what the steps nested in it used."""
    for use in reversed(list(uses.values())):
        if use.nested_in is not None:
            uses[use.nested_in].add(use.cost_usd, use.tokens_in, use.tokens_out)
