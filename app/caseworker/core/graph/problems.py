"""Problems found when a graph is validated, and helpers that format names in messages."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from caseworker.core.graph.graph import Channel

_LONGEST_NAME_CHARS = 60
_MAX_NAMES = 10


def quoted(name: object) -> str:
    """Return the ``repr`` of ``name``, cut to 60 characters so that messages stay readable."""
    return _cut(repr(name))


def listed(names: Iterable[str]) -> str:
    """List up to ten ``names`` in alphabetical order, then say how many more there are."""
    ordered = sorted(names)
    text = ", ".join(quoted(name) for name in ordered[:_MAX_NAMES])
    more = len(ordered) - _MAX_NAMES
    return text if more <= 0 else f"{text} and {more} more"


def path_text(steps: Sequence[str]) -> str:
    """Format a path of steps as ``a -> b -> a``; beyond ten steps, the middle is omitted."""
    labels = [_cut(repr(step)[1:-1]) for step in steps]
    left_out = len(labels) - _MAX_NAMES
    if left_out > 0:
        half = _MAX_NAMES // 2
        labels = [*labels[:half], f"({left_out} more)", *labels[-half:]]
    return " -> ".join(labels)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME_CHARS else f"{text[: _LONGEST_NAME_CHARS - 3]}..."


Names = frozenset[str] | None
"""Names of the existing handles; None if any name is valid."""


class Severity(StrEnum):
    """How serious a problem is: errors reject the graph, warnings do not."""

    ERROR = "error"
    """The graph is rejected, because it cannot be executed."""
    WARNING = "warning"
    """The graph can be executed, but it probably does not do what its author intended."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One validation problem: its location in the graph, and a message with advice."""

    place: str
    """Location of the problem: a dotted path from the root of the graph, such as ``steps.3.id``."""
    message: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Handles:
    """Handles that a step's edges may use, by channel and direction; an empty set allows none.

    None allows any name. Inputs that one channel names are not open to the other channel's None.
    """

    flow_inputs: Names = None
    flow_outputs: Names = None
    link_inputs: Names = None
    link_outputs: Names = None

    def inputs(self, channel: Channel) -> Names:
        """Return the input handles for edges of ``channel``."""
        return self.flow_inputs if channel == Channel.FLOW else self.link_inputs

    def outputs(self, channel: Channel) -> Names:
        """Return the output handles for edges of ``channel``."""
        return self.flow_outputs if channel == Channel.FLOW else self.link_outputs


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a step's node that validation needs."""

    handles: Handles = Handles()
    holds: frozenset[Hashable] = frozenset()
    """Persistent nodes that the step uses, including those used in its nested graphs."""
    executes: bool = True
    """Whether the step can be executed; if not, other steps can only link to it."""
