"""The one row that decides, on a real database."""

import pytest

from app.adapters.postgres.runs import StoreLimits
from app.runs.errors import (
    IdempotencyMismatchError,
    QueueFullError,
    RunConflictError,
    TooManyIntentsError,
)
from app.runs.run import RunKey, RunStatus, StopWish
from app.trace.invariants import violations
from tests.support.stores import new_run, open_stores

KEY = RunKey("default", "case-1")
WISH = StopWish(requested_by="tester", reason="no longer needed")


async def test_a_run_with_a_free_worker_is_claimed_in_the_accepting_statement(
    database_url: str,
) -> None:
    """It is running, under its first fence, before the answer leaves."""
    async with open_stores(database_url) as stores:
        accepted = await stores.runs.accept(new_run("case-1"), worker_id="w1")

        stored = await stores.runs.get(KEY)
        assert accepted.created
        assert stored is not None
        assert (stored.status, stored.fence, stored.attempts) == (RunStatus.RUNNING, 1, 1)
        assert stored.request == new_run("case-1").request


async def test_a_run_without_a_worker_is_queued_and_can_be_claimed_once(database_url: str) -> None:
    """The second claim finds nothing."""
    async with open_stores(database_url) as stores:
        accepted = await stores.runs.accept(new_run("case-1"), worker_id=None)

        first = await stores.runs.claim(KEY, "w1")
        second = await stores.runs.claim(KEY, "w2")
        assert accepted.run.status is RunStatus.QUEUED
        assert first is not None
        assert first.fence == 1
        assert second is None


@pytest.mark.req("card/delete")
async def test_a_wish_that_comes_before_its_run_waits_for_it_and_wins(database_url: str) -> None:
    """The run is settled by the transaction that creates it, with a trace of a halted root."""
    async with open_stores(database_url) as stores:
        cancelled = await stores.runs.cancel(KEY, WISH)
        assert cancelled.run is None
        assert await stores.runs.get(KEY) is None

        accepted = await stores.runs.accept(new_run("case-1"), worker_id="w1")
        snapshot = await stores.runs.snapshot(KEY)
        assert accepted.run.status is RunStatus.CANCELLED
        assert accepted.run.stop is not None
        assert accepted.run.stop["requested_by"] == "tester"
        assert snapshot is not None
        assert violations(dict(snapshot)) == []
        assert [node["status"] for node in snapshot["nodes"].values()] == ["halt"]


async def test_an_expired_wish_does_not_stop_a_later_run(database_url: str) -> None:
    """After its time the id is free again."""
    limits = StoreLimits(intent_ttl_seconds=0)
    async with open_stores(database_url, limits) as stores:
        await stores.runs.cancel(KEY, WISH)

        accepted = await stores.runs.accept(new_run("case-1"), worker_id="w1")
        assert accepted.run.status is RunStatus.RUNNING
        assert accepted.run.wish is None


async def test_stopping_a_queued_run_settles_it_in_the_same_transaction(database_url: str) -> None:
    """Nobody can claim it afterwards."""
    async with open_stores(database_url) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id=None)

        cancelled = await stores.runs.cancel(KEY, WISH)
        assert cancelled.run is not None
        assert cancelled.run.status is RunStatus.CANCELLED
        assert await stores.runs.claim(KEY, "w1") is None
        assert await stores.runs.snapshot(KEY) is not None


async def test_the_first_wish_counts_and_a_finished_run_stays_as_it_is(database_url: str) -> None:
    """Cancelling twice is the same as once."""
    async with open_stores(database_url) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        first = await stores.runs.cancel(KEY, WISH)

        second = await stores.runs.cancel(KEY, StopWish(requested_by="somebody else"))
        assert not first.already_finished
        assert second.already_finished
        assert second.wish is not None
        assert second.wish.requested_by == "tester"


async def test_early_wishes_are_capped_per_tenant(database_url: str) -> None:
    """Another tenant still has room."""
    async with open_stores(database_url, StoreLimits(max_early_intents=2)) as stores:
        for n in range(2):
            await stores.runs.cancel(RunKey("default", f"case-{n}"), WISH)

        with pytest.raises(TooManyIntentsError):
            await stores.runs.cancel(RunKey("default", "case-2"), WISH)
        await stores.runs.cancel(RunKey("other", "case-2"), WISH)
        await stores.runs.cancel(RunKey("default", "case-1"), WISH)


async def test_the_same_request_twice_is_one_run(database_url: str) -> None:
    """Same id and same body give the same run; another body is a conflict."""
    async with open_stores(database_url) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id="w1")

        again = await stores.runs.accept(new_run("case-1"), worker_id="w1")
        assert not again.created
        with pytest.raises(RunConflictError):
            await stores.runs.accept(new_run("case-1", text="3+3?"), worker_id="w1")


async def test_an_idempotency_key_makes_one_run(database_url: str) -> None:
    """Another body under the key is a mismatch, another id under it a conflict."""
    async with open_stores(database_url) as stores:
        await stores.runs.accept(new_run("case-1", key="k"), worker_id="w1")

        again = await stores.runs.accept(new_run("case-1", key="k"), worker_id="w1")
        assert not again.created
        with pytest.raises(IdempotencyMismatchError):
            await stores.runs.accept(new_run("case-1", key="k", text="3+3?"), worker_id="w1")
        with pytest.raises(RunConflictError):
            await stores.runs.accept(new_run("case-2", key="k"), worker_id="w1")


async def test_a_full_queue_refuses(database_url: str) -> None:
    """The limit counts queued runs alone."""
    async with open_stores(database_url, StoreLimits(max_queued=1)) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id="w1")
        await stores.runs.accept(new_run("case-2"), worker_id=None)

        with pytest.raises(QueueFullError):
            await stores.runs.accept(new_run("case-3"), worker_id=None)


async def test_another_tenants_run_is_not_there(database_url: str) -> None:
    """The same id in two tenants is two runs."""
    async with open_stores(database_url) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id="w1")

        assert await stores.runs.get(RunKey("other", "case-1")) is None
        mine = await stores.runs.accept(new_run("case-1", tenant="other"), worker_id="w1")
        assert mine.created
