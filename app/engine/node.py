"""What a step executes."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Protocol, runtime_checkable

from app.engine.context import FlowContext
from app.engine.results import ExecutionResult, NodeEvent

Execution = (
    ExecutionResult | Awaitable[ExecutionResult] | AsyncIterator[NodeEvent | ExecutionResult]
)
"""A result, a result to wait for, or a stream of events that ends in one."""


class Node(Protocol):
    """Executes the steps of one type (seed 004)."""

    def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Execution:
        """Do the step's work: at once, as a coroutine or as an async generator.

        ``data`` configures the step, ``inputs`` are the values routed to its input handles. Any
        Exception is a failure of the step; a stop passes through.
        """
        ...


@runtime_checkable
class Materializing(Protocol):
    """A node that can be linked: it makes what other steps depend on (seed 004)."""

    async def materialize(self, data: Any, output_handle: str, context: FlowContext) -> Any:
        """Return what a consumer at the other end of a link gets; nothing here looks into it.

        ``context.runtime`` resolves the links of the step itself.
        """
        ...
