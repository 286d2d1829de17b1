"""Code agents that end in odd ways."""

import asyncio
import sys
from typing import NoReturn

from caseworker import CodeContext


async def interrupting(context: CodeContext) -> NoReturn:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


async def closing(context: CodeContext) -> NoReturn:
    """Raise GeneratorExit."""
    raise GeneratorExit


async def exiting(context: CodeContext) -> None:
    """Exit in a child task."""

    async def child() -> None:
        sys.exit(3)

    async with asyncio.TaskGroup() as group:
        group.create_task(child())


async def cancelling(context: CodeContext) -> None:
    """Cancel its own task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


def ending(context: CodeContext) -> object:
    """Raise StopIteration in a thread."""
    return next(iter(()))


def blocked(context: CodeContext) -> NoReturn:
    """Raise KeyboardInterrupt in a thread."""
    raise KeyboardInterrupt


async def stopping(context: CodeContext) -> object:
    """Call a tool that raises GeneratorExit."""

    async def closes() -> NoReturn:
        raise GeneratorExit

    return await context.tool(closes)()
