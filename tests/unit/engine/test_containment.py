"""Exceptions of plugins end only the call of their code, on the event loop and in threads."""

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import NoReturn

import pytest

from caseworker.core.budget.stops import CancelledError, Stop
from caseworker.engine.containment import STOPS, ForeignError, contained, in_thread

SEEN: ContextVar[int] = ContextVar("seen", default=0)


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def raises() -> NoReturn:
        raise error

    return raises


async def awaited(function: Callable[[], object]) -> object:
    return function()


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError("by itself"),
        CancelledError("its own"),
        BaseExceptionGroup("two", [KeyboardInterrupt(), GeneratorExit()]),
        StopAsyncIteration(),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_an_exception_that_would_end_more_than_the_call_is_an_ordinary_failure(
    error: BaseException,
) -> None:
    """It is the cause of the failure, on the event loop and in a thread."""
    for work in (contained(awaited(raising(error))), in_thread(raising(error), None)):
        with pytest.raises(ForeignError) as raised:
            await work
        assert type(raised.value.__cause__) is type(error)
        assert raised.value.error_class == type(error).__name__


def ends(*_: object) -> NoReturn:
    sys.exit()


@pytest.mark.parametrize(
    "error",
    [
        type("Disguised", (Exception,), {"__class__": property(ends)}),
        type("Disguised", (Exception,), {"__getattribute__": ends}),
        type("Disguised", (ValueError,), {"__cause__": property(ends)}),
        type("Disguised", (OSError,), {"__traceback__": property(ends)}),
        type("Disguised", (BaseException,), {"__context__": property(ends)}),
        type("Disguised", (Exception,), {"__str__": ends, "__class__": property(ends)}),
        type("Disguised", (KeyboardInterrupt,), {"__class__": property(ends)}),
    ],
)
async def test_an_exception_that_cannot_be_examined_is_replaced(
    error: type[BaseException],
) -> None:
    """Its class name and its message stay."""
    for work in (
        contained(awaited(raising(error("no")))),
        in_thread(raising(error("no")), None, unchanged=STOPS),
    ):
        with pytest.raises(ForeignError, match="no") as raised:
            await work
        assert raised.value.error_class == "Disguised"


async def test_stop_iteration_in_a_thread_is_an_ordinary_failure() -> None:
    """A future cannot raise it, so its caller would wait forever."""
    with pytest.raises(ForeignError, match="StopIteration"):
        await in_thread(lambda: next(iter(())), None)


async def test_an_exception_passes_unchanged() -> None:
    """So do the stops of code that makes calls of its run."""
    error, stop = ValueError("no"), CancelledError("stop")

    with pytest.raises(ValueError, match="no") as raised:
        await contained(awaited(raising(error)))
    assert raised.value is error
    for work in (
        contained(awaited(raising(stop)), unchanged=STOPS),
        in_thread(raising(stop), None, unchanged=STOPS),
    ):
        with pytest.raises(Stop) as stopped:
            await work
        assert stopped.value is stop


async def test_a_cancel_of_the_caller_reaches_the_code_and_is_no_failure() -> None:
    """The code can clean up, and may raise anything while it does."""
    started, heard = asyncio.Event(), list[str]()

    async def waits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    task = asyncio.create_task(contained(waits()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (task.cancelled(), heard) == (True, ["cancelled"])


async def test_an_exit_during_a_cancel_ends_only_the_code() -> None:
    """The failure is then the outcome of the call."""
    started = asyncio.Event()

    async def exits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyboardInterrupt

    task = asyncio.create_task(contained(exits()))
    await started.wait()
    task.cancel()
    with pytest.raises(ForeignError, match="KeyboardInterrupt"):
        await task


async def test_code_that_cancels_its_own_task_cancels_no_other() -> None:
    """The caller's task is not being cancelled."""

    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    with pytest.raises(ForeignError, match="It was cancelled") as raised:
        await contained(cancels())
    task = asyncio.current_task()
    assert task is not None
    assert (raised.value.error_class, task.cancelling()) == ("CancelledError", 0)


async def test_code_reads_the_context_of_its_caller_and_does_not_change_it() -> None:
    """Each call has a copy."""

    def changes() -> int:
        seen = SEEN.get()
        SEEN.set(2)
        return seen

    SEEN.set(1)

    assert await contained(awaited(changes)) == await in_thread(changes, None) == 1
    assert SEEN.get() == 1
