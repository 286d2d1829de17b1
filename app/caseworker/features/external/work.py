"""The calls of a session in flight, its signs of life, and those of its parent and children."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from caseworker.engine.activity import Activity
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import forget_failure, until_done

T = TypeVar("T")


class SessionWork:
    """The calls of a session in flight, and the idle time of its client.

    A child's sign of life is one of its ancestors. A parent is not idle while a call of a child is
    in flight, and is released only after its children.
    """

    def __init__(
        self, run_id: str, activity: Activity, parent: "tuple[SessionWork, StepPath] | None"
    ) -> None:
        """``activity`` is that of the run; ``parent`` has the path of the run in its parent."""
        self._run_id = run_id
        self._activity = activity
        self._parent = None if parent is None else parent[0]
        self._open_children: set[SessionWork] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._active_at = asyncio.get_running_loop().time()
        if parent is not None:  # a parent is released after its children
            work, path = parent
            work._open_children.add(self)
            work._activity.working[self] = path

    @property
    def depth(self) -> int:
        """Number of the run's ancestors."""
        return 0 if self._parent is None else self._parent.depth + 1

    @property
    def is_held(self) -> bool:
        """Whether no call can start, because the process releases its runs."""
        return self._activity.is_held

    @property
    def tasks(self) -> Collection["asyncio.Task[Any]"]:
        """The calls of this session in flight."""
        return tuple(self._tasks)

    @property
    def is_busy(self) -> bool:
        """Whether a call of the run or of a child is in flight."""
        return bool(self._tasks) or any(child.is_busy for child in self._open_children)

    def touch(self) -> None:
        """Note a sign of life of the client, which is also one of its parents."""
        self._active_at = asyncio.get_running_loop().time()
        if self._parent is not None:
            self._parent.touch()

    def idle_seconds(self) -> float:
        """Return the time since the last sign of life."""
        return asyncio.get_running_loop().time() - self._active_at

    def start(
        self, work: Coroutine[Any, Any, T], path: StepPath, on_last: Callable[[], None]
    ) -> "asyncio.Task[T]":
        """Work for the client in a task; the run is not idle until the task ends.

        ``path`` is the path of the call that the task makes. ``on_last`` is called after the end of
        the task if no other call is in flight then.
        """

        def on_end(task: "asyncio.Task[T]") -> None:
            forget_failure(task)
            self._tasks.discard(task)
            del self._activity.working[task]
            self._activity.changed()
            self.touch()
            if not self._tasks:
                on_last()

        task = asyncio.create_task(work, name=f"gateway {self._run_id}")
        self._tasks.add(task)
        self._activity.working[task] = path
        task.add_done_callback(on_end)
        return task

    def cancel(self, except_for: Collection["asyncio.Task[Any]"] = ()) -> None:
        """Cancel the calls in flight."""
        for task in self._tasks.difference(except_for):
            task.cancel()

    @asynccontextmanager
    async def waits(self, path: StepPath) -> AsyncIterator[None]:
        """Mark the block as the wait for the client."""
        self._activity.working[self] = path  # no approval suspends the run of a client
        async with self._activity.waits(path):
            yield

    async def close(self, grace_seconds: float) -> None:
        """Cancel the calls in flight, and wait for their ends; the parent may be idle then."""
        if (parent := self._parent) is not None:
            parent._open_children.discard(self)
            parent._activity.working.pop(self, None)
            parent._activity.changed()
        self.cancel()
        await until_done(self.tasks, grace_seconds)
