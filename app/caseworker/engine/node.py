"""What a step executes, and what it gives back."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

from caseworker.engine.context import FlowContext


@final
@dataclass(slots=True)
class ExecutionResult:
    """What a step produced: JSON values by output handle.

    Not frozen: that would triple the price of making one.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no mapping, where the node that is to blame can be seen.

        Raises:
            TypeError: the outputs are no mapping.
        """
        if type(self.outputs) is not dict and not isinstance(self.outputs, Mapping):
            kind = type(self.outputs).__name__
            raise TypeError(f"A result holds values by output handle, not {kind}.")


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Progress that a node reports while it works.

    Lifecycle events (``step.started`` and so on) come from the engine alone.
    """

    type: str
    """A dotted word of the node's own, such as ``text.delta``."""
    data: Mapping[str, Any] = field(default_factory=dict)


Execution = (
    ExecutionResult | Awaitable[ExecutionResult] | AsyncIterator[NodeEvent | ExecutionResult]
)
"""A result, a result to wait for, or a stream of events that ends in one."""


class Node(Protocol):
    """Executes the steps of one type."""

    def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Execution:
        """Do the step's work: at once, as a coroutine or as an async generator.

        ``data`` configures the step, ``inputs`` are the values routed to its input handles. Any
        Exception is a failure of the step; a stop passes through.
        """
        ...


@runtime_checkable
class Materializing(Protocol):
    """A node that can be linked: it makes what other steps depend on."""

    async def materialize(self, data: Any, output_handle: str, context: FlowContext) -> Any:
        """Return what a consumer at the other end of a link gets; nothing here looks into it.

        ``context.runtime`` resolves the links of the step itself.
        """
        ...
