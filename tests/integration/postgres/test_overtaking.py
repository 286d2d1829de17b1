"""No run overtakes those of its tenant that wait, for a place or for a concurrency key."""

from dataclasses import replace

from app.runs.quotas import Queueing
from app.runs.run import Run, RunStatus
from tests.integration.postgres.test_quotas import accepted, give, run
from tests.support.stores import Oracle, Stores, end_of


async def test_a_run_does_not_overtake_those_that_wait_for_a_place(
    pair: tuple[Stores, Stores],
) -> None:
    """It waits behind them, unless there are places for all."""
    one, other = pair
    await give(one, max_running=2)
    first, *_ = [await accepted(one, run(name)) for name in ("first", "second", "waits")]
    assert isinstance(first, Run)
    assert (await one.journal.finish(end_of(first))).frees_place

    late = await accepted(other, run("late"))

    assert isinstance(late, Run)
    assert late.status is RunStatus.QUEUED
    next_one = await other.runs.claim(None, "w9")
    assert next_one is not None
    assert next_one.key.run_id == "waits"
    assert await other.runs.claim(None, "w9") is None
    await give(one, max_running=4)
    early = await accepted(one, run("early"))
    assert isinstance(early, Run)
    assert early.status is RunStatus.RUNNING


async def test_a_run_without_a_key_does_not_overtake_one_whose_key_is_free(
    pair: tuple[Stores, Stores],
) -> None:
    """Runs whose key is held do not count: they could not begin anyway."""
    one, other = pair
    await give(one, max_running=1)
    first = await accepted(one, run("first"))
    keyed = [replace(run(name), queueing=Queueing(concurrency_key="k")) for name in ("k1", "k2")]
    for new in keyed:
        assert isinstance(await accepted(one, new), Run)
    assert isinstance(first, Run)
    await one.journal.finish(end_of(first))

    late = await accepted(other, run("late"))
    begun = await other.runs.claim(None, "w9")
    await give(one, max_running=3)
    early = await accepted(one, run("early"))

    assert isinstance(late, Run)
    assert isinstance(early, Run)
    assert begun is not None
    assert (begun.key.run_id, late.status) == ("k1", RunStatus.QUEUED)
    assert early.status is RunStatus.RUNNING, "it may begin beside k1 and late; k2 waits for k1"


async def test_a_run_does_not_overtake_those_that_wait_for_its_key(
    pair: tuple[Stores, Stores],
) -> None:
    """It comes when its key is free, and before they have been claimed."""
    first, second, third = [
        replace(run(f"r{n}"), queueing=Queueing(concurrency_key="k")) for n in range(3)
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
    """A run behind them is found, in one statement."""
    held = replace(run("holder"), queueing=Queueing(concurrency_key="k"))
    await pair[0].runs.accept(held, worker_id="w1")
    await oracle.rows(
        """INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status,
               queued_at, concurrency_key, concurrency_limit)
           SELECT tenant_id, 'w' || n, kind, request, '', '{}', 'queued', clock_timestamp(),
               concurrency_key, 1 FROM runs, generate_series(1, 9000) n WHERE run_id = 'holder'"""
    )
    await pair[0].runs.accept(run("behind"), worker_id=None)

    claimed = await pair[1].runs.claim(None, "w2")
    assert claimed is not None
    assert claimed.key.run_id == "behind"
