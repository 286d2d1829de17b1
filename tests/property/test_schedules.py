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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import structlog

from app.control.budget import Budget
from app.control.ledger import Scope
from app.runs.ports import JournalWrite, Permission, Settled
from app.runs.run import TERMINAL, CallRecord, Run, RunKey, RunStatus, Settlement, StopWish
from app.trace.invariants import node_violations, regressions, violations
from tests.support.memory_runs import Row
from tests.support.seeded_loop import interrupted_everywhere
from tests.support.seeded_loop import run as run_seeded
from tests.support.virtual_cluster import DEAREST, HEARTBEAT_SECONDS, Cluster, Work
from tests.support.virtual_database import Database, Event, Line

SEEDS = 2_400
"""Each takes a few milliseconds."""
SHARDS = 8
ALLOWED_SECONDS = 0.1
"""How old the permission may be with which a call begins."""
SLACK_SECONDS = 1.0
"""What the statements of two heartbeats may take."""


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
    strike_before_step: int | None
    """When, in steps of the loop, the first run is deleted as well."""
    strike_at: str
    """Or else at which of its events."""
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

    def _strike(self, cluster: Cluster) -> Callable[[Event], None]:
        """Delete the first run when the diary tells of the event for the first time."""

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
"""How often an answer of the database gets lost."""
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
    """Everything about a story is drawn from its seed."""
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
    """Play the story of a seed; nothing may be left over of it."""
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


# -- the oracle --------------------------------------------------------------------------------


def problems(cluster: Cluster) -> list[str]:
    """Return one sentence for every promise that was broken."""
    return [
        f"{key.run_id} {problem}"
        for key, row in cluster.database.rows.items()
        if row.run is not None
        for problem in [
            *_about_its_end(cluster, row.run),
            *_about_calls_after_the_wish(cluster, key),
            *_about_calls_in_flight(cluster, key),
            *_about_repeated_calls(cluster, key),
            *_about_its_budget(cluster, row.run),
            *_about_its_records(cluster, row.run),
        ]
    ]


def _about_its_end(cluster: Cluster, run: Run) -> Iterator[str]:
    history = cluster.database.history(run.key)
    ends = [status for status in history if status in TERMINAL]
    if len(ends) != 1 or history[-1] not in TERMINAL:
        yield f"has the history {history}"
    if run.wish is not None and run.status is not RunStatus.CANCELLED:
        yield f"was to be stopped, and is {run.status}"
    if run.wish is None and run.status is RunStatus.CANCELLED:
        yield "is cancelled, and nobody has wished it"


def _about_calls_after_the_wish(cluster: Cluster, key: RunKey) -> Iterator[str]:
    wished = cluster.database.wished(key)
    if wished is None:
        return
    step, at = wished
    for event in cluster.diary.of(key, "call", "step"):
        if event.at > at + ALLOWED_SECONDS:
            yield f"began a {event.kind} {event.at - at:.3f} s after the wish to stop it"
    for event in cluster.diary.of(key, "call"):
        permitted = event.detail.permitted_at_step
        if event.detail.call.external and (permitted is None or permitted > step):
            yield "passed a barrier after the wish to stop it"


def _about_calls_in_flight(cluster: Cluster, key: RunKey) -> Iterator[str]:
    """They are cancelled at the next heartbeat, unless they are deaf to it or their process is."""
    wished = cluster.database.wished(key)
    if wished is None or cluster.diary.of(key, "deaf", "lost"):
        return
    for event in cluster.diary.of(key, "call over"):
        if event.at > wished[1] + HEARTBEAT_SECONDS + SLACK_SECONDS:
            yield f"had a call until {event.at - wished[1]:.3f} s after the wish to stop it"


def _about_repeated_calls(cluster: Cluster, key: RunKey) -> Iterator[str]:
    """A frozen process may send the one call that it was already allowed."""
    stored = {event.detail: event.step for event in cluster.diary.of(key, "result stored")}
    made = Counter[str]()
    for event in cluster.diary.of(key, "call"):
        call, permitted = event.detail.call, event.detail.permitted_at_step
        made[call.key] += 1
        if call.external and permitted > stored.get(call.key, permitted):
            yield f"made {call.key} again, whose result was stored"
        if call.external and not call.repeatable and made[call.key] > 1:
            yield f"made {call.key} again, which must not be repeated"


def _about_its_budget(cluster: Cluster, run: Run) -> Iterator[str]:
    """What stays inside a process and is lost with it costs nothing, and is made again."""
    limits, used = run.request.budget, run.usage or {}
    lost = bool(cluster.diary.of(run.key, "lost", "release lost"))
    made = [event.detail.call for event in cluster.diary.of(run.key, "call")]
    counted = sum(call.external or not lost for call in made)
    if limits.max_api_calls is not None and counted > limits.max_api_calls:
        yield f"made {counted} calls of {limits.max_api_calls}"
    charged = used.get("api_calls", 0)
    if charged < counted or (charged > counted and not lost):
        yield f"is charged for {charged} calls and has made {counted}"
    dearest = DEAREST.tokens_in + DEAREST.tokens_out
    if limits.max_tokens is not None and used.get("tokens", 0) > limits.max_tokens + dearest:
        yield f"used {used['tokens']} tokens of {limits.max_tokens}"


