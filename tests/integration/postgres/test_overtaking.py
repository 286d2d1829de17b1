"""No run overtakes waiting runs of its tenant, whether for a slot or a concurrency key."""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from caseworker.features.quotas.postgres import COUNTS, LOOKED_AT
from caseworker.runs.postgres.run_statements import CLAIM
from caseworker.runs.run import Queueing, Run, RunStatus
from tests.integration.postgres.quota_runs import accepted, run_within, set_quota
from tests.support.stores import Oracle, Stores, blocks_read, end_of


async def test_a_run_does_not_overtake_those_that_wait_for_a_place(
    pair: tuple[Stores, Stores],
) -> None:
    """A new run waits behind waiting ones unless all of them have slots."""
    one, other = pair
    await set_quota(one, max_running=2)
    first, *_ = [await accepted(one, run_within(name)) for name in ("first", "second", "waits")]
    assert isinstance(first, Run)
    assert (await one.journal.finish(end_of(first))).frees_capacity

    late = await accepted(other, run_within("late"))

    assert isinstance(late, Run)
    assert late.status is RunStatus.QUEUED
    next_one = await other.runs.claim(None, "w9")
    assert next_one is not None
    assert next_one.key.run_id == "waits"
    assert await other.runs.claim(None, "w9") is None
    await set_quota(one, max_running=4)
    early = await accepted(one, run_within("early"))
    assert isinstance(early, Run)
    assert early.status is RunStatus.RUNNING


async def test_a_run_without_a_key_does_not_overtake_one_whose_key_is_free(
    pair: tuple[Stores, Stores],
) -> None:
    """Runs whose key is in use do not count, because they cannot start anyway."""
    one, other = pair
    await set_quota(one, max_running=1)
    first = await accepted(one, run_within("first"))
    keyed = [
        replace(run_within(name), queueing=Queueing(concurrency_key="k")) for name in ("k1", "k2")
    ]
    for new in keyed:
        assert isinstance(await accepted(one, new), Run)
    assert isinstance(first, Run)
    await one.journal.finish(end_of(first))

    late = await accepted(other, run_within("late"))
    begun = await other.runs.claim(None, "w9")
    await set_quota(one, max_running=3)
    early = await accepted(one, run_within("early"))

    assert isinstance(late, Run)
    assert isinstance(early, Run)
    assert begun is not None
    assert (begun.key.run_id, late.status) == ("k1", RunStatus.QUEUED)
    assert early.status is RunStatus.RUNNING, "it may begin beside k1 and late; k2 waits for k1"


async def test_a_run_does_not_overtake_those_that_wait_for_its_key(
    pair: tuple[Stores, Stores],
) -> None:
    """The new run arrives when its key is free but before the waiting runs are claimed."""
    first, second, third = [
        replace(run_within(f"r{n}"), queueing=Queueing(concurrency_key="k")) for n in range(3)
    ]
    begun = await accepted(pair[0], first)
    waits = await accepted(pair[0], second)
    assert isinstance(begun, Run)
    assert isinstance(waits, Run)
    await pair[0].journal.finish(end_of(begun))

    late = await accepted(pair[1], third)
    claimed = await pair[0].runs.claim(None, "w1")

    assert isinstance(late, Run)
    assert (waits.status, late.status) == ("queued", "queued")
    assert claimed is not None
    assert claimed.key == waits.key
    assert await pair[0].runs.claim(None, "w1") is None


async def test_thousands_of_runs_that_wait_for_one_key_hold_up_nobody(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Runs behind them are found without scanning each of them."""
    held = replace(run_within("holder"), queueing=Queueing(concurrency_key="k"))
    await pair[0].runs.accept(held, worker_id="w1")
    await oracle.rows(
        """INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status,
               queued_at, concurrency_key, concurrency_limit)
           SELECT tenant_id, 'w' || n, kind, request, '', '{}', 'queued', clock_timestamp(),
               concurrency_key, 1 FROM runs, generate_series(1, 9000) n WHERE run_id = 'holder'"""
    )
    await pair[0].runs.accept(run_within("behind"), worker_id=None)
    other = replace(run_within("of another key"), queueing=Queueing(concurrency_key="l"))
    await pair[0].runs.accept(other, worker_id=None)
    await oracle.rows("VACUUM ANALYZE runs")

    counted = {"tenant": "default", "key": "m", "most_queued": 0, "looked_at": LOOKED_AT}
    assert await blocks_read(oracle, COUNTS, counted) < 1000
    claims = [
        await blocks_read(oracle, CLAIM, ("w2", None, None, None, [], False, None))
        for _ in range(3)
    ]
    assert max(claims[1:]) < 2000, "the first one also reads how to plan it"
    claimed = "SELECT run_id FROM runs WHERE worker_id = 'w2' ORDER BY claimed_at"
    begun = [row["run_id"] for row in await oracle.rows(claimed)]
    assert begun == ["behind", "of another key"]


@dataclass(frozen=True)
class Waiting:
    """A queued run, whose age grows with ``age``."""

    run_id: str
    key: str | None
    limit: int
    priority: int
    age: float
    begun: bool
    """Whether the run was started and then released."""


INSERT = """
INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status, concurrency_key,
    concurrency_limit, priority, queued_at, started_at)
SELECT tenant_id, %s, kind, request, '', '{}', 'queued', %s, %s, %s,
    clock_timestamp() - make_interval(secs => %s), CASE WHEN %s THEN clock_timestamp() END
FROM runs WHERE run_id = 'holder'
"""


@pytest.mark.parametrize("seed", range(4))
async def test_runs_behind_those_that_wait_for_a_key_begin_in_their_order(
    stores: Stores, oracle: Oracle, seed: int
) -> None:
    """Priority and age decide, as long as the keys have slots."""
    rng, keys = random.Random(seed), (None, "a", "b", "c", "full")
    holder = replace(run_within("holder"), queueing=Queueing(concurrency_key="full"))
    await stores.runs.accept(holder, worker_id="w1")
    waiting = [Waiting(f"f{n}", "full", 1, 9, n + 5000, begun=False) for n in range(150)]
    for number in range(60):
        key, age, begun = rng.choice(keys), rng.randrange(4000) + number / 100, rng.random() < 0.1
        new = (f"r{number}", key, rng.randint(1, 3), rng.randint(-1, 1), age, begun)
        waiting.append(Waiting(*new))
    for each in waiting:
        limit = None if each.key is None else each.limit
        row = (each.run_id, each.key, limit, each.priority, each.age, each.begun)
        await oracle.rows(INSERT, *row)

    held = Counter(each.key for each in waiting if each.begun) + Counter(["full"])
    expected = []
    for each in sorted(waiting, key=lambda each: (-each.priority, -each.age)):
        if each.key is None or each.begun or held[each.key] < each.limit:
            held[each.key] += not each.begun
            expected.append(each.run_id)
    begun_runs = []
    while (claimed := await stores.runs.claim(None, "w2")) is not None:
        begun_runs.append(claimed.key.run_id)
    assert begun_runs == expected
