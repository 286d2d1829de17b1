"""Watches all active runs, without the proxies, and records the owners of restarted runs."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from tests.chaos.world import HEARTBEAT_SECONDS, STALE_SECONDS, ChaosWorld, Interval

_LOOK_SECONDS = 0.1
_LOOK = """
SELECT run_id, attempts, worker_id FROM runs WHERE status IN ('queued', 'running', 'waiting')
"""

STARVING = "connections exhausted"
"""Ends all connections of the service and leaves it none. A process that gets none for the stale
time is cut off like a partitioned process."""
_STARVED = STALE_SECONDS - 2 * HEARTBEAT_SECONDS
"""The minimum time of such a loss after the start of the fault; the heartbeats stop before."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A run that was started again, and its previous owner."""

    run_id: str
    pid: int
    seen_at: float
    """When that worker was last seen as the owner."""
    noticed_at: float


class Watch:
    """The owner of each run at each look."""

    def __init__(self, world: ChaosWorld) -> None:
        self._world = world
        self._owners: dict[str, tuple[int, int, float]] = {}
        self.losses: list[Loss] = []
        self.handed_over = 0
        """How often a run resumed in another process without counting an attempt."""

    async def look_on(self) -> None:
        """Poll until cancelled; if the database is down, reconnect."""
        while True:
            with suppress(psycopg.Error, OSError):
                async with await psycopg.AsyncConnection.connect(
                    self._world.database.url, autocommit=True
                ) as connection:
                    while True:
                        self._take_in(await (await connection.execute(_LOOK)).fetchall())
                        await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)

    def _take_in(self, rows: list[tuple[str, int, str | None]]) -> None:
        now = time.monotonic()
        for run_id, attempts, worker_id in rows:
            before, pid, seen_at = self._owners.get(run_id, (0, 0, now))
            if attempts > before and pid:
                self.losses.append(Loss(run_id, pid, seen_at, now))
            owner = int(worker_id.rsplit("-", 2)[1]) if worker_id else pid
            self.handed_over += pid not in (0, owner) and attempts <= before
            self._owners[run_id] = (max(attempts, before), owner, now if worker_id else seen_at)

    def counted(self) -> list[Loss]:
        """Return the losses of processes that got SIGTERM and were able to release their runs."""
        told = {one.pid: one for one in self._world.chronicle.intervals if one.kind == "terminated"}
        return [
            loss
            for loss in self.losses
            if loss.pid in told
            and told[loss.pid].began <= loss.noticed_at
            and not self._was_lost(told[loss.pid], loss.noticed_at)
        ]

    def unexplained(self) -> Mapping[str, str]:
        """Return the losses of processes that neither exited nor were frozen or cut off, by run.

        A process that gets SIGTERM during a database outage cannot release its runs.
        """
        problems = {}
        for loss in self.losses:
            since = loss.seen_at - STALE_SECONDS - 2 * HEARTBEAT_SECONDS
            about = self._world.chronicle.between(since, loss.noticed_at)
            own = [one for one in self._world.chronicle.intervals if one.pid == loss.pid]
            gone = any(self._was_lost(one, loss.noticed_at) for one in own)
            if gone or any(
                one in own and (one.froze or one.kind == "partitioned") for one in about
            ):
                continue
            if self._world.chronicle.lag(since, loss.noticed_at) > HEARTBEAT_SECONDS:
                continue  # the whole machine was stalled
            faults = sorted({one.kind for one in about if not one.pid})
            if any(one.kind == STARVING and loss.seen_at - one.began > _STARVED for one in about):
                continue
            problems[loss.run_id] = f"process {loss.pid} lost it, and lives (around: {faults})"
        return problems

    def _was_lost(self, one: Interval, noticed_at: float) -> bool:
        """Return whether a process had exited before without being able to release its runs."""
        about = self._world.chronicle.between(one.began - STALE_SECONDS, one.ended)
        held = one.kind == "terminated" and any(not each.pid for each in about)
        return one.began <= noticed_at and (held or one.kind.startswith("killed"))
