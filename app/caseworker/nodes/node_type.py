"""Step types, and the facts about a run that its steps can use."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from caseworker.core.graph.graph import DEFAULT_HANDLE, Channel
from caseworker.core.graph.problems import Names
from caseworker.core.graph.validation import Handles, Traits
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.node import Node
from caseworker.engine.prepared import BoundNode
from caseworker.models.table import ModelTable
from caseworker.nodes.reading import StepData

Fault = tuple[str, str]
"""A position inside the data of a step, and an error message."""

NONE: frozenset[str] = frozenset()
"""No handles."""

ONE_OUTPUT = Handles(flow_outputs=frozenset({DEFAULT_HANDLE}), link_inputs=NONE, link_outputs=NONE)
"""Any inputs, the output ``default``, and no links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A service of every run; equal each time the run is executed."""

    now: datetime
    """The timezone-aware reference time for relative dates: when the run was accepted."""
    timezone: str | None = None
    """IANA name of the time zone that the caller requested; None: the configured one."""
    seed: int | None = None
    """The sampling seed that the caller requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A step type: its data model, its handles, and the node that executes it."""

    name: str
    description: str
    """Documentation for users: how it uses its inputs, and what it produces."""
    node: Node
    data: type[StepData]
    handles: Handles = ONE_OUTPUT
    executes: bool = True
    """False: its steps can only be linked."""
    faults: Callable[[Any], Iterable[Fault]] = lambda _: ()
    """Finds errors in parsed data that the data model cannot detect, such as unknown names."""
    unknown: Callable[[Mapping[str, Any], ModelTable | None], Iterable[Fault]] = lambda *_: ()
    """Finds unknown names in the JSON of data, whether or not it is valid. The table holds the
    models that may be named; None permits any."""
    flow_outputs: Callable[[Any], Names] | None = None
    """Returns the output handles of a step with this data; None: those of ``handles``."""
    holds: Callable[[Any], frozenset[Hashable]] = lambda _: frozenset()
    """Returns the persistent nodes that a step uses."""
    lock: Callable[[Any], NodeLock | None] = lambda _: None
    """Returns the lock that a step holds while it runs."""

    @property
    def usual_traits(self) -> Traits:
        """The traits of its steps, as far as they are known without data."""
        return Traits(handles=self.handles, executes=self.executes)

    def traits_of(self, data: Any) -> Traits:
        """Return the traits of a step with this data."""
        handles = self.handles
        if self.flow_outputs is not None:
            handles = replace(handles, flow_outputs=self.flow_outputs(data))
        return Traits(handles=handles, holds=self.holds(data), executes=self.executes)

    def bound(self, data: Any) -> BoundNode:
        """Return the node with the data of a step."""
        return BoundNode(self.node, data, self.lock(data))

    def describe(self) -> dict[str, Any]:
        """Return the documentation for users as JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "executes": self.executes,
            "inputs": {c.value: _names(self.handles.inputs(c)) for c in Channel},
            "outputs": {c.value: _names(self.handles.outputs(c)) for c in Channel},
            "data": self.data.model_json_schema(),
        }


def _names(handles: frozenset[str] | None) -> list[str] | None:
    """Return the names sorted; None means any."""
    return None if handles is None else sorted(handles)
