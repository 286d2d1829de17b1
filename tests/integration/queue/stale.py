"""Workers that fall silent, on a database that an oracle can make older."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caseworker.runs.postgres.workers import StaleRunRecovery
from caseworker.runs.run import Run, RunKey
from tests.support.stores import Oracle, Stores, new_run

KEY = RunKey("default", "case-1")
STALE = 10.0
WAITING = "SELECT queueing_lock FROM procrastinate_jobs WHERE status = 'todo' ORDER BY 1"


@dataclass
class World:
    stores: Stores
    oracle: Oracle
    living: tuple[str, ...] = ("alive",)
    """Workers that beat between two looks, if they have ever beaten."""
    now: float = 0.0

    def recovery(self, **options: float) -> StaleRunRecovery:
        usual: dict[str, Any] = {
            "interval_seconds": STALE,
            "stale_seconds": STALE,
            "max_attempts": 5,
            "clock": lambda: self.now,
        }
        return StaleRunRecovery(
            pool=self.stores.engines.work, dispatch=self.stores.dispatch, **usual | options
        )

    async def recover(self, **options: float) -> Sequence[RunKey]:
        """Look, and look again when whoever has not beaten has been silent for too long."""
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
        """Have every run been claimed, or queued, longer ago."""
        await self.oracle.rows(
            """UPDATE runs SET claimed_at = claimed_at - make_interval(secs => %s),
                   queued_at = queued_at - make_interval(secs => %s)""",
            seconds,
            seconds,
        )

    async def jobs(self) -> list[str]:
        return [row["queueing_lock"] for row in await self.oracle.rows(WAITING)]
