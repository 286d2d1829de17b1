"""Stories of runs with approvals: decisions, changed decisions and timeouts, drawn from a seed."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.engine.waiting_calls import Verdict
from caseworker.features.waiting_calls.waiting_calls import (
    Approval,
    ApprovalDecidedError,
    Deciding,
    RunWaitingCalls,
)
from caseworker.runs.run import RunKey, RunStatus
from tests.support.event_log import event_problems
from tests.support.seeded_loop import run as run_seeded
from tests.support.virtual_cluster import Cluster, ExternalCall, Work

KEY = RunKey("t", "r0")
APPROVE, REFUSE = Verdict.APPROVED, Verdict.REFUSED


class Story:
    """One run on a cluster whose processes may be lost, and the operators who decide."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"approvals {seed}")
        self.accepted: list[tuple[str, Verdict]] = []
        """The decisions that the service accepted."""

    async def __call__(self, cluster: Cluster) -> None:
        chance = self.chance
        work = Work(
            calls=chance.choice([1, 2]),
            lanes=chance.choice([1, 2, 3]),
            trouble=0.0,
            patience=chance.choice([2.0, 30.0]),
        )
        to = chance.choice([*(each.service for each in cluster.processes), cluster.replica])
        limit = Budget(max_api_calls=chance.choice([None, None, 1]))
        await cluster.post("r0", work, limit, to=to)
        others = [self._lose(cluster), self._cancel(cluster)]
        tasks = [asyncio.create_task(each) for each in (*others, self._decide(cluster))]
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _lose(self, cluster: Cluster) -> None:
        for process in cluster.processes:
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.choice([0.05, 0.5, self.chance.uniform(0, 6)]))
                for key in cluster.database.lose(process.name):
                    cluster.diary.note("lost", key)

    async def _cancel(self, cluster: Cluster) -> None:
        if self.chance.random() < 0.3:
            await asyncio.sleep(self.chance.uniform(0, 8))
            await cluster.delete("r0", to=cluster.replica, heard=self.chance.random() < 0.5)

    async def _decide(self, cluster: Cluster) -> None:
        desk = RunWaitingCalls(cluster.approvals)
        for _ in range(400):
            run = cluster.database.rows[KEY].run
            if run is not None and run.finished:
                return
            await asyncio.sleep(self.chance.choice([0.0, 0.02, 0.5]))
            for approval in await desk.of_run(KEY):
                if approval.open and self.chance.random() < 0.3:
                    async with asyncio.TaskGroup() as people:
                        for _ in range(2):
                            people.create_task(self._say(cluster, desk, approval))

    async def _say(self, cluster: Cluster, desk: RunWaitingCalls, approval: Approval) -> None:
        verdict = self.chance.choice([APPROVE, APPROVE, REFUSE])
        await asyncio.sleep(self.chance.choice([0.0, 0.01]))
        deciding = Deciding(approval_id=approval.approval_id, verdict=verdict, by="somebody")
        try:
            await desk.decide(KEY, deciding)
        except ApprovalDecidedError:
            return
        self.accepted.append((approval.approval_id, verdict))


def played(seed: int, **variant: Any) -> tuple[Cluster, Story]:
    """Play the story of a seed, and require that no task is left over."""
    story = Story(seed)

    async def main() -> Cluster:
        return await Cluster(seed, **variant).play(story)

    told = run_seeded(main, seed)
    assert told.leftover == (), f"seed {seed}: {told.leftover}"
    return told.result, story


def problems(cluster: Cluster, story: Story) -> Iterator[str]:
    """Yield each violated promise."""
    row = cluster.database.rows[KEY]
    approvals: dict[str, Approval] = row.approvals
    made = [event.detail for event in cluster.diary.of(KEY, "call")]
    of_call = {each.call_key.removesuffix("/approval"): each for each in approvals.values()}
    for call in made:
        assert isinstance(call, ExternalCall)
        approval = of_call.get(call.call.key.text)
        if approval is None or approval.decision is None or not approval.decision.approved:
            yield f"{call.call.key} was called without an approval"
        times = sum(other.call.key == call.call.key for other in made)
        if times > 1 and not call.call.repeatable:
            yield f"{call.call.key} was called {times} times"
    if len(of_call) != len(approvals):
        yield "a call was asked for more than once"
    for approval_id, verdict in story.accepted:
        decision = approvals[approval_id].decision
        if decision is None or decision.verdict is not verdict:
            yield f"somebody was told that {approval_id} is {verdict}"
    told = [event.type for event in row.events.values() if event.type == "approval.requested"]
    if len(told) > len(approvals):
        yield "a question was told twice"
    if row.run is not None:
        log = [row.events[seq] for seq in sorted(row.events)]
        yield from event_problems(log, row.run.status)
    if row.run is not None and row.run.status is RunStatus.COMPLETED:
        reached = {call.call.key.text for call in made}
        for key, approval in of_call.items():
            if approval.decision is None:
                yield f"{key} was passed without a decision"
            elif approval.decision.approved and key not in reached:
                yield f"{key} was approved and never called"
