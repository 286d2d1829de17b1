"""What validation says, and what it must be told of the nodes behind the steps."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from app.kernel.graph import Channel

Names = frozenset[str] | None
"""The handles there are; None: any name is one."""


class Severity(StrEnum):
    """What a problem means for the graph."""

    ERROR = "error"
    """The graph is refused."""
    WARNING = "warning"
    """The graph can be executed; its author may have meant something else."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at one place of a graph, and what to do about it."""

    place: str
    """Dotted, from the root of the graph, such as ``steps.3.id`` or ``entry.1``."""
    message: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Handles:
    """The handles by which a step can be joined; an empty set refuses the channel altogether."""

    flow_inputs: Names = None
    flow_outputs: Names = None
    link_inputs: Names = None
    link_outputs: Names = None

    def inputs(self, channel: Channel) -> Names:
        """Return the handles to which edges of ``channel`` may lead."""
        return self.flow_inputs if channel == Channel.FLOW else self.link_inputs

    def outputs(self, channel: Channel) -> Names:
        """Return the handles from which edges of ``channel`` may come."""
        return self.flow_outputs if channel == Channel.FLOW else self.link_outputs


@dataclass(frozen=True, slots=True)
class Traits:
    """What validation must know of the node that executes a step."""

    handles: Handles = Handles()
    holds: frozenset[Hashable] = frozenset()
    """The persistent nodes that the step uses, also those inside a nested graph."""
    executes: bool = True
    """False: the step can only be linked."""
