"""The node interface: what a step executes, and its results and events."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

from caseworker.engine.context import FlowContext


@final
@dataclass(slots=True)
class ExecutionResult:
    """The result of a step: JSON values by output handle.

    Not frozen, because a frozen dataclass costs three times as much to construct.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate early, so that the traceback shows the node that is at fault.

        Raises:
            TypeError: the outputs are not a mapping.
        """
        if type(self.outputs) is not dict and not isinstance(self.outputs, Mapping):
            kind = type(self.outputs).__name__
            raise TypeError(f"A result holds values by output handle, not {kind}.")


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Progress that a node reports while it runs.

    Only the engine emits lifecycle events, such as ``step.started``.
    """

    type: str
    """A dotted name chosen by the node, such as ``text.delta``."""
    data: Mapping[str, Any] = field(default_factory=dict)


Execution = (
    ExecutionResult | Awaitable[ExecutionResult] | AsyncIterator[NodeEvent | ExecutionResult]
)
"""A result, an awaitable result, or a stream of events that ends with a result."""


class Node(Protocol):
    """Implements one step type: executes its steps."""

    def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Execution:
        """Execute a step synchronously, as a coroutine or as an async generator.

        ``data`` is the step's configuration; ``inputs`` are the values of its input handles. Any
        Exception fails the step; a stop is a BaseException and must not be caught.
        """
        ...


@runtime_checkable
class Materializing(Protocol):
    """A node that can be linked: it provides a dependency of other steps."""

    async def materialize(self, data: Any, output_handle: str, context: FlowContext) -> Any:
        """Return the value for the consumer of a link; the engine treats it as opaque.

        ``context.runtime`` resolves the links of the step itself.
        """
        ...
