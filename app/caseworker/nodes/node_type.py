"""What a graph may be made of, and what the steps of a run must know of it."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from caseworker.engine.concurrency import NodeLock
from caseworker.engine.node import Node
from caseworker.engine.prepared import BoundNode
from caseworker.kernel.graph import DEFAULT_HANDLE, Channel
from caseworker.kernel.problems import Names
from caseworker.kernel.validation import Handles, Traits
from caseworker.llm.table import ModelTable
from caseworker.nodes.reading import StepData

Fault = tuple[str, str]
"""A place inside the data of a step, and what is wrong there."""

NONE: frozenset[str] = frozenset()
"""No handle at all."""

ONE_OUTPUT = Handles(flow_outputs=frozenset({DEFAULT_HANDLE}), link_inputs=NONE, link_outputs=NONE)
"""Any inputs, the output ``default``, and no links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A service of every run: the same whenever the run is executed again."""

    now: datetime
    """The aware time from which relative dates start: when the run was accepted."""
    timezone: str | None = None
    """IANA name of the zone that its caller asked for; None: the configured one."""
    seed: int | None = None
    """What its caller wants sampling to start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A type of step: how its data is read, how it may be joined, and what executes it."""

    name: str
    description: str
    """For people: what it does with its inputs, and what it produces."""
    node: Node
    data: type[StepData]
    handles: Handles = ONE_OUTPUT
    executes: bool = True
    """False: its steps can only be linked."""
    faults: Callable[[Any], Iterable[Fault]] = lambda _: ()
    """Finds in data that was read what its model cannot know, such as names that do not exist."""
    unknown: Callable[[Mapping[str, Any], ModelTable | None], Iterable[Fault]] = lambda *_: ()
    """Finds names that do not exist in the JSON of data, whether or not it can be read. The models
    are those that may be named; None: any."""
    flow_outputs: Callable[[Any], Names] | None = None
    """Finds the output handles of a step in its data; None: they are those of ``handles``."""
    holds: Callable[[Any], frozenset[Hashable]] = lambda _: frozenset()
    """Finds the persistent nodes that a step uses."""
    lock: Callable[[Any], NodeLock | None] = lambda _: None
    """Finds the lock that a step holds while it works."""

    @property
    def usual_traits(self) -> Traits:
        """What holds for its steps, as far as that is known without their data."""
        return Traits(handles=self.handles, executes=self.executes)

    def traits_of(self, data: Any) -> Traits:
        """Return what holds for a step with this data."""
        handles = self.handles
        if self.flow_outputs is not None:
            handles = replace(handles, flow_outputs=self.flow_outputs(data))
        return Traits(handles=handles, holds=self.holds(data), executes=self.executes)

    def bound(self, data: Any) -> BoundNode:
        """Return the node with the data of a step."""
        return BoundNode(self.node, data, self.lock(data))

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
