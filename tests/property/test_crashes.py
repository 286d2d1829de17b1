"""A crash at every write: whatever fails, a run loses no result and repeats no call.

One run of about fifty calls is played repeatedly; see ``crash_stories`` for its steps and
``crashing_cluster`` for the faults. First each fault occurs at each write (in ``make test`` at a
third of the writes), then a seed draws up to three faults. ``CRASH_SEEDS`` is the number of seeds
of the proofs.
"""

import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import structlog

from caseworker.engine import calls
from caseworker.engine.calls import Calls
from caseworker.runs.journal.journal import RunJournal
from caseworker.runs.ports import JournalWrite, Permission
from caseworker.runs.run import RunKey, RunStatus
from caseworker.tools.dispatch import ToolDispatch
from tests.property.crash_oracle import problems, unknown_outcomes
from tests.property.crash_stories import PlayedCluster, play_cluster
from tests.support.crashing_cluster import CrashingCluster
from tests.support.crashing_wire import DEADLY, KEY, Fault, Wire
from tests.support.memory_rows import Row
from tests.support.memory_runs import MemoryRuns
from tests.support.seeds import seeds

SEEDS = int(os.environ.get("CRASH_SEEDS", "2000"))
WRITES = 80
"""About the number of the run's writes; a fault after the last write has no effect."""


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """Capture the log lines, because rendering thousands of them takes time."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@cache
def peaceful(seed: int = 0) -> PlayedCluster:
    """Return the run without faults."""
    story = play_cluster(seed, {})
    assert problems(story, story) == []
    return story


def faults_of(seed: int) -> Mapping[int, Fault]:
    """Draw the faults and the writes at which they occur."""
    chance = random.Random(f"crashes {seed}")
    count = chance.choice([1, 2, 2, 3])
    return {chance.randrange(WRITES): chance.choice(list(Fault)) for _ in range(count)}


def crashed(seed: int, **variant: Any) -> PlayedCluster:
    """Play the story of a seed; an error names the seed."""
    return play_cluster(seed, faults_of(seed), **variant)


def require_sound(story: PlayedCluster, about: str) -> None:
    found = problems(story, peaceful())
    assert found == [], f"{about}: {story.cluster.struck}: {found}"


@pytest.mark.req("003/resume")
@pytest.mark.guarantee(25)
@pytest.mark.parametrize(
    "third", [0, pytest.param(1, marks=pytest.mark.proof), pytest.param(2, marks=pytest.mark.proof)]
)
@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_at_every_write(fault: Fault, third: int) -> None:
    """The run ends with the same result for every fault at every write."""
    first = (list(Fault).index(fault) + third) % 3  # a third of the faults occur at each write
    for write, kind in list(enumerate(peaceful().cluster.writes))[first::3]:
        story = play_cluster(0, {write: fault})
        assert story.cluster.struck == [(write, kind, fault)]
        require_sound(story, f"write {write}")


@pytest.mark.req("003/resume")
@pytest.mark.guarantee(5, 9, 10, 23, 25)
@seeds(fast=100, proofs=SEEDS, shards=16)
def test_several_faults_at_any_writes(seeds: Iterable[int], logged: list[Any]) -> None:
    """Up to three faults at random writes lose and duplicate nothing, and the faults do occur."""
    seen, writes = Counter[str](), Counter[str]()
    for seed in seeds:
        story = crashed(seed)
        require_sound(story, f"seed {seed}")
        logged.clear()
        cluster = story.cluster
        row = cluster.database.rows[KEY]
        for _, kind, fault in cluster.struck:
            seen[fault] += 1
            writes[kind] += fault in DEADLY
        seen["resumed"] += any(event.type == "run.resumed" for event in row.events.values())
        seen["waited"] += RunStatus.WAITING in row.history
        seen["replayed"] += _replays(cluster)
        seen["outcome unknown"] += unknown_outcomes(cluster)
        seen["estimated"] += bool((cluster.run.usage or {})["tokens_estimated"])
        seen["lost twice"] += cluster.losses > 1

    assert all(seen[fault] >= 10 for fault in Fault), seen
    assert all(seen[kind] >= 10 for kind in ("resumed", "waited", "estimated", "lost twice")), seen
    assert seen["replayed"] > 500, seen
    assert seen["outcome unknown"] >= 1 or seeds != range(100), seen  # too rare for every shard
    assert {"accept", "write", "ask", "decide"} <= writes.keys(), writes
    assert {*peaceful(1).cluster.writes} >= {"accept", "claim", "release", "finish", "beat"}


def _replays(cluster: CrashingCluster) -> int:
    """Return how many results were known when their run was claimed again."""
    claims = [step for fence, step in cluster.claimed_at.items() if fence > 1]
    last = max(claims, default=0)
    return sum(step < last for step in cluster.known_at.values())


class ForgetfulWire(Wire):
    """A journal that permits calls without storing their results."""

    async def write(self, write: JournalWrite) -> Permission:
        return await super().write(replace(write, calls=()))


class UnfencedDatabase(MemoryRuns):
    """A database in which a worker that has lost its run can still write."""

    def _owned(self, key: RunKey, fence: int) -> Row | None:
        row = self.rows.get(key)
        return super()._owned(key, row.run.fence if row and row.run else fence)


def _makes_calls_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "_earlier_try_of", lambda calls, call: None)


def _charges_again(patch: pytest.MonkeyPatch) -> None:
    usual = calls._CallInProgress

    def unpaid(*about: Any, is_paid: bool) -> Any:
        return usual(*about, is_paid=False)

    patch.setattr(calls, "_CallInProgress", unpaid)


def _asks_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("caseworker.engine.waiting_calls._hash_of", lambda value: secrets.token_hex(32))


def _repeats_everything(patch: pytest.MonkeyPatch) -> None:
    described = ToolDispatch._call

    async def repeatable(*about: Any) -> Any:
        return replace(await described(*about), repeatable=True)

    patch.setattr(ToolDispatch, "_call", repeatable)


def _has_no_barrier(patch: pytest.MonkeyPatch) -> None:
    async def passed(journal: RunJournal, *, external: bool) -> None:
        """Permit every call."""

    patch.setattr(RunJournal, "barrier", passed)


def _forgets_what_was_spent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("caseworker.runs.execute.execution.spent_before", lambda earlier: {})


def _forgets_nodes_of_failed_writes(patch: pytest.MonkeyPatch) -> None:
    def only_entries(journal: RunJournal, sent: Any) -> None:
        journal._unwritten |= sent.unwritten

    patch.setattr(RunJournal, "_restore", only_entries)


@pytest.mark.parametrize(
    ("variant", "broken"),
    [
        ({"wire_type": ForgetfulWire}, "is not journaled"),
        ({"database_type": UnfencedDatabase}, "is not journaled"),
    ],
    ids=["results are not recorded", "no fences"],
)
def test_the_oracle_sees_a_broken_store(variant: Mapping[str, Any], broken: str) -> None:
    """The oracle reports each promise that a broken store violates."""
    assert any(broken in problem for problem in _found_with(variant))


@pytest.mark.parametrize(
    ("breaks", "broken"),
    [
        (_makes_calls_again, "was made again"),
        (_charges_again, "in its executions"),
        (_asks_anew, "it asked"),
        (_repeats_everything, "was made 2 times"),
        (_has_no_barrier, "is not journaled"),
        (_forgets_what_was_spent, "it is charged"),
        (_forgets_nodes_of_failed_writes, "in the journal and"),
    ],
)
def test_the_oracle_sees_a_broken_service(
    breaks: Callable[[pytest.MonkeyPatch], None], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle reports each promise that a broken service violates."""
    right = peaceful()
    breaks(monkeypatch)
    assert any(broken in problem for problem in _found_with({}, right))


def _found_with(variant: Mapping[str, Any], right: PlayedCluster | None = None) -> Iterator[str]:
    """Yield the problems found in the first stories; an assertion error counts as one."""
    for seed in range(200):
        try:
            story = crashed(seed, **variant)
        except AssertionError as error:  # the database has rejected a write
            yield str(error)
        else:
            yield from problems(story, right or peaceful())