def _about_its_records(cluster: Cluster, run: Run) -> Iterator[str]:
    row = cluster.database.rows[run.key]
    for snapshot in row.snapshots:
        yield from violations(snapshot)
    for earlier, later in pairwise(row.snapshots):
        yield from regressions(earlier, later)
    stored = {record.node_id: record.node for record in row.calls.values()}
    yield from node_violations(stored)
    last = row.snapshots[-1]["nodes"]
    if {name: node["status"] for name, node in stored.items()} != {
        name: node["status"] for name, node in last.items()
    }:
        yield "has a journal that tells another story than its last snapshot"


# -- what happened -------------------------------------------------------------------------------


def moment_of_the_wish(cluster: Cluster, key: RunKey) -> str:
    """Say what a run was doing when the wish to stop it was committed."""
    wished = cluster.database.wished(key)
    if wished is None:
        return "never, or too late"
    before = [
        event for event in cluster.diary.events if event.key == key and event.step < wished[0]
    ]
    kinds = [event.kind for event in before]
    statuses = [event.detail for event in before if event.kind == "status"]
    if kinds.count("post") > kinds.count("post answered"):
        return "racing the POST"
    if not statuses:
        return "before the POST"
    if statuses[-1] is RunStatus.QUEUED:
        return "in the queue" if len(statuses) == 1 else "in the queue again"
    since = kinds[_last(kinds, "status") :]
    if "settlement begun" in since:
        return "at the settlement"
    if "release begun" in since:
        return "racing a hand-over"
    if since.count("call") > since.count("call over"):
        return "in a call"
    if since[-1:] == ["call over"] and since[-2:-1] == ["try failed"]:
        return "between two tries"
    return "elsewhere in the run"


def _last(kinds: list[str], kind: str) -> int:
    return len(kinds) - 1 - kinds[::-1].index(kind)


# -- the tests -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of runs have thousands of lines to log."""
    with structlog.testing.capture_logs():
        yield


@pytest.mark.req("004/cancel-early", "000/C3", "000/B1", "000/B3", "card/delete")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_promise_holds_whenever_a_run_is_stopped(shard: int) -> None:
    """No call after the wish, one end, no overshoot, nothing left over, sound records."""
    for seed in range(shard, SEEDS, SHARDS):
        found = problems(played(seed))
        assert found == [], f"seed {seed}: {found}"


@pytest.mark.req("004/cancel-early", "000/C3")
@pytest.mark.parametrize("seed", range(3))
def test_every_promise_holds_for_a_delete_before_any_step_of_a_story(seed: int) -> None:
    """One run with three calls, two of them tried twice, deleted before each of its steps."""
    ends = Counter[RunStatus]()
    for step, told in interrupted_everywhere(lambda: OneRun(seed), seed):
        assert told.leftover == (), f"seed {seed}, step {step}: {told.leftover}"
        found = problems(told.result)
        assert found == [], f"seed {seed}, step {step}: {found}"
        ends.update(row.run.status for row in told.result.database.rows.values() if row.run)

    assert ends[RunStatus.CANCELLED] > 100
    assert ends[RunStatus.COMPLETED] >= 1


class OneRun:
    """A story of one run, to be deleted from outside."""

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
    """Wishes are committed at every moment, heard and unheard, and every disturbance happens."""
    moments, unheard, ends, seen = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for seed in range(800):
        cluster, plans = played(seed), {plan.run_id: plan for plan in story_of(seed).runs}
        seen.update(event.kind for event in cluster.diary.events)
        for key, row in cluster.database.rows.items():
            moment = moment_of_the_wish(cluster, key)
            moments[moment] += 1
            plan = plans[key.run_id]
            unheard[moment] += plan.delete_to == 2 and not plan.heard
            ends[row.run.status.value if row.run else "no run"] += 1

    assert all(moments[moment] >= 5 for moment in ALL_MOMENTS), moments
    assert all(unheard[moment] >= 5 for moment in ("in a call", "elsewhere in the run")), unheard
    assert all(ends[end] >= 50 for end in ("completed", "halted", "cancelled")), ends
    assert all(seen[kind] >= 5 for kind in DISTURBED), seen


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


class DeafLine(Line):
    """A journal whose barrier does not see wishes."""

    async def write(self, write: JournalWrite) -> Permission:
        return replace(await super().write(write), wish=None)


class CarelessDatabase(Database):
    """Ends runs without looking at wishes."""

    async def settle(self, settlement: Settlement) -> Settled:
        row = self.rows[settlement.key]
        wish, row.run = row.run.wish if row.run else None, _with_wish(row.run, None)
        settled = await super().settle(settlement)
        row.run = _with_wish(row.run, wish)
        return settled


class UnfencedDatabase(Database):
    """Lets a worker write that has lost its run."""

    def _owned(self, key: RunKey, fence: int) -> Row | None:
        run = self.rows[key].run
        return super()._owned(key, run.fence if run else fence)


class ForgetfulDatabase(Database):
    """Loses the journal between two executions."""

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        return (await super().calls(key))[:1]


def _with_wish(run: Run | None, wish: StopWish | None) -> Run | None:
    return None if run is None else replace(run, wish=wish)


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
    """Each promise is broken on purpose once."""
    assert any(broken in problem for problem in _found_with(variant, seeds=400))


@pytest.mark.req("000/B1")
def test_the_oracle_sees_an_overshoot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that lets everything through."""
    monkeypatch.setattr(Scope, "_require_room", lambda scope, charge: None)

    assert any(" calls of " in problem for problem in _found_with({}, seeds=200))


def _found_with(variant: Mapping[str, Any], *, seeds: int) -> Iterator[str]:
    for seed in range(seeds):
        yield from problems(played(seed, **variant))
