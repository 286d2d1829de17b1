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


@contextmanager
def lifetime() -> Iterator[None]:
    """Serve while the block does, and end the process with 0 at its end; an error goes on its way.

    SIGTERM ends the block like :func:`sys.exit` until somebody else handles it: a process with the
    number 1 would not hear of it, and another one would leave its database running.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """Run like :func:`asyncio.run`, but leave tasks behind that do not end when they are cancelled.

    Their loop is not closed then: that would wait for them.
    """
    from uvloop import new_event_loop

    runner = asyncio.Runner(loop_factory=new_event_loop)
    left = set[asyncio.Task[Any]]()

    async def ended() -> T:
        try:
            return await main
        finally:
            left.update(await _cancelled(asyncio.all_tasks() - {asyncio.current_task()}))

    try:
        return runner.run(ended())
    finally:
        if left:
            log.warning("process.tasks_left", tasks=sorted(task.get_name() for task in left))
        else:
            runner.close()


async def _cancelled(tasks: "set[asyncio.Task[Any]]") -> "set[asyncio.Task[Any]]":
    """Cancel tasks, and return those that do not end."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return tasks
    _, left = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
    return left
