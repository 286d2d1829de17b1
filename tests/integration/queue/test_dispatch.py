"""Jobs are part of the transaction that queues their run."""

from dataclasses import replace

import pytest

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import transaction
from caseworker.runs.errors import QueueFullError
from caseworker.runs.postgres.queue_jobs import defer_runs
from caseworker.runs.run import Queueing, RunKey
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import store_limits
from tests.support.stores import new_run, open_oracle, open_stores

JOBS = "SELECT queue_name, task_name, queueing_lock, args FROM procrastinate_jobs ORDER BY id"


async def test_a_queued_run_has_one_job(database_url: str) -> None:
    """The job names the run, and repeating the request adds none."""
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        for _ in range(2):
            await stores.runs.accept(new_run("case-1", tenant="a"), worker_id=None)

        assert await oracle.rows(JOBS) == [
            {
                "queue_name": "runs",
                "task_name": "execute_run",
                "queueing_lock": "a/case-1",
                "args": {"tenant": "a", "run_id": "case-1"},
            }
        ]


async def test_a_transaction_that_is_undone_leaves_no_job(database_url: str) -> None:
    """Even a job deferred next to an existing job is rolled back."""
    keys = [RunKey("default", f"case-{n}") for n in range(3)]
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        async with transaction(stores.engines.work) as connection:
            await defer_runs(connection, {keys[1]: None})

        async with transaction(stores.engines.work) as connection:
            await defer_runs(connection, dict.fromkeys(keys))
            await connection.rollback()
        assert len(await oracle.rows(JOBS)) == 1

        async with transaction(stores.engines.work) as connection:
            await defer_runs(connection, dict.fromkeys(keys))
            await defer_runs(connection, {})
        assert len(await oracle.rows(JOBS)) == 3


async def test_a_refused_run_leaves_no_job(database_url: str) -> None:
    """The jobs of the full queue stay unchanged."""
    limits = store_limits(max_queued=1)
    async with open_stores(database_url, limits) as stores, open_oracle(database_url) as oracle:
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        with pytest.raises(QueueFullError):
            await stores.runs.accept(new_run("case-2"), worker_id=None)

        assert len(await oracle.rows(JOBS)) == 1


@pytest.mark.parametrize("statement", [b"INSERT INTO procrastinate_jobs", b"COMMIT"])
async def test_a_database_that_goes_away_while_a_job_is_deferred_is_named_as_that(
    database_url: str, statement: bytes
) -> None:
    """After a failure at any statement, a run and its job are both stored or both missing.

    This holds for a run accepted alone; a batch is retried.
    """
    keyed = Queueing(concurrency_key="c", concurrency_limit=9)
    async with FaultProxy(upstream_of(database_url)) as proxy, open_oracle(database_url) as oracle:
        async with open_stores(proxied(database_url, proxy)) as stores:
            await stores.runs.accept(replace(new_run("before"), queueing=keyed), worker_id=None)
            proxy.lose_answer(request=statement, answer=b"")
            new = replace(new_run("case-1"), queueing=keyed)
            with pytest.raises(StoreUnavailableError):
                await stores.runs.accept(new, worker_id=None)

        assert proxy.counts.answers_dropped == 1
        runs = await oracle.rows("SELECT tenant_id || '/' || run_id AS queueing_lock FROM runs")
        jobs = await oracle.rows("SELECT queueing_lock FROM procrastinate_jobs")
        assert sorted(row["queueing_lock"] for row in runs) == sorted(
            row["queueing_lock"] for row in jobs
        )
