"""Executes runs in this process: each in a task of its own, each under its own fence.

A run comes here claimed. It is executed as one graph, supervised by its token, and settled by one
guarded update. Whatever the process cannot finish it gives back, and what it cannot even give back
another process finds by the silence of this one's heartbeat.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from app.control.stops import CancelledError, DeadlineExceededError, HandOver
from app.engine.cancellation import CancellationToken
from app.engine.driver import Driver
from app.engine.settling import AbandonedError, Supervisor
from app.runs.execution import Execution
from app.runs.journal import LostRunError
from app.runs.plan import graph_for
from app.runs.ports import JournalStore, RunStore
from app.runs.report import Conclusion, conclude, stopped
from app.runs.run import Run, RunKey, StopWish

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    """How this process executes runs."""

    max_runs: int = 1000
    """How many runs are executed at once."""
    max_attempts: int = 3
    """How often a run may be begun before it fails as lost."""
    snapshot_interval_seconds: float = 2.0


@dataclass(slots=True)
class _Active:
    run: Run
    token: CancellationToken
    ended: asyncio.Event
    delivered_at: datetime | None = None


class RunExecutor:
    """The runs of this process."""

    def __init__(
        self,
        *,
        worker_id: str,
        store: RunStore,
        journals: JournalStore,
        driver: Driver,
        supervisor: Supervisor,
        services: Mapping[type, Any],
        limits: ExecutorLimits,
    ) -> None:
        self.worker_id = worker_id
        self._store = store
        self._journals = journals
        self._driver = driver
        self._supervisor = supervisor
        self._services = services
        self._limits = limits
        self._active: dict[RunKey, _Active] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserved = 0
        self._room = asyncio.Event()
        self._open = True

    @property
    def active(self) -> frozenset[RunKey]:
        """The runs that are being executed."""
        return frozenset(self._active)

    @property
    def free_slots(self) -> int:
        """How many more runs may be started now."""
        return self._limits.max_runs - len(self._active) - self._reserved if self._open else 0

    def reserve(self) -> bool:
        """Keep a slot for a run that is about to be claimed; False if there is none."""
        if self.free_slots <= 0:
            return False
        self._reserved += 1
        return True

    def unreserve(self) -> None:
        """Give a kept slot back."""
        self._reserved -= 1
        self._room.set()

    async def room(self) -> None:
        """Wait until there may be a free slot."""
        while self.free_slots <= 0:
            self._room.clear()
            await self._room.wait()

    def start(self, run: Run, *, permitted_at: float) -> None:
        """Execute a run that was claimed for this process; a second call changes nothing.

        ``permitted_at`` is when the claiming statement was sent, on the monotonic clock.
        """
        if run.key in self._active:
            return
        active = _Active(run, CancellationToken(), asyncio.Event())
        self._active[run.key] = active
        self._keep(
            asyncio.create_task(self._execute(active, permitted_at), name=f"run {run.key.run_id}")
        )

    def stop(self, key: RunKey, wish: StopWish) -> bool:
        """Tell a run that somebody wants it to stop; False if it is not executed here."""
        active = self._active.get(key)
        if active is None:
            return False
        active.delivered_at = active.delivered_at or datetime.now(UTC)
        active.token.cancel(wish.reason, requested_by=wish.requested_by)
        return True

    def stop_taking(self) -> None:
        """Take no more runs; those that are executed go on."""
        self._open = False

    async def ended(self, key: RunKey) -> None:
        """Wait until a run is no longer executed here."""
        active = self._active.get(key)
        if active is not None:
            await active.ended.wait()

    async def drain(self, grace_seconds: float) -> None:
        """Start nothing more; let runs end for a while, then give the others back."""
        self.stop_taking()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for active in self._active.values():
            active.token.trip(HandOver("The process is shutting down."))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _execute(self, active: _Active, permitted_at: float) -> None:
        run = active.run
        structlog.contextvars.bind_contextvars(tenant=run.key.tenant, run_id=run.key.run_id)
        try:
            await self._run(active, permitted_at)
        except Exception:
            log.exception("run.broken")  # the heartbeat finds it owned here and executed nowhere
        finally:
            del self._active[run.key]
            active.ended.set()
            self._room.set()

    async def _run(self, active: _Active, permitted_at: float) -> None:
        run = active.run
        earlier = await self._store.calls(run.key) if run.fence > 1 else ()
        execution = Execution(
            run=run,
            earlier=earlier,
            token=active.token,
            journals=self._journals,
            permitted_at=permitted_at,
            snapshot_interval_seconds=self._limits.snapshot_interval_seconds,
        )
        conclusion = await self._conclude(active, execution)
        if conclusion is None:
            await self._give_up(active, execution)
            return
        await self._settle(active, execution, conclusion)

    async def _settle(self, active: _Active, execution: Execution, conclusion: Conclusion) -> None:
        """Write the end; where somebody's wish to stop came first, that is the end."""
        ended = execution.settlement(conclusion, delivered_at=active.delivered_at)
        settled = await self._journals.settle(ended)
        if settled.wish is not None:
            stop = CancelledError(settled.wish.reason, requested_by=settled.wish.requested_by)
            conclusion = stopped(stop, conclusion.result, at=datetime.now(UTC))
            ended = execution.settlement(conclusion, delivered_at=datetime.now(UTC))
            settled = await self._journals.settle(ended)
        if settled.done:
            log.info("run.settled", status=conclusion.status.value)
        else:
            log.warning("run.settled_elsewhere")

    async def _conclude(self, active: _Active, execution: Execution) -> Conclusion | None:
        """Execute the run; None if it goes on elsewhere."""
        run, now = active.run, datetime.now(UTC)
        if run.wish is not None:
            self.stop(run.key, run.wish)
        elif run.attempts > self._limits.max_attempts:
            return stopped(_worker_lost(run), None, at=now)
        graph = self._driver.execution(graph_for(run), {}, execution.context(self._services))
        timers = self._timers(active, execution)
        try:
            outcome = await self._supervisor.run(
                graph.run(), active.token, late=lambda _: self._record_late(execution)
            )
        except AbandonedError as abandoned:
            outcome = graph.abandoned(abandoned.stop)
        finally:
            for timer in timers:
                timer.cancel()
        if isinstance(outcome.stop, HandOver):
            return None
        return conclude(outcome, at=datetime.now(UTC))

    def _timers(self, active: _Active, execution: Execution) -> list[asyncio.TimerHandle]:
        """Have the run's seconds and its deadline interrupt it."""
        loop, token, timers = asyncio.get_running_loop(), active.token, []
        left = execution.scope.remaining_seconds()
        if left is not None:
            timers.append(
                loop.call_later(max(0.0, left), lambda: token.trip(execution.scope.out_of_time()))
            )
        deadline = active.run.request.deadline
        if deadline is not None:
            left = (deadline - datetime.now(UTC)).total_seconds()
            timers.append(
                loop.call_later(max(0.0, left), token.trip, DeadlineExceededError(deadline))
            )
        return timers

    async def _give_up(self, active: _Active, execution: Execution) -> None:
        """Let another process go on with the run, unless it has it already."""
        if isinstance(active.token.stop, LostRunError):
            log.warning("run.lost")
            return
        calls = execution.abandon("The process gave the run up.")
        await self._store.release(
            active.run, active_seconds=execution.active_seconds, calls=calls, counted=False
        )
        log.info("run.handed_over")

    def _record_late(self, execution: Execution) -> None:
        """Add what abandoned work has cost after all; its result is dropped."""
        log.warning("run.late_result", run_id=execution.run.key.run_id)
        self._keep(asyncio.create_task(self._store.late(execution.late()), name="late result"))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _worker_lost(run: Run) -> HandOver:
    return HandOver(f"Its worker was lost {run.attempts - 1} times.")
