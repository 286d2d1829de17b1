"""Workers that stop sending heartbeats, on a database whose rows the tests can age."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caseworker.runs.recover.postgres import StaleRunRecovery
from caseworker.runs.run import Run, RunKey
from tests.support.stores import Oracle, Stores, new_run, recovery_of

KEY = RunKey("default", "case-1")
STALE = 10.0
WAITING = "SELECT queueing_lock FROM procrastinate_jobs WHERE status = 'todo' ORDER BY 1"


@dataclass
class StaleRuns:
    stores: Stores
    oracle: Oracle
    living: tuple[str, ...] = ("alive",)
    """Workers that send a heartbeat between two recoveries, if they ever did."""
    now: float = 0.0

    def recovery(self, **options: Any) -> StaleRunRecovery:
        usual: dict[str, Any] = {
            "interval_seconds": STALE,
            "stale_seconds": STALE,
            "max_attempts": 5,
            "clock": lambda: self.now,
        }
        return recovery_of(self.stores, **usual | options)

    async def recover(self, **options: Any) -> Sequence[RunKey]:
        """Recover twice; between the two calls the heartbeats of dead workers become stale."""
        recovery = self.recovery(**options)
        first = await recovery.recover()
        await self.oracle.rows(
            "UPDATE workers SET beat_at = clock_timestamp() WHERE worker_id = ANY(%s)",
            list(self.living),
        )
        self.now += 2 * STALE
        return [*first, *await recovery.recover()]

    async def claimed(self, run_id: str = "case-1", worker_id: str = "dead") -> Run:
        return (await self.stores.runs.accept(new_run(run_id), worker_id=worker_id)).run

    async def stored(self, key: RunKey = KEY) -> Run:
        run = await self.stores.runs.get(key)
        assert run is not None
        return run

    async def beat(self, worker_id: str, *, seconds_ago: float = 0) -> None:
        await self.stores.workers.beat(worker_id)
        await self.oracle.rows(
            """UPDATE workers SET beat_at = now() - make_interval(secs => %s)
               WHERE worker_id = %s""",
            seconds_ago,
            worker_id,
        )

    async def age(self, *, seconds: float) -> None:
        """Move the claim and queue times of all runs into the past."""
        await self.oracle.rows(
            """UPDATE runs SET claimed_at = claimed_at - make_interval(secs => %s),
                   queued_at = queued_at - make_interval(secs => %s)""",
            seconds,
            seconds,
        )

    async def jobs(self) -> list[str]:
        return [row["queueing_lock"] for row in await self.oracle.rows(WAITING)]
