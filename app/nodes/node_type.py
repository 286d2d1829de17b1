"""What a graph may be made of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.engine.node import Node
from app.engine.prepared import BoundNode
from app.kernel.graph import Channel
from app.kernel.validation import Handles, Traits
from app.nodes.reading import StepData

Fault = tuple[str, str]
"""A place inside the data of a step, and what is wrong there."""

NONE: frozenset[str] = frozenset()
"""No handle at all."""


def _no_faults(_: Any) -> Iterable[Fault]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A type of step: how its data is read, how it may be joined, and what executes it."""

    name: str
    description: str
    """For people: what it does with its inputs, and what it produces."""
    node: Node
    data: type[StepData]
    handles: Handles
    executes: bool = True
    """False: its steps can only be linked."""
    faults: Callable[[Any], Iterable[Fault]] = _no_faults
    """Finds in data that was read what its model cannot know, such as names that do not exist."""
    traits: Callable[[Any], Traits] | None = None
    """Where they depend on the data of the step; None: what stands here holds for all."""
    work: Callable[[Any], BoundNode] | None = None
    """Where it takes more than the node and the data of the step."""

    @property
    def usual_traits(self) -> Traits:
        """What holds for its steps, as far as that is known without their data."""
        return Traits(handles=self.handles, executes=self.executes)

    def traits_of(self, data: Any) -> Traits:
        """Return what holds for a step with this data."""
        return self.usual_traits if self.traits is None else self.traits(data)

    def bound(self, data: Any) -> BoundNode:
        """Return the node with the data of a step."""
        return BoundNode(self.node, data) if self.work is None else self.work(data)

    def describe(self) -> dict[str, Any]:
        """Return what its users must know, as JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "executes": self.executes,
            "inputs": {c.value: _names(self.handles.inputs(c)) for c in Channel},
            "outputs": {c.value: _names(self.handles.outputs(c)) for c in Channel},
            "data": self.data.model_json_schema(),
        }


def _names(handles: frozenset[str] | None) -> list[str] | None:
    """Return the names in order; None means any."""
    return None if handles is None else sorted(handles)
