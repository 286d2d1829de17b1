"""The step type that calls a Python function registered in this process.

A graph can only name a function; it cannot contain code.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.graph.problems import quoted
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.context import ExecutionResult, FlowContext, Outputs
from caseworker.nodes.function import FunctionNode, RunFunction, run_plainly
from caseworker.nodes.node_type import Fault, NodeType
from caseworker.nodes.strict_parsing import JsonField, StepData


class FunctionData(StepData):
    """The function to call and its input."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """Name of a function registered in this process."""
    args: JsonField | None = None
    """Input for the function. Default: the step's input ``default``."""


class RegisteredFunctions:
    """Calls registered functions by name."""

    def __init__(self, functions: Iterable[FunctionNode], run: RunFunction) -> None:
        """Register the functions under the IDs of their nodes; ``run`` runs them."""
        self._run = run
        self._functions = {function.id: function for function in functions}

    async def execute(
        self, data: FunctionData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Call the step's function and return its result as the output ``default``.

        Raises:
            MissingValueError: the arguments refer to a value that does not exist.
            Exception: the function raised it.
        """
        arguments = inputs.get(DEFAULT_HANDLE)
        if data.args is not None:
            arguments = data.args.render(inputs, context.limits)
        result = await self._run(self._functions[data.name], context, arguments)
        return ExecutionResult({DEFAULT_HANDLE: result})

    def faults(self, data: FunctionData) -> list[Fault]:
        """Return one fault if no function has the step's name; otherwise an empty list."""
        if data.name in self._functions:
            return []
        return [("name", f"No function {quoted(data.name)} is registered here.")]

    def lock(self, data: FunctionData) -> NodeLock | None:
        """Return the function's lock if it is persistent (has its own state); otherwise None."""
        return self._functions[data.name].lock

    def holds(self, data: FunctionData) -> frozenset[Any]:
        """Return the ID of the step's function if it is persistent; otherwise an empty set."""
        function = self._functions[data.name]
        return frozenset({function.id}) if function.persistent else frozenset()


def function_type(functions: Iterable[FunctionNode], run: RunFunction = run_plainly) -> NodeType:
    """Return the step type that calls one of ``functions`` by name."""
    registered = RegisteredFunctions(functions, run)
    return NodeType(
        name="function",
        description="Calls a function that is registered in this process."
        " The output default has its return value.",
        node=registered,
        data=FunctionData,
        faults=registered.faults,
        holds=registered.holds,
        lock=registered.lock,
    )
