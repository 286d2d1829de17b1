"""Runs that match a filter are cancelled one by one, each only while it matches."""

from caseworker.runs.ports import RunFilter
from caseworker.runs.run import RunKey, RunStatus
from tests.support.stores import CANCEL_REQUEST, new_run, open_oracle, open_stores

QUEUED = RunFilter(status=RunStatus.QUEUED)


async def test_a_run_that_was_claimed_after_it_was_found_is_left_alone(database_url: str) -> None:
    """The row is locked and checked again in the transaction that cancels it."""
    async with open_stores(database_url) as stores:
        for run_id in ("a", "b"):
            await stores.runs.accept(new_run(run_id), worker_id=None)
        found = await stores.runs.stoppable("default", QUEUED)
        assert found == [RunKey("default", "a"), RunKey("default", "b")]
        await stores.runs.claim(found[0], "w1")

        left = await stores.runs.cancel_matching(found[0], CANCEL_REQUEST, QUEUED)
        cancelled = await stores.runs.cancel_matching(found[1], CANCEL_REQUEST, QUEUED)

        assert left is None
        assert cancelled is not None
        assert cancelled.status is RunStatus.CANCELLED
        run = await stores.runs.get(found[0])
        assert run is not None
        assert (run.status, run.cancel_request) == (RunStatus.RUNNING, None)


async def test_neither_ended_runs_nor_those_that_are_being_stopped_nor_other_tenants_are_found(
    database_url: str,
) -> None:
    """A repeated request therefore makes progress."""
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        for run_id in ("ended", "stopped", "left"):
            worker_id = "w1" if run_id == "stopped" else None
            await stores.runs.accept(new_run(run_id), worker_id=worker_id)
        await stores.runs.accept(new_run("theirs", tenant="other"), worker_id=None)
        for run_id in ("ended", "stopped", "pending"):
            await stores.runs.cancel(RunKey("default", run_id), CANCEL_REQUEST)

        assert await stores.runs.stoppable("default", RunFilter()) == [RunKey("default", "left")]
        assert await oracle.value("SELECT count(*) FROM runs") == 5
