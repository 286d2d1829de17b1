"""Stories of runs that are posted, deleted and disturbed, all drawn from a seed."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from caseworker.core.budget.budget import Budget
from tests.support.seeded_loop import run as run_seeded
from tests.support.virtual_cluster import Cluster, Work
from tests.support.virtual_database import Event


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The requests for one run."""

    run_id: str
    post_at: float
    post_to: int
    """The process, or 2 for the replica without an executor."""
    delete_at: float | None
    delete_to: int
    heard: bool
    work: Work
    budget: Budget


@dataclass(frozen=True, kw_only=True)
class Story:
    """The events of a cluster."""

    seed: int
    runs: list[Plan]
    disturbance: str
    disturbed_at: float
    strike_before_step: int | None
    """The step of the loop before which the first run is deleted as well."""
    strike_at: str
    """Alternatively, the diary event at which it is deleted."""
    strike_delay: float

    async def __call__(self, cluster: Cluster) -> None:
        if self.strike_before_step is None:
            cluster.diary.reader = self._strike(cluster)
        async with asyncio.TaskGroup() as group:
            for plan in self.runs:
                group.create_task(self._post(cluster, plan))
                group.create_task(self._delete(cluster, plan))
            group.create_task(self._disturb(cluster))

    async def _post(self, cluster: Cluster, plan: Plan) -> None:
        await asyncio.sleep(plan.post_at)
        to = [*(process.service for process in cluster.processes), cluster.replica][plan.post_to]
        accepted = await cluster.post(plan.run_id, plan.work, plan.budget, to=to)
        if accepted is None:  # the client may retry
            await asyncio.sleep(1)
            await cluster.post(plan.run_id, plan.work, plan.budget, to=cluster.replica)

    async def _delete(self, cluster: Cluster, plan: Plan) -> None:
        if plan.delete_at is not None:
            await asyncio.sleep(plan.delete_at)
            await self.delete(cluster, plan)

    async def delete(self, cluster: Cluster, plan: Plan) -> None:
        """Delete a run as planned."""
        to = [*(process.service for process in cluster.processes), cluster.replica][plan.delete_to]
        await cluster.delete(plan.run_id, to=to, heard=plan.heard)

    def _strike(self, cluster: Cluster) -> Callable[[Event], None]:
        """Return a reader that deletes the first run at the first occurrence of the event."""

        def read(event: Event) -> None:
            if event.kind != self.strike_at or event.key.run_id != self.runs[0].run_id:
                return
            cluster.diary.reader = None
            strikes.append(
                cluster.loop.call_later(self.strike_delay, lambda: strikes.append(begin()))
            )

        def begin() -> object:
            return cluster.loop.create_task(self.delete(cluster, self.runs[0]))

        strikes: list[object] = []
        return read

    async def _disturb(self, cluster: Cluster) -> None:
        await asyncio.sleep(self.disturbed_at)
        first = cluster.processes[0]
        match self.disturbance:
            case "hand-over":
                await first.close()
            case "slow hand-over":
                await first.close(grace_seconds=1.0)
            case "process lost":
                for key in cluster.database.lose(first.name):
                    cluster.diary.note("lost", key)


WORK = [Work(calls=calls, trouble=trouble) for calls in (1, 2, 3) for trouble in (0.0, 0.4, 0.8)]


BUDGETS = [
    Budget(),
    Budget(max_api_calls=2),
    Budget(max_api_calls=0),
    Budget(max_tokens=45),
    Budget(max_time_seconds=1.0),
    *[Budget()] * 4,
]


LOST = {"answers lost": 0.2, "slow hand-over": 0.2}
"""How often an answer of the database is lost."""


DISTURBANCES = ["none", "hand-over", "slow hand-over", "process lost", "answers lost"]


MOMENTS = [
    "post",
    "status",
    "step",
    "call",
    "call over",
    "try failed",
    "settlement begun",
    "release begun",
]


def story_of(seed: int) -> Story:
    """Draw a story from its seed."""
    chance = random.Random(seed)
    runs = [_plan(chance, f"r{number}") for number in range(chance.choice([1, 2, 4]))]
    disturbance = chance.choices(DISTURBANCES, weights=[4, 2, 2, 2, 2])[0]
    strike_at = chance.choice(MOMENTS)
    if disturbance in ("hand-over", "slow hand-over"):
        runs[0] = replace(runs[0], post_to=0, work=WORK[-1])
        strike_at = chance.choice([strike_at, "release begun"])
    return Story(
        seed=seed,
        runs=runs,
        disturbance=disturbance,
        disturbed_at=chance.uniform(0, 1.5),
        strike_before_step=chance.choice([None, chance.randrange(20, 600)]),
        strike_at=strike_at,
        strike_delay=chance.choice([0.0, 0.0, 0.001, 0.02, 0.1]),
    )


def _plan(chance: random.Random, run_id: str) -> Plan:
    post_at = chance.uniform(0, 0.3)
    after = chance.choice([-0.3, -0.01, 0.0, 0.01, 0.1, chance.uniform(0, 3)])
    return Plan(
        run_id=run_id,
        post_at=post_at,
        post_to=chance.randrange(3),
        delete_at=chance.choice([None, None, max(0.0, post_at + after)]),
        delete_to=chance.randrange(3),
        heard=chance.random() < 0.5,
        work=chance.choice(WORK),
        budget=chance.choice(BUDGETS),
    )


def played(seed: int, **variant: Any) -> Cluster:
    """Play the story of a seed, and require that no task is left over."""
    story, clusters = story_of(seed), list[Cluster]()

    async def main() -> Cluster:
        clusters.append(Cluster(seed, lost=LOST.get(story.disturbance, 0.0), **variant))
        return await clusters[0].play(story)

    def strike() -> object:
        ready = clusters and not clusters[0].over
        return story.delete(clusters[0], story.runs[0]) if ready else None

    told = run_seeded(
        main,
        seed,
        interrupt=None if story.strike_before_step is None else strike,
        before_step=story.strike_before_step or 0,
    )
    assert told.leftover == (), f"seed {seed}: {told.leftover}"
    return told.result
