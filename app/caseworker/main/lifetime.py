"""Handle SIGTERM from the start of a process and exit without waiting for leftover tasks.

Code called by a run may continue after the run was detached: a function in a thread, or a coroutine
that swallows cancellation. Python would wait for it at exit, however long it takes, and so would
the process manager.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")

CANCEL_SECONDS: Final = 2.0
"""Seconds that remaining tasks may take to finish after they are cancelled at exit."""
_SWITCH_SECONDS: Final = 0.0005
"""The interpreter switch interval: how long a thread may hold the GIL while the loop waits.

The loop waits several times per request. With Python's default of 5 ms, one busy thread made
requests 50 ms slower.
"""


GC_THRESHOLDS: Final = (10_000, 10, 1_000_000)
"""Garbage collection thresholds for the three generations.

With Python's defaults, collection would take a tenth of a run's execution time. A run allocates a
few hundred objects and leaves few reference cycles. The last threshold is never reached: a full
collection takes half a microsecond per object, so it must wait until there are few.
"""

COLLECT_SECONDS: Final = 60.0
"""Seconds between two full collections."""
MANY_OBJECTS: Final = 50_000
"""Number of objects that are collected in about 0.02 s; runs of large graphs have more."""
LATEST_COLLECTION: Final = 60
"""Number of times that a collection of more objects is postponed."""


def collect_garbage_seldom() -> None:
    """Collect garbage less often, and exempt the objects that exist now.

    Called once at startup, when most objects are modules and models. All garbage is collected once
    a minute, or later while there are many objects.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    asyncio.get_running_loop().call_later(COLLECT_SECONDS, _collect_garbage)


def _collect_garbage(postponed: int = 0) -> None:
    if postponed >= LATEST_COLLECTION or len(gc.get_objects()) < MANY_OBJECTS:
        gc.collect()
        postponed = -1
    asyncio.get_running_loop().call_later(COLLECT_SECONDS, _collect_garbage, postponed + 1)


@contextmanager
def lifetime() -> Iterator[None]:
    """Exit the process with code 0 when the block ends without an error.

    SIGTERM ends the block like :func:`sys.exit` until another handler is installed. By default, PID
    1 would ignore SIGTERM, and any other process would die and leave its database running.
    """
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _TerminatedError(SystemExit):
    """SIGTERM arrived before the process handled signals itself."""


def _exit(*_: object) -> None:
    end_undisturbed()
    raise _TerminatedError(0)


def end_undisturbed() -> None:
    """Ignore further SIGTERM signals, because the process is already shutting down."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def run_to_end(main: Coroutine[Any, Any, T], *, handles_signals: bool = False) -> T:
    """Run a coroutine like :func:`asyncio.run`, but abandon tasks that ignore cancellation.

    If tasks are abandoned, their event loop stays open. Threads are never joined.

    If ``main`` handles SIGINT and SIGTERM itself (``handles_signals``), a KeyboardInterrupt or
    SystemExit in another task or in a callback comes from code of a plugin, such as a task that a
    tool has started. It is logged, and the loop continues.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    loop = _loop_of(handles_signals=handles_signals)
    runner = asyncio.Runner(loop_factory=lambda: loop)  # closing it would wait for all tasks

    async def ended() -> T:
        loop.main = asyncio.current_task()
        try:
            return await main
        finally:
            await _cancel(asyncio.all_tasks() - {asyncio.current_task()})

    try:
        return runner.run(ended())
    finally:
        if unfinished := asyncio.all_tasks(loop):
            names = ", ".join(sorted(task.get_name() for task in unfinished))
            log.warning("process.tasks_left", detail=names)
        else:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _loop_of(*, handles_signals: bool) -> Any:
    """Return a loop for :func:`run_to_end`, whose attribute ``main`` is the task of the program."""
    import uvloop

    class Loop(uvloop.Loop):
        main: "asyncio.Task[Any] | None" = None

        def run_forever(self) -> None:
            while True:
                try:
                    return super().run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    over = self.main is None or self.main.done()
                    if over or not handles_signals or isinstance(error, _TerminatedError):
                        raise
                    log.error("process.exit_refused", error_class=type(error).__name__)

    return Loop()


async def _cancel(tasks: "set[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait up to ``CANCEL_SECONDS`` for them to finish."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
