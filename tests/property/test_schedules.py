"""Stopping runs at every moment: thousands of orders of events, each drawn from a seed.

Each story posts a few runs to a cluster of processes and deletes them at some moment: before or
during the POST, in the queue, in a call, between two attempts, while the end is written, or during
a hand-over, with and without a notification. Some stories lose answers of the database or a whole
process. Afterwards the diary of the outside world and the database are checked against the
promises of the service.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from caseworker.core.budget import reservations
from caseworker.core.budget.budget import Budget
from caseworker.core.budget.ledger import Scope
from caseworker.runs.ports import FinishResult, JournalWrite, Permission
from caseworker.runs.run import CallRecord, CancelRequest, FinishRun, Run, RunKey, RunStatus
from tests.property.oracle import moment_of_the_cancel_request, problems
from tests.property.stories import played, story_of
from tests.support.memory_rows import Row
from tests.support.seeded_loop import interrupted_everywhere
from tests.support.seeds import seeds
from tests.support.virtual_cluster import Cluster, Work
from tests.support.virtual_database import Database, Line


@pytest.mark.req("004/cancel-early", "004/lifecycle", "000/C3", "000/B1", "000/B3", "card/delete")
@pytest.mark.guarantee(2)
@seeds(fast=200, proofs=2_000)
def test_every_promise_holds_whenever_a_run_is_stopped(seeds: Iterable[int]) -> None:
    """No call starts after the cancel request, a run ends once, and no budget is exceeded."""
    for seed in seeds:
        found = problems(played(seed))
        assert found == [], f"seed {seed}: {found}"


@pytest.mark.req("004/cancel-early", "000/C3")
@pytest.mark.parametrize("seed", range(3))
def test_every_promise_holds_for_a_delete_before_any_step_of_a_story(seed: int) -> None:
    """One run with three calls, two of them retried, is deleted before each step of its story."""
    ends = Counter[RunStatus]()
    for step, told in interrupted_everywhere(lambda: OneRun(seed), seed):
        assert told.leftover == (), f"seed {seed}, step {step}: {told.leftover}"
        found = problems(told.result)
        assert found == [], f"seed {seed}, step {step}: {found}"
        ends.update(row.run.status for row in told.result.database.rows.values() if row.run)

    assert ends[RunStatus.CANCELLED] > 100
    assert ends[RunStatus.COMPLETED] >= 1


class OneRun:
    """A story of one run that is deleted from outside."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._cluster: Cluster | None = None

    async def play(self) -> Cluster:
        self._cluster = Cluster(self._seed, slow=0.03)
        return await self._cluster.play(self._post)

    def interrupt(self) -> object:
        cluster = self._cluster
        if cluster is None or cluster.over:
            return None
        return cluster.delete("r0", to=cluster.replica, heard=False)

    async def _post(self, cluster: Cluster) -> None:
        work = Work(calls=3, trouble=0.5)
        await cluster.post("r0", work, Budget(), to=cluster.processes[0].service)


def test_the_stories_are_not_vacuous() -> None:
    """Cancel requests are committed at every moment, notified or not, and all faults occur."""
    moments, unheard, ends, seen = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    told = Counter[str]()
    for seed in range(800):
        cluster, plans = played(seed), {plan.run_id: plan for plan in story_of(seed).runs}
        seen.update(event.kind for event in cluster.diary.events)
        for key, row in cluster.database.rows.items():
            moment = moment_of_the_cancel_request(cluster, key)
            moments[moment] += 1
            plan = plans[key.run_id]
            unheard[moment] += plan.delete_to == 2 and not plan.heard
            ends[row.run.status.value if row.run else "no run"] += 1
            told.update(event.type for event in row.events.values())

    assert all(moments[moment] >= 3 for moment in ALL_MOMENTS), moments
    assert all(unheard[moment] >= 5 for moment in ("in a call", "elsewhere in the run")), unheard
    assert all(ends[end] >= 50 for end in ("completed", "halted", "cancelled")), ends
    assert all(seen[kind] >= 5 for kind in DISTURBED), seen
    assert all(told[kind] >= 5 for kind in TOLD), told


ALL_MOMENTS = [
    "before the POST",
    "racing the POST",
    "in the queue",
    "in the queue again",
    "in a call",
    "between two tries",
    "elsewhere in the run",
    "at the settlement",
    "racing a hand-over",
    "never, or too late",
]


DISTURBED = ["lost", "release begun", "release lost", "acceptance lost", "late result", "deaf"]


TOLD = [
    *("step.started", "step.resumed", "step.completed", "step.cancelled", "late_result"),
    *("run.completed", "run.halted", "run.cancelled"),
]


class DeafLine(Line):
    """A journal whose barrier ignores cancel requests."""

    async def write(self, write: JournalWrite) -> Permission:
        return replace(await super().write(write), cancel_request=None)


class CarelessDatabase(Database):
    """A database that ends runs without checking for a cancel request."""

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        row = self.rows[finish_run.key]
        cancel_request, row.run = (
            row.run.cancel_request if row.run else None,
            _with_cancel_request(row.run, None),
        )
        finish_result = await super().finish(finish_run)
        row.run = _with_cancel_request(row.run, cancel_request)
        return finish_result


class UnfencedDatabase(Database):
    """A database in which a worker that has lost its run can still write."""

    def _owned(self, key: RunKey, fence: int) -> Row | None:
        run = self.rows[key].run
        return super()._owned(key, run.fence if run else fence)


class ForgetfulDatabase(Database):
    """A database that loses the journal between two executions."""

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        return (await super().calls(key))[:1]


def _with_cancel_request(run: Run | None, cancel_request: CancelRequest | None) -> Run | None:
    return None if run is None else replace(run, cancel_request=cancel_request)


@pytest.mark.parametrize(
    ("variant", "broken"),
    [
        ({"line": DeafLine}, "passed a barrier after the wish"),
        ({"database_type": CarelessDatabase}, "was to be stopped, and is completed"),
        ({"database_type": UnfencedDatabase}, "below a closed root"),
        ({"database_type": ForgetfulDatabase}, "is charged for"),
    ],
    ids=["deaf barrier", "careless settlement", "no fences", "no memory"],
)
def test_the_oracle_sees_what_is_broken(variant: dict[str, Any], broken: str) -> None:
    """The oracle reports each promise that is deliberately broken."""
    assert any(broken in problem for problem in _found_with(variant, seeds=400))


@pytest.mark.req("000/B1")
def test_the_oracle_sees_an_overshoot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle reports a ledger that permits everything."""
    monkeypatch.setattr(Scope, "refusal", lambda scope, charge, held: None)
    monkeypatch.setattr(reservations, "free_amounts", lambda accounts, claims: {})
    monkeypatch.setattr(reservations, "_fits", lambda accounts, charge, claims: True)

    assert any(" calls of " in problem for problem in _found_with({}, seeds=200))


def _found_with(variant: Mapping[str, Any], *, seeds: int) -> Iterator[str]:
    for seed in range(seeds):
        yield from problems(played(seed, **variant))
