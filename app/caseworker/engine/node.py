"""The interface of nodes, which implement step types, and the results and events they return."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

from caseworker.engine.context import FlowContext


@final
@dataclass(slots=True)
class ExecutionResult:
    """The result of a step: JSON values by output handle.

    Not frozen, because a frozen dataclass takes three times as long to construct.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the outputs here, so that the traceback shows the node that is at fault.

        Raises:
            TypeError: the outputs are not a mapping.
        """
        if type(self.outputs) is not dict and not isinstance(self.outputs, Mapping):
            kind = type(self.outputs).__name__
            raise TypeError(f"outputs must be a mapping from output handles to values, not {kind}.")


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A progress report that a node emits while it runs.

    Lifecycle events, such as ``step.started``, are emitted by the engine only.
    """

    type: str
    """Event type: a dotted name that the node chooses, such as ``text.delta``."""
    data: Mapping[str, Any] = field(default_factory=dict)


Execution = (
    ExecutionResult | Awaitable[ExecutionResult] | AsyncIterator[NodeEvent | ExecutionResult]
)
"""Return type of ``Node.execute``: a result, an awaitable result, or a stream of events that ends
with a result."""


class Node(Protocol):
    """Implements one step type."""

    def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Execution:
        """Execute a step; may be a plain function, a coroutine or an async generator.

        ``data`` is the step's configuration; ``inputs`` are the values of its input handles. Any
        Exception fails the step. A stop is a BaseException and must not be caught.
        """
        ...


@runtime_checkable
class Materializing(Protocol):
    """A node whose steps can be linked: they provide a value that other steps depend on."""

    async def materialize(self, data: Any, output_handle: str, context: FlowContext) -> Any:
        """Return the value for the step that the link leads to; the engine passes it on unchanged.

        ``context.runtime`` resolves links that lead to this step itself.
        """
        ...
