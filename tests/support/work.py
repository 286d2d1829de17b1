"""Counts the executed work and the waits instead of the time, which depends on the machine."""

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(slots=True)
class Work:
    """The executed work, in Python and in C."""

    calls: int = 0
    """The number of called functions, including those in C."""
    lines: int = 0
    """The number of executed lines of Python, counted only on request."""

    def note(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.calls += event in ("call", "c_call")

    def note_line(self, _frame: FrameType, event: str, _argument: object) -> Any:
        self.lines += event == "line"
        return self.note_line


@contextmanager
def counted_calls(*, lines: bool = False) -> Iterator[Work]:
    """Count the calls of this thread in the block, and the lines with ``lines``.

    The garbage collector is off, because finalizers may run code that does not belong to the block.
    """
    work, before, collects = Work(), (sys.getprofile(), sys.gettrace()), gc.isenabled()
    gc.disable()
    sys.setprofile(work.note)
    if lines:
        sys.settrace(work.note_line)
    try:
        yield work
    finally:
        sys.setprofile(before[0])
        sys.settrace(before[1])
        if collects:
            gc.enable()


@contextmanager
def counted_waits() -> Iterator[list[float | None]]:
    """Return the timeouts, in seconds, of all waits of the running event loop in the block.

    While work is ready, the loop does not wait, and nothing is counted. None waits without a limit,
    for I/O or for another thread.
    """
    loop: Any = asyncio.get_running_loop()
    waits: list[float | None] = []
    select = loop._selector.select

    def noted(timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            waits.append(timeout)
        return select(timeout)

    loop._selector.select = noted
    try:
        yield waits
    finally:
        del loop._selector.select
