"""Python functions as nodes."""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Protocol, TypeVar

from caseworker.engine.concurrency import NodeLock
from caseworker.engine.context import ExecutionContext, FlowContext, Outputs
from caseworker.engine.node import Execution, ExecutionResult
from caseworker.kernel.graph import DEFAULT_HANDLE

Result = TypeVar("Result")

DEFAULT_THREADS = 8


class BlockingPool:
    """A bounded number of threads; further functions wait for a free one."""

    def __init__(self, max_threads: int = DEFAULT_THREADS) -> None:
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="blocking")

    async def run(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run a function in a thread, with the context variables of the caller.

        A cancel does not wait for the thread: a function that has not begun never
        begins, and what one that has begun returns is dropped.
        """
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, context.run, _called, fn, *args
        )

    def close(self) -> None:
        """Begin nothing more; threads that are at work are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _called(fn: Callable[..., Result], *args: Any) -> Result:
    try:
        return fn(*args)
    except StopIteration as error:  # no future can carry it
        raise RuntimeError("The function raised StopIteration.") from error


Function = Callable[[ExecutionContext], Any]
"""Returns a value, or something to await for one."""


class ContextualNode(Protocol):
    """A node that takes one context and knows nothing of handles."""

    @property
    def id(self) -> str:
        """Names the node; several steps may use it."""
        ...

    def execute(self, context: ExecutionContext) -> Any:
        """Return the output of a step, or something to await for it."""
        ...


class FunctionNode:
    """A function as a node.

    A plain function is called where it stands; one that blocks belongs into a thread.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the public name
        fn: Function,
        *,
        persistent: bool = False,
        blocking: bool = False,
    ) -> None:
        """Make a node of ``fn``.

        A ``persistent`` node has a state of its own, so one step at a time works with it. A
        ``blocking`` one is called in a thread.

        A plain function runs in the context of its graph's task: a context variable that it sets
        may be seen by later steps. Return what they are to know.

        Raises:
            ValueError: ``fn`` is a generator function, which has no result, or a coroutine function
                and should be called in a thread.
        """
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise ValueError(f"The function of node {id!r} is a generator: return a list instead.")
        if blocking and inspect.iscoroutinefunction(fn):
            raise ValueError("A coroutine function cannot be blocking: it runs on the event loop.")
        self.id = id
        self.fn = fn
        self.persistent = persistent
        self.blocking = blocking
        self.lock = NodeLock(id) if persistent else None
        """Held by the one step that works with a persistent node."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    async def execute(self, context: ExecutionContext) -> Any:
        """Call the function and return what it, or what it awaits, returns."""
        found = self.begin(context)
        return await found if is_awaitable(found) else found

    def begin(self, context: ExecutionContext) -> Any:
        """Call the function; return its value, or something to await for it."""
        if not self.blocking:
            return self.fn(context)
        pool = None if context.flow is None else context.flow.services.get(BlockingPool)
        if pool is None:
            return asyncio.to_thread(self.fn, context)
        return pool.run(self.fn, context)


class ContextNode:
    """Executes a contextual node as a node of the engine: the one adapter between the two.

    The step's only output is ``default``.
    """

    __slots__ = ("_begin", "_input", "node")

    def __init__(self, node: ContextualNode, step_input: Any = None) -> None:
        self.node = node
        self._input = step_input
        self._begin: Function = node.execute
        if type(node) is FunctionNode:  # a subclass may have another idea of executing
            self._begin = node.begin if node.blocking else node.fn

    def execute(self, data: Any, inputs: Outputs, context: FlowContext) -> Execution:
        """Execute the node with its context."""
        found = self._begin(execution_context(context, self._input))
        if type(found) in _VALUES:
            return ExecutionResult({DEFAULT_HANDLE: found})
        if is_awaitable(found):
            return _result_of(found)
        if isinstance(found, GeneratorType | AsyncGeneratorType):
            raise TypeError(f"Node {self.node.id!r} returned a generator: return a list instead.")
        return ExecutionResult({DEFAULT_HANDLE: found})


def execution_context(context: FlowContext, step_input: Any) -> ExecutionContext:
    """Return the context of a step for a contextual node.

    Where a graph is executed from Python, the context of its caller is a service of the run: its
    session, trace, results and, for steps without an input of their own, its input are shared.
    """
    caller = context.run.services.get(ExecutionContext, _NOBODY)
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


async def _result_of(found: Awaitable[Any]) -> ExecutionResult:
    return ExecutionResult({DEFAULT_HANDLE: await found})


def is_awaitable(value: Any) -> bool:
    """Return quickly whether something must be awaited; what a step returns hardly ever must."""
    kind = type(value)
    if kind in _VALUES:  # asking for an attribute that is missing is dear
        return False
    return kind is CoroutineType or hasattr(kind, "__await__")


_NOBODY = ExecutionContext()
_VALUES = frozenset({int, float, str, bool, list, dict, type(None)})
