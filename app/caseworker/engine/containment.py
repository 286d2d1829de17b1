"""Calls code of plugins and limits the effect of its exceptions to the call.

Such code may raise any BaseException. Some of them would do harm outside of it: the event loop
ends with a KeyboardInterrupt or SystemExit of a task, a GeneratorExit or CancelledError looks like
the end of the run's own task, a Stop like that of the run, and a future cannot raise StopIteration.
All of them become a :class:`ForeignError`, an ordinary failure.

Code on the event loop runs in a separate task. If that task is cancelled although the caller's is
not, the code has cancelled itself, or has awaited something that was cancelled.

See docs/internals.md, "Stops".
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from caseworker.core.budget.stops import Stop
from caseworker.engine.cancellation import is_being_cancelled
from caseworker.platform.logs.errors import class_name, message_of_error

T = TypeVar("T")

ExceptionTypes = tuple[type[BaseException], ...]
"""Types of exceptions."""

STOPS: ExceptionTypes = (Stop, BaseExceptionGroup)
"""For code that makes calls: a stop may be its run's. Groups may contain one."""


_DISGUISES = {"__getattribute__", "__class__", "__cause__", "__context__", "__traceback__"}
"""Attributes that handlers of exceptions read; a class that replaces one may raise then."""
_BUILT_IN = {BaseException, Exception, object}


class ForeignError(RuntimeError):
    """Code of a plugin raised an exception that would end more than its call: the cause."""

    def __init__(self, error: BaseException, name: str | None = None) -> None:
        """Wrap an exception; ``name`` is its class name if another one took its place."""
        message = message_of_error(error)
        if isinstance(error, asyncio.CancelledError):
            message = "It was cancelled, or waited for something that was cancelled."
        super().__init__(message)
        self.error_class = name or class_name(error)
        """Class name of the exception."""
        self.__cause__ = error


@dataclass(slots=True, repr=False)
class _Outcome(Generic[T]):
    """The value or the exception of code that was called.

    Neither is the result or the exception of a task or a future. The event loop would end with
    some exceptions, and the repr of a task calls the repr of its result.
    """

    _value: T | None = None
    _error: BaseException | None = None

    def unwrap(self) -> T:
        """Return the value, or raise the exception."""
        if self._error is None:
            return cast("T", self._value)
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error  # its traceback has this frame, and a cycle would keep the values of the code


async def contained(work: Awaitable[T], *, unchanged: ExceptionTypes = ()) -> T:
    """Await code of a plugin in a separate task; exceptions in ``unchanged`` are not wrapped.

    Raises:
        Exception: the code raised it.
        ForeignError: the code raised another BaseException, StopIteration or StopAsyncIteration.
        asyncio.CancelledError: this task is being cancelled.
    """
    task = asyncio.create_task(_awaited(work, unchanged))
    try:
        outcome = await task
    except asyncio.CancelledError as cancelled:
        if is_being_cancelled():
            raise
        raise ForeignError(cancelled) from cancelled
    finally:
        if isinstance(work, Coroutine):
            work.close()  # the task may have been cancelled before its first step
    return outcome.unwrap()


async def in_thread(
    function: Callable[[], T], threads: Executor | None, *, unchanged: ExceptionTypes = ()
) -> T:
    """Call a function of a plugin in a thread, with the context variables of the caller.

    ``threads`` None uses the threads of the event loop. Cancellation does not wait for the thread.

    Raises:
        Exception: the function raised it.
        ForeignError: the function raised another BaseException, StopIteration or
            StopAsyncIteration.
    """
    call = partial(copy_context().run, _called, function, unchanged)
    return (await asyncio.get_running_loop().run_in_executor(threads, call)).unwrap()


async def _awaited(work: Awaitable[T], unchanged: ExceptionTypes) -> _Outcome[T]:
    try:
        return _Outcome(await work)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _Outcome(None, _as_failure(error, unchanged))


def _called(function: Callable[[], T], unchanged: ExceptionTypes) -> _Outcome[T]:
    try:
        return _Outcome(function())
    except BaseException as error:
        return _Outcome(None, _as_failure(error, unchanged))


def _as_failure(error: BaseException, unchanged: ExceptionTypes) -> BaseException:
    """Return the exception to raise instead of one that code of a plugin raised."""
    kind = type(error)  # isinstance would also ask the exception for its __class__
    try:
        if any(vars(each).keys() & _DISGUISES for each in kind.__mro__ if each not in _BUILT_IN):
            return ForeignError(RuntimeError(BaseException.__str__(error)), kind.__name__)
        if issubclass(kind, unchanged) or (
            issubclass(kind, Exception) and not issubclass(kind, StopIteration | StopAsyncIteration)
        ):
            return error
        return ForeignError(error)
    except BaseException:
        return ForeignError(RuntimeError("It raised an exception that cannot be read."))
