"""Nodes that call Python functions."""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Protocol, TypeVar

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.containment import STOPS, in_thread
from caseworker.engine.context import (
    Execution,
    ExecutionContext,
    ExecutionResult,
    FlowContext,
    Node,
    Outputs,
)
from caseworker.platform.code_table import Executing, executing
from caseworker.platform.fair_threads import FairThreads

Result = TypeVar("Result")

DEFAULT_THREADS = 8


class BlockingPool:
    """A thread pool of limited size that tenants share; functions that exceed it are queued."""

    def __init__(self, max_threads: int = DEFAULT_THREADS) -> None:
        self._threads = FairThreads(max_threads, "blocking")

    async def run(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run a function in a thread, with the caller's context variables.

        Cancellation does not wait for the thread. A queued function is dropped, and the result of a
        running one is discarded.
        """
        return await in_thread(partial(fn, *args), self._threads, unchanged=STOPS)

    def close(self) -> None:
        """Reject new functions and drop queued ones, without waiting for running threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


Function = Callable[[ExecutionContext], Any]
"""Python function that a node calls with the step's context. It returns a value or an awaitable."""


class ContextualNode(Protocol):
    """A node that receives one context object instead of data, inputs and handles."""

    @property
    def id(self) -> str:
        """ID of the node. Several steps may use the same node."""
        ...

    def execute(self, context: ExecutionContext) -> Any:
        """Execute the node; return its output, or an awaitable for it."""
        ...


class FunctionNode:
    """A node that calls a Python function.

    A synchronous function runs on the event loop. Mark it as ``blocking`` if it blocks; it then
    runs in a thread.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the public name
        fn: Function,
        *,
        persistent: bool = False,
        blocking: bool = False,
    ) -> None:
        """Create a node that calls ``fn``.

        A ``persistent`` node has its own state, so only one step at a time uses it. A ``blocking``
        function is called in a thread.

        A synchronous function runs in the context of its graph's task, so later steps may see
        context variables that it sets. Pass data to later steps through the return value.

        Raises:
            ValueError: ``fn`` is a generator function, or a coroutine function marked as blocking.
        """
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ValueError(
                f"The function of node {id!r} is a generator function: return a list instead."
            )
        if blocking and inspect.iscoroutinefunction(fn):
            raise ValueError("A coroutine function cannot be blocking: it runs on the event loop.")
        self.id = id
        self.fn = fn
        self.persistent = persistent
        self.blocking = blocking
        self.lock = NodeLock(id) if persistent else None
        """Held by the step that uses a persistent node."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    async def execute(self, context: ExecutionContext) -> Any:
        """Call the function and return its result; an awaitable is awaited first."""
        outcome = self.begin(context)
        return await outcome if is_awaitable(outcome) else outcome

    def begin(self, context: ExecutionContext) -> Any:
        """Call the function; return its value, or an awaitable for it."""
        flow = context.flow
        recorded: Executing = nullcontext
        if flow is not None:
            recorded = executing(flow.services, flow.run.tenant, flow.run.run_id, self.id)
        if not self.blocking:
            with recorded():
                outcome = self.fn(context)
            is_recorded = recorded is not nullcontext
            return (
                _recorded(outcome, recorded) if is_recorded and is_awaitable(outcome) else outcome
            )
        pool = None if flow is None else flow.services.get(BlockingPool)
        if pool is None:
            return in_thread(partial(self._called, recorded, context), None, unchanged=STOPS)
        return pool.run(self._called, recorded, context)

    def _called(self, recorded: Executing, context: ExecutionContext) -> Any:
        with recorded():
            return self.fn(context)


RunFunction = Callable[..., Awaitable[Any]]
"""Function that runs the function of a node for a step. It takes the node, the step's context, the
step's input, and more values for the function by name."""


async def run_plainly(
    function: FunctionNode, context: FlowContext, step_input: Any, **_: Any
) -> Any:
    """Run a function with the context of the Python API; see :class:`RunFunction`."""
    return await function.execute(execution_context(context, step_input))


class ContextNode:
    """Adapts a contextual node to the engine's node interface.

    The step's only output is ``default``.
    """

    __slots__ = ("_begin", "_input", "node")

    def __init__(self, node: ContextualNode, step_input: Any = None) -> None:
        self.node = node
        self._input = step_input
        self._begin: Function = node.execute
        if type(node) is FunctionNode:  # a subclass may override execute
            self._begin = node.begin if node.blocking else node.fn

    def execute(self, data: Any, inputs: Outputs, context: FlowContext) -> Execution:
        """Execute the node with the step's context.

        Raises:
            TypeError: the node returned a generator.
        """
        outcome = self._begin(execution_context(context, self._input))
        if type(outcome) in _VALUES:
            return ExecutionResult({DEFAULT_HANDLE: outcome})
        if is_awaitable(outcome):
            return _result_of(outcome)
        if isinstance(outcome, GeneratorType | AsyncGeneratorType):
            raise TypeError(f"Node {self.node.id!r} returned a generator: return a list instead.")
        return ExecutionResult({DEFAULT_HANDLE: outcome})


class RecordedNode:
    """A node of a plugin whose code is recorded while it executes, as it may end the process."""

    def __init__(self, name: str, node: Node) -> None:
        self._name = name
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)  # the optional attributes of a node

    def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Execution:
        """Execute the node; see :class:`Node`."""
        run = context.run
        recorded = executing(context.services, run.tenant, run.run_id, self._name)
        with recorded():
            execution = self._node.execute(data, inputs, context)
        if recorded is nullcontext or isinstance(execution, ExecutionResult):
            return execution
        if isinstance(execution, AsyncIterable):
            return _recorded_items(execution, recorded)
        return _recorded(execution, recorded)


def execution_context(context: FlowContext, step_input: Any) -> ExecutionContext:
    """Build a step's context for a contextual node.

    If Python code executes a graph, the run has the caller's context as a service. The step shares
    the caller's session, trace and results. A step without input gets the caller's input.
    """
    caller = context.run.services.get(ExecutionContext, _NO_CONTEXT)
    upstream = dict(caller.upstream)
    for step_id, outputs in context.view.upstream(context.node_id).items():
        if DEFAULT_HANDLE in outputs:
            upstream[step_id] = outputs[DEFAULT_HANDLE]
    scope = context.scope
    return ExecutionContext(
        caller.session,
        caller.input if step_input is None else step_input,
        upstream,
        scope.budget,
        scope.usage,
        context.run.token,
        caller.trace,
        scope,
        context,
    )


async def _recorded(awaitable: Awaitable[Any], recorded: Executing) -> Any:
    with recorded():
        return await awaitable


async def _recorded_items(iterator: Any, recorded: Executing) -> AsyncIterator[Any]:
    with recorded():
        async with aclosing(iterator) as items:
            async for item in items:
                yield item


async def _result_of(awaitable: Awaitable[Any]) -> ExecutionResult:
    return ExecutionResult({DEFAULT_HANDLE: await awaitable})


def is_awaitable(value: Any) -> bool:
    """Return whether a value is awaitable; fast for common types that are not."""
    kind = type(value)
    if kind in _VALUES:  # hasattr is slow for a missing attribute
        return False
    return kind is CoroutineType or hasattr(kind, "__await__")


_NO_CONTEXT = ExecutionContext()
_VALUES = frozenset({int, float, str, bool, list, dict, type(None)})
