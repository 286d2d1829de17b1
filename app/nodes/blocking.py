"""Threads for functions that block, so that the event loop does not."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

DEFAULT_THREADS = 8


class BlockingPool:
    """A bounded number of threads; further functions wait for a free one."""

    def __init__(self, max_threads: int = DEFAULT_THREADS) -> None:
        """Prepare a pool; threads begin when they are needed."""
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="blocking")

    async def run(self, fn: Callable[..., Result], *args: Any) -> Result:
        """Run a function in a thread, with the context variables of the caller.

        Whoever cancels this does not wait for the thread: a function that has not begun never
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
