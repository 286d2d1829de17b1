"""What can be wrong with a graph, and how the names in it are put into a message."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from caseworker.kernel.graph import Channel

_LONGEST_NAME_CHARS = 60
_MOST_NAMES = 10


def quoted(name: object) -> str:
    """Return ``name`` as Python would write it, cut to a length that leaves a sentence readable."""
    return _cut(repr(name))


def listed(names: Iterable[str]) -> str:
    """Return ``names`` in alphabetical order, the first few of them if they are many."""
    ordered = sorted(names)
    shown = ", ".join(quoted(name) for name in ordered[:_MOST_NAMES])
    more = len(ordered) - _MOST_NAMES
    return shown if more <= 0 else f"{shown} and {more} more"


def path_of(steps: Sequence[str]) -> str:
    """Return ``a -> b -> a``; the middle of a long path is left out."""
    shown = [_cut(repr(step)[1:-1]) for step in steps]
    left_out = len(shown) - _MOST_NAMES
    if left_out > 0:
        half = _MOST_NAMES // 2
        shown = [*shown[:half], f"({left_out} more)", *shown[-half:]]
    return " -> ".join(shown)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME_CHARS else f"{text[: _LONGEST_NAME_CHARS - 3]}..."


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
