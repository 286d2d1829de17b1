"""Background work of a process: loops that are restarted on failure, and the heartbeat.

See docs/internals.md, "Recovery".
"""

import asyncio
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass, field

import structlog

from caseworker.engine.cancellation import is_being_cancelled
from caseworker.engine.supervision import shielded
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.logs.errors import message_of_error
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.ports import RunStore, WorkerStore
from caseworker.runs.run import RunKey

log = structlog.get_logger(__name__)

BEAT_GRACE_SECONDS = 5.0
"""Seconds that a heartbeat may take during shutdown; SQL statements are not interrupted."""

RESTART_SECONDS = (0.1, 5.0)
"""First and maximum back-off, in seconds, before a loop is restarted."""

STOP_AGAIN_SECONDS = 1.0
"""Seconds to wait for a cancelled loop to end before it is cancelled again."""

WORKING_SECONDS = 1.0
"""Seconds by which a restarted loop must outlast its previous run to count as working. A loop that
cannot connect always fails after the same time: the connection timeout."""

CONNECT_SECONDS = 10.0
"""Connection timeout in seconds. A loop that ran longer than this must have been connected."""

STEADY_SECONDS = 30.0
"""Seconds that a loop must run before its back-off is reset."""


class Loops:
    """Runs endless loops as tasks, and restarts them if they fail or return."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._up_at: dict[str, float] = {}
        """When each loop that has ended at least twice counts as working again."""

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run ``loop`` until :meth:`stop`, restarting it when it ends."""
        self._tasks[name] = asyncio.create_task(self._forever(name, loop), name=name)

    def failing(self) -> list[str]:
        """Return the names of loops that repeatedly ended soon after they were started."""
        now = asyncio.get_running_loop().time()
        return sorted(name for name, up_at in self._up_at.items() if now < up_at)

    async def stop(self) -> None:
        """Stop all loops.

        Cancellation is repeated until all loops have ended. A loop that fails at that moment may
        replace the cancellation with its own error, for example if a task of its task group failed.
        """
        unfinished = set(self._tasks.values())
        while unfinished:
            for task in unfinished:
                task.cancel()
            _, unfinished = await asyncio.wait(unfinished, timeout=STOP_AGAIN_SECONDS)

    async def _forever(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        initial_delay_seconds, max_delay_seconds = RESTART_SECONDS
        delay_seconds = initial_delay_seconds
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await _run_until_error(name, loop)
            if (ran := clock() - began) > STEADY_SECONDS:
                delay_seconds = initial_delay_seconds
            if delay_seconds > initial_delay_seconds:
                running_at = clock() + delay_seconds + min(ran, CONNECT_SECONDS)
                self._up_at[name] = running_at + WORKING_SECONDS
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, max_delay_seconds)


async def _run_until_error(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop until it returns or fails; log either.

    Raises:
        asyncio.CancelledError: this task is being cancelled.
    """
    try:
        await loop()
        log.warning("loop.ended", loop=name)
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        log.warning("loop.failed", loop=name, error=type(error).__name__)
    except Exception as error:
        log.warning("loop.failed", loop=name, error=type(error).__name__)
    if is_being_cancelled():
        raise asyncio.CancelledError


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """Sends heartbeats, and compares the local runs with those that the database assigns.

    If a notification about a cancel request was lost, the next heartbeat delivers the request. If
    the database assigns a run to this process but the process does not execute it, the run is
    released to the queue. This happens if a claim was committed but its response was lost; the
    attempt counts only if the run crashed in this process. If this process executes a run that
    another worker owns, the execution is stopped. Either mismatch must persist for an interval
    before it is handled, because a heartbeat may see a run that is just starting or ending.
    """

    workers: WorkerStore
    store: RunStore
    executor: RunExecutor
    interval_seconds: float
    drain_seconds: float
    """Seconds that runs may continue after this process was asked to drain."""
    _draining: asyncio.Task[None] | None = None
    _is_leaving: bool = False
    _beaten_at: float = field(init=False)
    _orphans: "_SeenFor" = field(init=False)
    _strays: "_SeenFor" = field(init=False)

    def __post_init__(self) -> None:
        """Start with no earlier heartbeat to compare with."""
        self._beaten_at = asyncio.get_running_loop().time()
        self._orphans, self._strays = (_SeenFor(0.9 * self.interval_seconds) for _ in range(2))

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last successful heartbeat."""
        return asyncio.get_running_loop().time() - self._beaten_at

    @property
    def draining(self) -> bool:
        """Whether an operator has asked this process to accept no more runs and to finish."""
        return self._draining is not None

    async def run(self) -> None:
        """Send heartbeats at intervals until cancelled; failures do not end the loop."""
        away = False
        while True:
            try:
                await shielded(self.beat(), grace_seconds=BEAT_GRACE_SECONDS)
                away = False
            except StoreUnavailableError:
                if not away:
                    log.warning("heartbeat.database_away")
                away = True
            await asyncio.sleep(self.interval_seconds)

    async def beat(self) -> None:
        """Send one heartbeat, and compare the local runs with those in the database.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        beat = await self.workers.beat(self.executor.worker_id)
        self._beaten_at = asyncio.get_running_loop().time()
        if beat.draining and self.executor.takes_runs:
            log.warning("process.draining", count=len(self.executor.active))
            drain = self.executor.drain(self.drain_seconds)
            self._draining = asyncio.create_task(drain, name="drain")
        for key, cancel_request in beat.cancelled.items():
            self.executor.cancel(key, cancel_request)
        for key in self._strays.confirmed(self.executor.active - beat.owned):
            self.executor.lose(key)
        for key in self._orphans.confirmed(beat.owned - self.executor.active):
            await self._give_back(key)
        for key in self.executor.broken.keys() - beat.owned:
            del self.executor.broken[key]

    async def stop_taking(self) -> None:
        """Record once that this process accepts no more runs; if that fails, requests detect it."""
        if self._is_leaving:
            return
        self._is_leaving = True
        try:
            await self.workers.stop_taking(self.executor.worker_id)
        except Exception as error:  # the runs must be released in any case
            log.warning("heartbeat.stop_unsaid", error=message_of_error(error))

    async def leave(self) -> None:
        """Record that this process shuts down. If that fails, missing heartbeats reveal it."""
        try:
            await self.workers.leave(self.executor.worker_id)
        except StoreUnavailableError:
            log.warning("heartbeat.left_unsaid")

    async def _give_back(self, key: RunKey) -> None:
        # Read again: the run may have started or ended since the heartbeat.
        run = await self.store.get(key)
        if run is None or run.worker_id != self.executor.worker_id or run.finished:
            return
        if key in self.executor.active:
            return
        log.warning("run.orphaned", tenant=key.tenant, run_id=key.run_id)
        has_started = self.executor.broken.get(key) == run.fence
        await self.store.release(
            run, active_seconds=run.active_seconds, calls=(), counted=has_started
        )


class _SeenFor:
    """Finds runs that were seen in every heartbeat for a given time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[RunKey, float] = {}

    def confirmed(self, seen: Set[RunKey]) -> list[RunKey]:
        """Record the runs seen now; return those seen for long enough, sorted."""
        now = asyncio.get_running_loop().time()
        self._since = {key: self._since.get(key, now) for key in seen}
        return sorted(key for key, since in self._since.items() if now - since >= self._seconds)
