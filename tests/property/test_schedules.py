"""Stopping runs at every moment: thousands of orders of events, each told by a seed.

Each story posts a few runs to a cluster of processes and deletes them at some moment: before the
POST, while it races it, in the queue, in a call, between two tries, at the settlement, while one
process hands over to another, with and without a notification. Some stories lose answers of the
database or a whole process. Afterwards the diary of the outside world and of the database is held
against what the service promises.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest

from app.control.budget import Budget
from app.runs.ports import JournalWrite, Permission, Settled
from app.runs.run import TERMINAL, Run, RunKey, RunStatus, Settlement, StopWish
from app.trace.execution_graph import ExecutionGraph
from app.trace.invariants import regressions, violations
from tests.support.seeded_loop import run as run_seeded
from tests.support.virtual_cluster import DEAREST, ESTIMATE, Cluster, Process, Work
from tests.support.virtual_database import Event, Line

SEEDS = 2_400
SHARDS = 8
ALLOWED_SECONDS = 0.1
"""How old the permission may be with which a call begins."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens to one run."""

    run_id: str
    post_at: float
    post_to: int
    """The process, or 2 for the replica that executes nothing."""
    delete_at: float | None
    delete_to: int
    heard: bool
    work: Work
    budget: Budget


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happens to a cluster."""

    seed: int
    runs: list[Plan]
    disturbance: str
    disturbed_at: float
    strike_before_step: int
    """When, in steps of the loop, the first run is deleted as well."""

    async def __call__(self, cluster: Cluster) -> None:
        async with asyncio.TaskGroup() as group:
            for plan in self.runs:
                group.create_task(self._post(cluster, plan))
                group.create_task(self._delete(cluster, plan))
            group.create_task(self._disturb(cluster))

    async def _post(self, cluster: Cluster, plan: Plan) -> None:
        await asyncio.sleep(plan.post_at)
        to = [*(process.service for process in cluster.processes), cluster.replica][plan.post_to]
        accepted = await cluster.post(plan.run_id, plan.work, plan.budget, to=to)
        if accepted is None:  # the client tries again, as it may
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
