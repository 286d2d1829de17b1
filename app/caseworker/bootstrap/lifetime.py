"""How a process of the service heeds SIGTERM from its first moment, and ends without delay.

What a run has begun may go on after the run was detached from it: a function in its thread, a
coroutine that catches every cancel. Python would wait for them before it ends, however long they
take, while whatever started the process waits for its end.
"""

import asyncio
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
"""How long tasks that are left over at the end may take once they are cancelled."""
_SWITCH_SECONDS: Final = 0.0005
"""How long a thread may keep the interpreter's lock while the event loop waits for it.

The loop waits several times per request: with Python's usual 5 ms, one busy thread made requests
50 ms slower.
"""


@contextmanager
def lifetime() -> Iterator[None]:
    """Serve while the block does, and end the process with 0 at its end; an error goes on its way.

    SIGTERM ends the block like :func:`sys.exit` until somebody else handles it: a process with the
    number 1 would not hear of it, and another one would leave its database running.
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


def _exit(*_: object) -> None:
    end_undisturbed()
    sys.exit(0)


def end_undisturbed() -> None:
    """Heed no further SIGTERM: the end of the process has begun."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """Run like :func:`asyncio.run`, but leave tasks behind that do not end when they are cancelled.

    Their loop is not closed then. Threads are not waited for.
    """
    from uvloop import new_event_loop

    sys.setswitchinterval(_SWITCH_SECONDS)
    loop = new_event_loop()
    runner = asyncio.Runner(loop_factory=lambda: loop)  # closing it would wait for all of them

    async def ended() -> T:
        try:
            return await main
        finally:
            await _cancel(asyncio.all_tasks() - {asyncio.current_task()})

    try:
        return runner.run(ended())
    finally:
        if left := asyncio.all_tasks(loop):
            names = ", ".join(sorted(task.get_name() for task in left))
            log.warning("process.tasks_left", detail=names)
        else:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


async def _cancel(tasks: "set[asyncio.Task[Any]]") -> None:
    """Cancel tasks, and wait a while for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
