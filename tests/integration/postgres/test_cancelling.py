"""A cancel request is stored promptly, even if the process and the database are busy."""

import asyncio
from contextlib import AsyncExitStack

import psycopg
import pytest

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.connections import Connection
from caseworker.platform.postgres.engines import transaction
from caseworker.runs.ports import JournalWrite
from caseworker.runs.read.postgres.run_reader import MAX_RECEIPT_CALLS
from caseworker.runs.run import RunKey, RunStatus
from tests.support.limits import patience, pool_sizes, store_limits
from tests.support.stores import (
    CANCEL_REQUEST,
    Oracle,
    Stores,
    eventually,
    graph_with_calls,
    new_run,
    open_stores,
    records_of,
)

KEY = RunKey("default", "case-1")


@pytest.mark.req("card/delete")
async def test_the_receipt_names_calls_that_may_have_taken_effect(stores: Stores) -> None:
    """A call journaled as created has passed its barrier or is about to ask for it."""
    await stores.runs.accept(new_run("case-1"), worker_id="w1")
    graph = graph_with_calls("case-1")
    graph.begin_node("n000001", "tool", "calculator")
    graph.begin_node("n000001", "system", "plan")
    await stores.journal.write(JournalWrite(key=KEY, fence=1, calls=records_of(graph)))
    calls = await stores.runs.started_calls(KEY)

    begun = [(call.node["kind"], call.node["status"]) for call in calls]
    assert begun == [("llm", "success"), ("tool", "created")]


@pytest.mark.req("card/delete")
async def test_a_run_with_a_long_journal_can_be_stopped(stores: Stores) -> None:
    """The receipt names the last calls, and a worker can claim the run to end it."""
    run = (await stores.runs.accept(new_run("case-1"), worker_id="w1")).run
    graph = graph_with_calls("case-1", llm_calls=7000)
    graph.begin_node("n000001", "llm", "plan")
    await stores.runs.release(run, active_seconds=1, calls=records_of(graph), counted=True)
    cancelled = await stores.runs.cancel(KEY, CANCEL_REQUEST)

    assert cancelled.run is not None
    assert cancelled.run.status is RunStatus.QUEUED
    calls = await stores.runs.started_calls(KEY)
    assert len(calls) == MAX_RECEIPT_CALLS
    assert calls[-1].node_id == "n007002"
    claimed = await stores.runs.claim_stopped(KEY, "w2")
    assert claimed is not None
    assert (claimed.status, claimed.fence) == (RunStatus.RUNNING, 2)
    assert await stores.runs.claim_stopped(KEY, "w3") is None


@pytest.mark.req("card/delete")
async def test_a_busy_process_can_still_be_told_to_stop_something(database_url: str) -> None:
    """Cancelling has its own connections, even if all work connections are taken."""
    sizes = pool_sizes(work=2, connect_seconds=60)
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(database_url, sizes=sizes))
        await stores.runs.accept(new_run("case-1"), worker_id="w1")
        for _ in range(sizes.work):
            held = transaction(stores.engines.work)
            _ = await stack.enter_async_context(held)
        waiting = asyncio.create_task(stores.runs.get(KEY))
        async with asyncio.timeout(150):
            cancelled = await stores.runs.cancel(KEY, CANCEL_REQUEST)
        assert cancelled.run is not None
        assert not waiting.done()
        waiting.cancel()


async def test_a_flood_of_stops_does_not_silence_a_process(database_url: str) -> None:
    """The heartbeat has its own connection."""
    sizes = pool_sizes(control=1, connect_seconds=60)
    async with open_stores(database_url, sizes=sizes) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id="w1")
        async with transaction(stores.engines.control), asyncio.timeout(150):
            assert (await stores.workers.beat("w1")).owned == {KEY}


async def test_waiting_for_a_connection_has_an_end(database_url: str) -> None:
    """The caller may retry, and the connection that is freed later is not leaked."""
    sizes = pool_sizes(work=1, connect_seconds=1)
    async with open_stores(database_url, sizes=sizes) as stores:
        async with transaction(stores.engines.work):
            with pytest.raises(StoreUnavailableError):
                await stores.runs.get(KEY)

        assert await stores.runs.get(KEY) is None


async def test_waiting_for_a_lock_has_an_end(database_url: str, oracle: Oracle) -> None:
    """Cancelling a locked run fails after the lock timeout and changes nothing."""
    async with open_stores(database_url, sizes=pool_sizes(lock_ms=50)) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id="w1")
        async with oracle.connection.transaction():
            await oracle.rows("SELECT FROM runs FOR UPDATE")
            with pytest.raises(StoreUnavailableError):
                await stores.runs.cancel(KEY, CANCEL_REQUEST)

        assert (await stores.runs.cancel(KEY, CANCEL_REQUEST)).cancel_request is not None


async def test_a_process_that_froze_in_a_transaction_holds_its_locks_for_a_while_only(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """The server ends the transaction; until then only the frozen process's run has to wait."""
    await stores.runs.accept(new_run("case-1"), worker_id="w1")
    frozen = await Connection.open(database_url, patience(idle_transaction_ms=2000))
    await frozen.execute("SELECT FROM runs FOR UPDATE")

    async def is_free() -> bool:
        return bool(await oracle.rows("SELECT 1 FROM runs FOR UPDATE SKIP LOCKED"))

    assert not await is_free()
    await eventually(is_free)
    with pytest.raises(psycopg.Error):
        await frozen.execute("SELECT 1")
    await frozen.close()


@pytest.mark.req("card/delete")
async def test_expired_pending_cancels_make_way_for_new_ones(
    database_url: str, oracle: Oracle
) -> None:
    """The table does not grow with IDs that callers invent."""
    limits = store_limits(pending_cancel_ttl_seconds=0, max_pending_cancels=10)
    async with open_stores(database_url, limits) as stores:
        for number in range(50):
            await stores.runs.cancel(RunKey("default", f"case-{number}"), CANCEL_REQUEST)

    assert await oracle.value("SELECT count(*) FROM runs") <= 2


async def test_what_the_url_says_counts_more_than_what_we_would(database_url: str) -> None:
    """Our timeouts apply only where the URL sets none."""
    separator = "&" if "?" in database_url else "?"
    dialect = database_url.replace("postgresql://", "postgresql+psycopg://")
    url = f"{dialect}{separator}options=-c%20lock_timeout%3D77&application_name=mine"
    async with await Connection.open(url, patience(statement_ms=4321)) as connection:
        shown = [
            await (await connection.execute(f"SHOW {name}")).fetchone()
            for name in ("lock_timeout", "statement_timeout", "application_name")
        ]

    assert shown == [("77ms",), ("4321ms",), ("mine",)]
