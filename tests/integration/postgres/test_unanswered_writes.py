"""Writes that a reachable server leaves unanswered, aborts, or executes slowly."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from caseworker.platform.errors import WriteFailedError
from caseworker.runs.journal.postgres.journal import LARGE_BYTES
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import RunStatus
from tests.integration.postgres.broken import open_world, refusal
from tests.support.limits import pool_sizes
from tests.support.stores import end_of, eventually, graph_with_calls, open_oracle, records_of


async def test_a_statement_that_somebody_cancels_is_made_again(database_url: str) -> None:
    """The cause may be pg_cancel_backend or a statement timeout of the server."""
    async with open_world(database_url) as world:
        run = await world.claimed()
        async with open_oracle(database_url) as locker, locker.connection.transaction():
            await locker.rows("LOCK TABLE calls IN ACCESS EXCLUSIVE MODE")
            records = records_of(graph_with_calls("case-1"))
            write = asyncio.create_task(
                world.stores.journal.write(JournalWrite(key=run.key, fence=1, calls=records))
            )
            cancel = """SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND query LIKE '%%calls_written%%'"""

            async def cancelled() -> bool:
                return bool(await world.oracle.rows(cancel))

            for _ in range(2):
                await eventually(cancelled)
            assert not write.done()

        assert (await write).owned
        assert await world.count("calls") == 2


@pytest.mark.parametrize("kind", ["journal", "end"])
async def test_a_large_write_holds_up_no_other(database_url: str, kind: str) -> None:
    """A large write has its own connection, and its rejection is not treated as an outage."""
    async with open_world(database_url) as world:
        run, other = await world.claimed(), await world.claimed("other")
        large = records_of(graph_with_calls("case-1"), value="x" * LARGE_BYTES)
        async with world.oracle.connection.transaction():
            await world.oracle.rows("SELECT FROM runs WHERE run_id = 'case-1' FOR UPDATE")
            write: Coroutine[Any, Any, object] = (
                world.stores.journal.write(JournalWrite(key=run.key, fence=1, calls=large))
                if kind == "journal"
                else world.stores.journal.finish(end_of(run, calls=large))
            )
            writing = asyncio.create_task(write)
            written = world.stores.journal.write(JournalWrite(key=other.key, fence=1))
            assert (await written).owned
            assert world.stores.journal.stuck_seconds == 0
            assert not writing.done()

        await writing
        assert await world.count("calls") == 2


async def test_a_write_that_the_server_never_carries_out_fails_alone(database_url: str) -> None:
    """The write times out on every attempt; other runs and its own run continue."""
    sizes = pool_sizes(statement_ms=300)
    async with open_world(database_url, sizes=sizes) as world:
        run, other = await world.claimed(), await world.claimed("other")
        await world.oracle.rows(
            """CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$"""
        )
        await world.oracle.rows(
            """CREATE TRIGGER slow BEFORE INSERT ON calls FOR EACH ROW
               WHEN (NEW.call_key = 'poison') EXECUTE FUNCTION slow()"""
        )
        poison = records_of(graph_with_calls("case-1"), call_key="poison")
        journal = world.stores.journal
        async with asyncio.TaskGroup() as group:
            failing = group.create_task(
                refusal(journal.write(JournalWrite(key=run.key, fence=1, calls=poison)))
            )
            writes = [
                group.create_task(journal.write(JournalWrite(key=other.key, fence=1)))
                for _ in range(20)
            ]

        assert isinstance(failing.result(), WriteFailedError)
        assert all(write.result().owned for write in writes)
        assert (await journal.finish(end_of(run, RunStatus.FAILED))).done
