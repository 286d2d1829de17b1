"""A step that calls a function which the service was built with.

Functions come from the process alone; a graph can name one, and nothing else.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from caseworker.engine.concurrency import NodeLock
from caseworker.engine.context import FlowContext, Outputs
from caseworker.engine.node import ExecutionResult
from caseworker.kernel.graph import DEFAULT_HANDLE
from caseworker.kernel.problems import quoted
from caseworker.nodes.function import FunctionNode, execution_context
from caseworker.nodes.node_type import Fault, NodeType
from caseworker.nodes.reading import JsonField, StepData


class FunctionData(StepData):
    """Which function, and what for."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """A function that is registered in this process."""
    args: JsonField | None = None
    """Its input; left out, it is the input default of the step."""


class RegisteredFunctions:
    """Calls the functions of a process by name."""

    def __init__(self, functions: Iterable[FunctionNode]) -> None:
        """Take the functions, which are known by the ids of their nodes."""
        self._functions = {function.id: function for function in functions}

    async def execute(
        self, data: FunctionData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Call the function of a step; what it returns is the output ``default``.

        Raises:
            MissingValueError: the arguments have a place for which there is no value.
            Exception: whatever the function raises.
        """
        given = inputs.get(DEFAULT_HANDLE)
        if data.args is not None:
            given = data.args.render(inputs, context.limits)
        found = await self._functions[data.name].execute(execution_context(context, given))
        return ExecutionResult({DEFAULT_HANDLE: found})

    def faults(self, data: FunctionData) -> list[Fault]:
        """Return what is wrong with a step: its function may not exist."""
        if data.name in self._functions:
            return []
        return [("name", f"No function {quoted(data.name)} is registered here.")]

    def lock(self, data: FunctionData) -> NodeLock | None:
        """Return the lock of a persistent function."""
        return self._functions[data.name].lock

    def holds(self, data: FunctionData) -> frozenset[Any]:
        """Return the persistent functions that a step uses."""
        function = self._functions[data.name]
        return frozenset({function.id}) if function.persistent else frozenset()


def function_type(functions: Iterable[FunctionNode]) -> NodeType:
    """Return the type of steps that call one of these functions."""
    registered = RegisteredFunctions(functions)
    return NodeType(
        name="function",
        description="Calls a function that is registered in this process."
        " What it returns leaves on default.",
        node=registered,
        data=FunctionData,
        faults=registered.faults,
        holds=registered.holds,
        lock=registered.lock,
    )
