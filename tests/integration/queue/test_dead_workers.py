"""Detection of dead workers, and the back-off of their runs."""

from dataclasses import replace

import pytest

from caseworker.platform.postgres.engines import transaction
from caseworker.runs.ports import JournalWrite
from caseworker.runs.recover.failure_detector import MISSED_BEATS, Silent
from caseworker.runs.recover.postgres import take_lost
from tests.integration.queue.stale import KEY, StaleRuns
from tests.support.stores import CANCEL_REQUEST, graph_with_calls, open_stores, records_of


@pytest.mark.guarantee(21)
async def test_a_killed_process_loses_its_runs_at_once_and_a_slow_one_keeps_them(
    database_url: str, world: StaleRuns
) -> None:
    """Both missed heartbeats, but only the connection of the killed process is gone."""
    await world.claimed()
    await world.claimed("case-2", worker_id="slow")
    async with open_stores(database_url) as killed:
        await killed.workers.beat("dead")
    await world.stores.workers.beat("slow")

    quick = {"interval_seconds": 1.0, "stale_seconds": 100.0}
    recovery = world.recovery(**quick)
    for _ in range(5):
        if found := await recovery.recover():
            break
        world.now += 1
    assert found == [KEY]
    assert world.now == MISSED_BEATS


@pytest.mark.guarantee(21)
@pytest.mark.parametrize("surely", [True, False])
async def test_a_process_that_beats_after_it_was_found_silent_keeps_its_runs(
    world: StaleRuns, surely: bool
) -> None:
    """The recovery judges the heartbeat that was too old, and not the process."""
    await world.beat("slow", seconds_ago=100)
    await world.claimed(worker_id="slow")
    (row,) = await world.oracle.rows("SELECT beat_at FROM workers")
    found = [Silent("slow", row["beat_at"], exceeded_stale_timeout=surely)]
    await world.stores.workers.beat("slow")

    async with transaction(world.stores.engines.work) as connection:
        assert not await take_lost(connection, found, stale_seconds=10, max_attempts=3)
    assert (await world.stored()).worker_id == "slow"


async def test_a_slow_process_that_connects_again_keeps_its_runs(
    database_url: str, world: StaleRuns
) -> None:
    """The server may not have noticed yet that the old connection is gone."""
    async with open_stores(database_url) as old, open_stores(database_url) as new:
        await world.claimed(worker_id="slow")
        for stores in (old, new, old):
            await stores.workers.beat("slow")
        await old.engines.dispose()

        recovery = world.recovery(interval_seconds=1.0, stale_seconds=100.0)
        for _ in range(6):
            assert await recovery.recover() == []
            world.now += 1


@pytest.mark.parametrize(
    ("losses", "deaths", "seconds"),
    [(1, 0, 0), (2, 0, 5), (3, 2, 30), (4, 0, 180), (5, 0, 300), (31, 0, 300), (3, 3, 0)],
)
async def test_a_run_that_was_lost_again_and_again_waits_ever_longer(
    database_url: str, world: StaleRuns, losses: int, deaths: int, seconds: int
) -> None:
    """Its code may crash its workers unseen; a run that will fail now does not wait."""
    await world.beat("dead", seconds_ago=15)
    await world.claimed()
    await world.oracle.rows("UPDATE runs SET losses = %s", losses - 1)
    counted = "INSERT INTO deaths SELECT tenant_id, run_id, %s, '[]', '', false FROM runs"
    await world.oracle.rows(counted, deaths)

    assert await world.recover(max_attempts=3) == [KEY]
    row = "SELECT extract(epoch FROM queued_at - clock_timestamp())::float8 AS seconds FROM runs"
    assert await world.oracle.value(row) == pytest.approx(seconds, abs=2)
    job = "SELECT scheduled_at IS NOT DISTINCT FROM queued_at FROM procrastinate_jobs, runs"
    assert await world.oracle.value(job)
    claimed = await world.stores.runs.claim(KEY, "alive")
    assert (claimed is None) == (seconds > 0)


@pytest.mark.req("003/resume")
async def test_a_run_that_got_on_since_it_was_last_lost_does_not_wait(world: StaleRuns) -> None:
    """Earlier losses do not count."""
    await world.beat("dead", seconds_ago=15)
    run = await world.claimed()
    await world.oracle.rows("UPDATE runs SET losses = 3, ended_calls = 1")
    records = records_of(graph_with_calls("case-1", llm_calls=2))
    calls = tuple(replace(each, call_key=each.node_id, outcome="result") for each in records)
    await world.stores.journal.write(JournalWrite(key=KEY, fence=run.fence, calls=calls))
    await world.recover()

    again = await world.stores.runs.claim(KEY, "alive")
    assert again is not None
    assert (again.losses, again.attempts) == (0, 2)


@pytest.mark.parametrize("other", ["case-0", "case-2"])
async def test_the_results_of_another_run_are_no_progress(world: StaleRuns, other: str) -> None:
    """Neither those of an earlier run of the tenant, nor those of a later one."""
    await world.beat("dead", seconds_ago=15)
    await world.beat("alive")
    await world.claimed()
    await world.oracle.rows("UPDATE runs SET losses = 1")
    beside = await world.claimed(other, worker_id="alive")
    records = records_of(graph_with_calls(other, llm_calls=2))
    calls = tuple(replace(each, call_key=each.node_id, outcome="result") for each in records)
    await world.stores.journal.write(JournalWrite(key=beside.key, fence=beside.fence, calls=calls))

    assert await world.recover() == [KEY]
    assert (await world.stored()).losses == 2


@pytest.mark.req("card/delete")
async def test_a_lost_run_that_is_to_be_cancelled_does_not_wait(world: StaleRuns) -> None:
    """The number of losses makes no difference."""
    await world.beat("dead", seconds_ago=15)
    await world.claimed()
    await world.oracle.rows("UPDATE runs SET losses = 3")
    await world.stores.runs.cancel(KEY, CANCEL_REQUEST)
    await world.recover()

    assert await world.stores.runs.claim(KEY, "alive") is not None
