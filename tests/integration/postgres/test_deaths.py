"""Counting deaths of processes against runs, and executing suspects alone."""

import asyncio
from collections.abc import Sequence

import pytest

from caseworker.main.deaths import Death, count_death
from caseworker.platform.code_table import ExecutedCode
from caseworker.platform.postgres.connections import Patience
from caseworker.runs.execute.postgres.runs import PostgresRuns
from caseworker.runs.run import Run, RunKey
from tests.support.stores import Oracle, Stores, new_run

PATIENCE = Patience(connect_seconds=10, lock_ms=5_000)
CLAIM = "SELECT run_id FROM caseworker_claim('old', NULL, NULL, NULL"


async def _dies(
    url: str, *run_ids: str, worker_id: str = "w1", max_attempts: int = 3, name: str = "f"
) -> int:
    """Count the death of a worker that executed code of these runs."""
    codes = [ExecutedCode("t", run_id, name) for run_id in run_ids]
    death = Death(worker_id, "SIGSEGV", codes)
    count = count_death
    return await asyncio.to_thread(
        lambda: count(url, death, max_attempts=max_attempts, patience=PATIENCE)
    )


def _ordinary(stores: Stores) -> PostgresRuns:
    """Return the store of a process whose parent starts processes for suspects."""
    of = stores.runs
    return PostgresRuns(of.engines, of.journal, of.limits, skips_suspects=True)


async def _owned(stores: Stores, *run_ids: str) -> list[Run]:
    return [
        (await stores.runs.accept(new_run(run_id, tenant="t"), worker_id="w1")).run
        for run_id in run_ids
    ]


async def _requeue(oracle: Oracle) -> None:
    await oracle.rows("UPDATE runs SET status = 'queued', worker_id = NULL, queued_at = now()")


@pytest.mark.parametrize(
    ("deaths", "max_attempts", "count", "is_suspect"),
    [
        (["alone"], 3, 1, True),
        (["alone"] * 2, 3, 2, True),
        (["alone"] * 3, 3, 3, False),
        (["shared"], 3, 1, True),
        (["shared"] * 9, 3, 1, True),
        (["shared", "alone"], 3, 2, True),
        (["shared", "alone", "alone"], 3, 3, False),
        (["alone", "shared", "shared", "alone"], 3, 2, True),
        (["shared"] * 3, 1, 0, True),
        (["alone"], 1, 1, False),
        (["shared", "shared", "alone"], 2, 2, False),
    ],
)
async def test_deaths_alone_count_and_shared_ones_count_as_one(
    database_url: str,
    stores: Stores,
    oracle: Oracle,
    deaths: Sequence[str],
    max_attempts: int,
    count: int,
    is_suspect: bool,
) -> None:
    """So no run fails that has not ended a process while it alone executed code."""
    await _owned(stores, "r1", "r2")
    for death in deaths:
        runs = ("r1", "r2") if death == "shared" else ("r1",)
        assert await _dies(database_url, *runs, max_attempts=max_attempts) == len(runs)

    row = "SELECT count, suspect, cause, calls FROM deaths WHERE run_id = 'r1'"
    assert await oracle.rows(row) == [
        {"count": count, "suspect": is_suspect, "cause": "SIGSEGV", "calls": ["f"]}
    ]


async def test_a_run_that_the_dead_worker_no_longer_owns_is_not_blamed(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """It was recovered, released or ended before the death was counted."""
    await _owned(stores, "r1")

    assert await _dies(database_url, "r1", "no-such-run", worker_id="w2") == 0
    await _requeue(oracle)
    assert await _dies(database_url, "r1") == 0
    assert await oracle.rows("SELECT * FROM deaths") == []


async def test_an_external_run_is_counted_but_never_executed_alone(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """Its requests reach only the process that owns it."""
    await _owned(stores, "r1")
    await oracle.rows("""UPDATE runs SET request = request || '{"kind": "external"}'""")

    assert await _dies(database_url, "r1") == 1
    counted = await oracle.rows("SELECT count, suspect FROM deaths")
    assert counted == [{"count": 1, "suspect": False}]


async def test_suspects_are_executed_two_at_a_time_by_processes_of_their_own(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """Ordinary claims leave them out and return the run behind them."""
    await _owned(stores, "s1", "s2", "s3")
    await _dies(database_url, "s1", "s2", "s3")
    await _requeue(oracle)
    await stores.runs.accept(new_run("behind", tenant="t"), worker_id=None)
    ordinary = _ordinary(stores)

    claimed = await ordinary.claim(None, "w2")
    assert claimed is not None
    assert (claimed.key.run_id, claimed.deaths) == ("behind", None)
    assert await ordinary.claim(None, "w2") is None
    alone = [await ordinary.claim_suspect(f"alone-{number}") for number in range(3)]
    assert [run and run.key.run_id for run in alone] == ["s1", "s2", None]
    first = alone[0]
    assert first is not None
    assert first.deaths is not None
    assert (first.deaths.count, first.deaths.calls, first.deaths.suspect) == (1, ("f",), True)

    await ordinary.release(first, active_seconds=1, calls=(), counted=False, cleared=True)
    again = await ordinary.claim(None, "w2")
    assert again is not None
    assert (again.key.run_id, again.deaths) == ("s1", None)
    third = await ordinary.claim_suspect("alone-3")
    assert third is not None
    assert third.key.run_id == "s3"


async def test_concurrent_claims_of_suspects_get_two(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """The claims wait for each other."""
    names = [f"s{number}" for number in range(6)]
    await _owned(stores, *names)
    await _dies(database_url, *names)
    await _requeue(oracle)
    async with asyncio.TaskGroup() as group:
        claims = [group.create_task(stores.runs.claim_suspect(f"w{name}")) for name in names]

    assert len([claim for claim in claims if claim.result() is not None]) == 2


@pytest.mark.parametrize("parameters", ["", ", '{}'::text[]", ", '{}'::text[], true"])
async def test_a_process_that_starts_no_others_claims_suspects_like_other_runs(
    database_url: str, stores: Stores, oracle: Oracle, parameters: str
) -> None:
    """Such as one of an earlier release: a suspect never stays in the queue forever."""
    await _owned(stores, "s1", "s2")
    await _dies(database_url, "s1", "s2")
    await _requeue(oracle)
    await oracle.rows("UPDATE runs SET reserved_cost_usd = NULL")

    assert await oracle.rows(f"{CLAIM}{parameters})") == [{"run_id": "s1"}]
    claimed = await stores.runs.claim(None, "w2")
    assert claimed is not None
    assert claimed.key == RunKey("t", "s2")


async def test_an_erased_run_leaves_no_deaths(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """A new run of the same ID starts without them."""
    (run,) = await _owned(stores, "r1")
    await _dies(database_url, "r1")
    await oracle.rows(
        "UPDATE runs SET status = 'failed', worker_id = NULL, finished_at = now(), usage = '{}'"
    )
    await stores.runs.erase(run.key)

    assert await oracle.rows("SELECT * FROM deaths") == []
