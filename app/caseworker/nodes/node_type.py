"""Step types, and the facts about a run that its steps can use."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from caseworker.core.graph.graph import DEFAULT_HANDLE, Channel
from caseworker.core.graph.problems import Names
from caseworker.core.graph.validation import Handles, Traits
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.context import Node
from caseworker.engine.prepared import BoundNode
from caseworker.models.table import ModelTable
from caseworker.nodes.strict_parsing import StepData

Fault = tuple[str, str]
"""An error in a step's data: its position in the data, and a message."""

NONE: frozenset[str] = frozenset()
"""Empty set of handles."""

ONE_OUTPUT = Handles(flow_outputs=frozenset({DEFAULT_HANDLE}), link_inputs=NONE, link_outputs=NONE)
"""Handles of a step type that accepts any inputs, has only the output ``default``, and has no
links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts that are the same in each execution of a run, provided as a run service."""

    now: datetime
    """Timezone-aware time at which the run was accepted; the reference for relative dates."""
    timezone: str | None = None
    """IANA name of the time zone that the caller requested. None means the configured time zone."""
    seed: int | None = None
    """Sampling seed that the caller requested; None if none was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A step type: its data model, its handles, and the node that executes its steps."""

    name: str
    description: str
    """User documentation: how the step type uses its inputs, and which outputs it produces."""
    node: Node
    data: type[StepData]
    handles: Handles = ONE_OUTPUT
    executes: bool = True
    """Whether steps of this type are executed; False if they can only be linked to other steps."""
    faults: Callable[[Any], Iterable[Fault]] = lambda _: ()
    """Callback for graph validation. It returns errors in parsed data that the data model cannot
    detect, such as unknown names."""
    unknown: Callable[[Mapping[str, Any], ModelTable | None], Iterable[Fault]] = lambda *_: ()
    """Callback that returns the unknown names in a step's data, given as JSON that may be invalid.
    The second argument holds the models that may be named; None permits any."""
    flow_outputs: Callable[[Any], Names] | None = None
    """Callback that returns the output handles of a step with the given data. None means that all
    steps have the outputs in ``handles``."""
    holds: Callable[[Any], frozenset[Hashable]] = lambda _: frozenset()
    """Callback that returns the persistent nodes that a step with the given data uses. A persistent
    node has its own state, so only one step at a time may use it."""
    lock: Callable[[Any], NodeLock | None] = lambda _: None
    """Callback that returns the lock to hold while a step with the given data runs; None means no
    lock."""

    @property
    def usual_traits(self) -> Traits:
        """Traits (such as handles) of the type's steps that do not depend on a step's data."""
        return Traits(handles=self.handles, executes=self.executes)

    def traits_of(self, data: Any) -> Traits:
        """Return the traits (such as handles) of a step with the given data."""
        handles = self.handles
        if self.flow_outputs is not None:
            handles = replace(handles, flow_outputs=self.flow_outputs(data))
        return Traits(handles=handles, holds=self.holds(data), executes=self.executes)

    def bound(self, data: Any) -> BoundNode:
        """Return the type's node together with a step's data and lock."""
        return BoundNode(self.node, data, self.lock(data))

    def describe(self) -> dict[str, Any]:
        """Return the step type's user documentation as JSON."""
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
