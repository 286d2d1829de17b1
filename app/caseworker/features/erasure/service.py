"""Erases the data of a customer: of a tenant, or with certain metadata."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caseworker.features.erasure.postgres import PostgresErasure, Subject
from caseworker.runs.run import RunKey
from caseworker.runs.service import RunService

WORK_SECONDS = 10.0
"""Maximum seconds that one request erases data. If data is left, the caller repeats the request."""
BATCH_RUNS = 100
"""Number of runs in one transaction, without the runs that depend on them."""
CHECK_SECONDS = 0.2
"""Interval of the checks whether cancelled runs have ended."""
REASON = "Its data is being erased."


@dataclass(slots=True)
class Erasure:
    """What one request has erased."""

    runs: int = 0
    threads: int = 0
    schedules: int = 0
    waiting: int = 0
    """Number of runs that were cancelled and have not ended."""
    complete: bool = False
    """Whether nothing is left."""


class Erasing:
    """Cancels and erases runs, then everything else that belongs to the subject."""

    def __init__(self, store: PostgresErasure, runs: RunService) -> None:
        self._store = store
        self._runs = runs

    async def erase(self, subject: Subject, *, by: str, tenant: str) -> Erasure:
        """Erase as much as possible in ``WORK_SECONDS``.

        ``by`` is the name of the caller and ``tenant`` its tenant.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        clock = asyncio.get_running_loop().time
        ends_at, erasure = clock() + WORK_SECONDS, Erasure()
        erasure.schedules = await self._store.close(subject)
        waiting = set[str]()
        while clock() < ends_at:
            seeds = await self._store.runs_of(subject, limit=BATCH_RUNS, excluding=waiting)
            if not (seeds or waiting):
                erasure.threads, erasure.complete = await self._store.finish(subject), True
                await self._store.record(subject, tenant)
                break
            if not seeds:
                erasure.waiting = len(waiting)
                await asyncio.sleep(CHECK_SECONDS)
                waiting = set()
                continue
            links = await self._links(subject, seeds)
            groups = {seed: _with_descendants(seed, links) for seed in seeds}
            batch = await self._store.erase_runs(subject, groups.values())
            erasure.runs += len(batch.erased)
            waiting |= groups.keys() - batch.erased
            async with asyncio.TaskGroup() as cancels:
                for run_id in batch.active:
                    key = RunKey(subject.tenant, run_id)
                    cancels.create_task(self._runs.cancel(key, by=by, reason=REASON))
        erasure.waiting = 0 if erasure.complete else len(waiting) or erasure.waiting
        return erasure

    async def _links(self, subject: Subject, run_ids: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if subject.metadata is None:
            return {}
        return await self._store.descendants(subject.tenant, run_ids)


def _with_descendants(run_id: str, links: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return a run with its forks and children, and theirs."""
    group, pending = set[str](), [run_id]
    while pending:
        one = pending.pop()
        if one not in group:
            group.add(one)
            pending += links.get(one, ())
    return frozenset(group)
