"""What nodes give back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(slots=True)
class ExecutionResult:
    """What a step produced: JSON values by output handle.

    Not frozen: that would triple the price of making one.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Progress that a node tells of while it works (seed 004).

    Lifecycle events (``step.started`` and so on) come from the engine alone.
    """

    type: str
    """A dotted word of the node's own, such as ``text.delta``."""
    data: Mapping[str, Any] = field(default_factory=dict)
