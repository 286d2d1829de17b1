"""Threads that tenants share fairly: for blocking functions, and for work that takes CPU time."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import RLock
from typing import Any, Final, TypeVar

from caseworker.platform.fair_slots import TENANT, FairQueue, FairSlots, share_of

PAUSE: Final = 2
"""Pause after a long computation, as a multiple of the time that it took."""
MAX_CHARS_ON_LOOP: Final = 2000
"""Maximum length, in characters, of a text that is redacted on the event loop."""

T = TypeVar("T")


class FairThreads(ThreadPoolExecutor):
    """A thread pool in which a single tenant occupies at most nine tenths of the threads.

    A free thread executes the next function of the tenant that occupies the fewest. The tenant of a
    function is the :data:`TENANT` of the task that submits it.
    """

    def __init__(self, size: int, name: str) -> None:
        """Use up to ``size`` threads, whose names begin with ``name``."""
        super().__init__(size, name)
        self._size, self._share = size, share_of(size)
        self._guard = RLock()  # functions end in threads
        self._occupied = Counter[str | None]()
        self._queued = FairQueue[tuple[Future[Any], Callable[[], Any]]]()
        self._is_starting = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Enqueue a function; return the future of its result."""
        result = Future[Any]()
        with self._guard:
            self._queued.append((result, partial(fn, *args, **kwargs)), TENANT.get())
            self._start()
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Reject new functions and drop queued ones; ``wait`` for those that are running."""
        with self._guard:
            queued, self._queued = self._queued, FairQueue()
        for _, (result, _) in queued:
            result.cancel()
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _start(self) -> None:
        """Start queued functions while threads are free."""
        if self._is_starting:  # a function has ended below, in this call
            return
        self._is_starting = True
        try:
            while self._occupied.total() < self._size:
                able = [
                    each
                    for each in self._queued.tenants
                    if each is None or self._occupied[each] < self._share
                ]
                if not able:
                    return
                self._start_next(min(able, key=self._occupied.__getitem__))
        finally:
            self._is_starting = False

    def _start_next(self, tenant: str | None) -> None:
        result, function = self._queued.pop(tenant)
        if result.set_running_or_notify_cancel():
            running = super().submit(function)
            self._occupied[tenant] += 1
            running.add_done_callback(partial(self._end, result, tenant))

    def _end(self, result: Future[Any], tenant: str | None, ended: Future[Any]) -> None:
        """Pass on the outcome of a function, and start the next one.

        The thread counts as free before the caller learns of the outcome.
        """
        with self._guard:
            self._occupied[tenant] -= 1
            self._occupied += Counter()  # removes zero counts
        error = ended.exception()
        if isinstance(error, StopIteration):  # a future of the event loop cannot raise it
            error = RuntimeError("The function raised StopIteration.")
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(ended.result())
        with self._guard:
            self._start()


class CallThreads(FairThreads):
    """The threads for functions that make no calls: those of tools, and calls of code agents.

    Code agents wait in other threads for their calls. If both shared the threads, agents could
    occupy all of them and wait forever.
    """


def usual_threads() -> FairThreads:
    """Return threads for an event loop, as many as it would have without them."""
    return FairThreads(min(32, (os.cpu_count() or 1) + 4), "work")


class PacedThread:
    """Runs long computations in a thread, one at a time, with pauses; tenants take turns.

    Several busy threads, or one without pauses, would compete with the event loop for the GIL, and
    make all requests slower by a multiple.
    """

    def __init__(self) -> None:
        self._turn = FairSlots(1)
        self._pauses_until = 0.0

    async def call(
        self, compute: Callable[[], T], size: int, *, most_on_loop: int = MAX_CHARS_ON_LOOP
    ) -> T:
        """Return the result of ``compute``.

        It runs in the thread if the ``size`` of its input is more than ``most_on_loop``, both in
        bytes, characters or items.
        """
        if size <= most_on_loop:
            return compute()
        clock = asyncio.get_running_loop().time
        async with self._turn.held():
            await asyncio.sleep(self._pauses_until - clock())
            began = clock()
            try:
                return await asyncio.to_thread(compute)
            finally:
                self._pauses_until = clock() + PAUSE * (clock() - began)
