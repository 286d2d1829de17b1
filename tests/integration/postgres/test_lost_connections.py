"""Database outages: during a statement, after a commit, for a while, and silently.

A proxy sits between the stores and Postgres; an oracle connects to Postgres directly.
"""

import asyncio
from dataclasses import replace

import psycopg
import pytest

from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.connections import Connection
from caseworker.platform.postgres.engines import read_row, transaction
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.journal.postgres.journal import PostgresJournal
from caseworker.runs.ports import JournalWrite
from caseworker.runs.quotas import Quota
from caseworker.runs.run import DefinitionRef, NewRun, RememberedVersion, RunKey, RunStatus
from tests.integration.postgres.broken import KEY, TERMINATE, open_world, refusal
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import pool_sizes, store_limits
from tests.support.stores import (
    CANCEL_REQUEST,
    end_of,
    eventually,
    graph_with_calls,
    new_run,
    open_stores,
    records_of,
)


@pytest.mark.req("card/s2s")
async def test_an_acceptance_whose_answer_was_lost_is_one_run(database_url: str) -> None:
    """The run was stored; the retried statement finds it, and its caller owns it."""
    async with open_world(database_url) as world:
        world.proxy.lose_answer(request=b"case-1", answer=b"INSERT 0 1")
        accepted = await world.stores.runs.accept(new_run("case-1"), worker_id="w1")
        again = await world.stores.runs.accept(new_run("case-1"), worker_id="w1")
        run = accepted.run

        assert world.proxy.counts.answers_dropped == 1
        assert (accepted.created, again.created) == (True, False)
        assert (run.status, run.fence, run.worker_id) == (RunStatus.RUNNING, 1, "w1")
        assert await world.count("runs") == 1


async def test_acceptances_in_a_batch_whose_answer_was_lost_are_one_run_each(
    database_url: str,
) -> None:
    """With and without a key, each caller owns its run."""
    async with open_world(database_url) as world:
        world.proxy.lose_answer(request=b"case-1", answer=b"INSERT 0 2")
        async with asyncio.TaskGroup() as group:
            accepted = [
                group.create_task(world.stores.runs.accept(new, worker_id="w1"))
                for new in (new_run("case-1"), new_run("case-2", key="k", named=False))
            ]

        assert world.proxy.counts.answers_dropped == 1
        assert [each.result().run.key.run_id for each in accepted] == ["case-1", "case-2"]
        assert all(each.result().created for each in accepted)
        assert await world.count("runs") == 2


async def test_a_run_whose_answer_was_lost_is_accepted_without_its_definition(
    database_url: str,
) -> None:
    """The definition was deleted after the run was stored with it."""

    async def again(new: NewRun) -> NewRun:
        raise GraphRefusedError([], DefinitionKind.GRAPH)

    ref = DefinitionRef("sums", 1, DefinitionKind.GRAPH)
    remembered = RememberedVersion(ref=ref, sha256="s", newest=True, again=again)
    new = replace(new_run("case-1", named=False), remembered=remembered)
    async with open_world(database_url) as world:
        await world.oracle.rows(
            """INSERT INTO definitions (tenant_id, kind, name, version, definition, uses,
                sha256, size_bytes) VALUES ('default', 'graph', 'sums', 1, '{}', '[]', 's', 2)"""
        )
        world.proxy.lose_answer(request=b"case-1", answer=b"INSERT 0 1")
        accepted = await world.stores.runs.accept(new, worker_id="w1")
        await world.oracle.rows("DELETE FROM definitions")
        refused = await refusal(
            world.stores.runs.accept(replace(new, key=RunKey("default", "other")), worker_id="w1")
        )

        assert world.proxy.counts.answers_dropped == 1
        assert accepted.created
        assert (accepted.run.key, accepted.run.status) == (KEY, RunStatus.RUNNING)
        assert isinstance(refused, GraphRefusedError)
        assert await world.count("runs") == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_of_two_posts_whose_answers_were_lost_one_has_made_the_run(
    database_url: str, key: str | None
) -> None:
    """A client without an answer repeats its request while the first one is still running."""
    async with open_world(database_url) as world:
        world.proxy.lose_answer(request=b"case-1", answer=b"INSERT 0 1")
        async with asyncio.TaskGroup() as group:
            posts = [
                group.create_task(
                    world.stores.runs.accept(new_run("case-1", key=key), worker_id="w1")
                )
                for _ in range(3)
            ]

        assert world.proxy.counts.answers_dropped == 1
        assert sorted(post.result().created for post in posts) == [False, False, True]
        assert await world.count("runs") == 1


async def test_a_batch_whose_last_answer_was_lost_is_written_once(database_url: str) -> None:
    """An end and a journal write are repeated, and each gets its original answer."""
    async with open_world(database_url) as world:
        run = await world.claimed()
        await world.claimed("other")
        records = records_of(graph_with_calls("other"))
        journal = JournalWrite(key=RunKey("default", "other"), fence=1, calls=records)
        world.proxy.lose_answer(request=b"case-1", answer=b"SELECT 1")
        async with asyncio.TaskGroup() as group:
            written = group.create_task(world.stores.journal.write(journal))
            finish_result = group.create_task(world.stores.journal.finish(end_of(run)))

        assert world.proxy.counts.answers_dropped == 1
        assert written.result().owned
        assert finish_result.result().done
        assert await world.count("calls") == 2


@pytest.mark.req("card/s2s")
@pytest.mark.parametrize("named", [True, False])
async def test_a_queued_run_whose_commit_was_lost_is_made_once(
    database_url: str, named: bool
) -> None:
    """The statement is repeated and finds the run; only a generated ID proves that it made it."""
    async with open_world(database_url) as world:
        world.proxy.lose_answer(request=b"case-1", answer=b"SELECT 1")
        new = new_run("case-1", key="k", named=named)
        accepted = await world.stores.runs.accept(new, worker_id=None)
        again = await world.stores.runs.accept(new, worker_id=None)

        assert world.proxy.counts.answers_dropped == 1
        assert (accepted.created, again.created) == (not named, False)
        assert accepted.run.key == again.run.key == KEY
        assert (await world.count("runs"), await world.count("procrastinate_jobs")) == (1, 1)


async def test_what_was_journaled_is_stored_once_although_the_answer_was_lost(
    database_url: str,
) -> None:
    """The answer says that the run is still owned."""
    async with open_world(database_url) as world:
        run = await world.claimed()
        records = records_of(graph_with_calls("case-1"))
        world.proxy.lose_answer(request=b"small-model", answer=b"SELECT 1")
        permission = await world.stores.journal.write(
            JournalWrite(key=run.key, fence=1, calls=records)
        )

        assert world.proxy.counts.answers_dropped == 1
        assert permission.owned
        assert list(await world.stores.runs.calls(KEY)) == list(records)


async def test_an_end_whose_answer_was_lost_is_reported_as_done(database_url: str) -> None:
    """The end was written exactly once."""
    async with open_world(database_url) as world:
        run = await world.claimed()
        world.proxy.lose_answer(request=b"case-1", answer=b"SELECT 1")
        root = records_of(graph_with_calls("case-1", llm_calls=0))
        finish_result = await world.stores.journal.finish(end_of(run, calls=root))

        assert world.proxy.counts.answers_dropped == 1
        assert finish_result.done
        assert await world.count("calls") == 1


@pytest.mark.req("card/delete")
async def test_a_stop_whose_answer_was_lost_is_stored(database_url: str) -> None:
    """The repeated request returns the first one."""
    async with open_world(database_url) as world:
        run = await world.claimed()
        world.proxy.lose_answer()
        with pytest.raises(StoreUnavailableError):
            await world.stores.runs.cancel(KEY, CANCEL_REQUEST)
        permission = await world.stores.journal.write(JournalWrite(key=run.key, fence=1))
        again = await world.stores.runs.cancel(KEY, CANCEL_REQUEST)

        assert permission.cancel_request is not None
        assert again.cancel_request == permission.cancel_request


QUEUED_WITHOUT_JOB_OR_JOB_WITHOUT_RUN = """
SELECT (SELECT count(*) FROM runs WHERE status = 'queued')
    - (SELECT count(*) FROM procrastinate_jobs)
"""
"""One statement checks both, because a lost client's COMMIT may come between two."""


@pytest.mark.guarantee(19)
async def test_no_acknowledged_run_is_lost_while_connections_break(database_url: str) -> None:
    """No run is duplicated either, and refused requests can be repeated."""
    async with open_world(database_url) as world:
        acknowledged: set[str] = set()
        refused = 0

        async def post(number: int) -> None:
            nonlocal refused
            run_id = f"case-{number}"
            key = f"key {number}" if number % 3 == 0 else None
            worker = "w1" if number % 2 else None
            try:
                await world.stores.runs.accept(new_run(run_id, key=key), worker_id=worker)
            except StoreUnavailableError:
                refused += 1
            else:
                acknowledged.add(run_id)
            if number % 10 == 0:
                world.proxy.cut()
            if number % 25 == 0:
                await world.oracle.rows(TERMINATE)

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(post(number))
                if number % 8 == 0:
                    await asyncio.sleep(0)
        stored = {row["run_id"] for row in await world.oracle.rows("SELECT run_id FROM runs")}

        assert acknowledged <= stored
        assert len(acknowledged) + refused == 200
        assert len(acknowledged) > 20
        assert world.proxy.counts.cut > 5
        assert await world.oracle.value(QUEUED_WITHOUT_JOB_OR_JOB_WITHOUT_RUN) == 0
        assert (await world.claimed("afterwards")).status is RunStatus.RUNNING


@pytest.mark.guarantee(19)
async def test_writers_wait_for_a_database_that_is_away(database_url: str) -> None:
    """The writes continue when the database is back, without any intervention."""
    async with open_world(database_url) as world:
        runs = [await world.claimed(f"case-{n}") for n in range(20)]
        world.proxy.refuse()
        world.proxy.cut()
        world.proxy.cut()
        async with asyncio.TaskGroup() as group:
            journal = world.stores.journal
            writes = [
                group.create_task(journal.write(JournalWrite(key=run.key, fence=1)))
                for run in runs[:10]
            ]
            ends = [group.create_task(journal.finish(end_of(run))) for run in runs[10:]]

            async def refused() -> bool:
                return world.proxy.counts.refused > 2

            await eventually(refused)
            assert not any(task.done() for task in (*writes, *ends))
            world.proxy.refuse(False)

        assert all(task.result().owned for task in writes)
        assert all(task.result().done for task in ends)


async def test_a_post_that_was_refused_is_not_stored_afterwards(database_url: str) -> None:
    """A timed-out post leaves the queue, so such posts do not accumulate in memory."""
    limits = store_limits(accept_timeout_seconds=0.05)
    async with open_world(database_url, limits) as world:
        world.proxy.refuse()
        world.proxy.cut()
        world.proxy.cut()
        with pytest.raises(StoreUnavailableError):
            await world.claimed("refused")
        world.proxy.refuse(False)
        world.stores.runs.limits = store_limits()
        await world.claimed("accepted")

        assert await world.oracle.rows("SELECT run_id FROM runs") == [{"run_id": "accepted"}]


async def test_a_read_after_a_restart_of_the_database_does_not_fail(database_url: str) -> None:
    """Connections are checked before they are used."""
    async with open_world(database_url) as world:
        await world.claimed()
        await world.stores.runs.get(KEY)
        await world.stores.workers.beat("w1")
        await world.oracle.rows(TERMINATE)

        assert await world.stores.runs.get(KEY) is not None
        assert (await world.stores.workers.beat("w1")).owned == {KEY}
        assert (await world.stores.runs.cancel(KEY, CANCEL_REQUEST)).run is not None


async def test_a_crowd_that_waits_for_connections_survives_a_restart(database_url: str) -> None:
    """Waiting callers get a new connection before their timeout of a minute."""
    sizes = pool_sizes(work=2, connect_seconds=60)
    async with open_world(database_url, sizes=sizes) as world:
        async with asyncio.timeout(150), asyncio.TaskGroup() as group:
            world.proxy.refuse()
            reads = [group.create_task(refusal(world.stores.runs.get(KEY))) for _ in range(100)]
            await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            world.proxy.refuse(False)
        broken = [task.result() for task in reads if task.result() is not None]

        assert all(isinstance(error, StoreUnavailableError) for error in broken)
        assert 0 < len(broken) < 50


async def test_a_silent_database_is_hung_up_on(database_url: str) -> None:
    """A read, a cancel request and a heartbeat fail; a journal write uses a new connection."""
    sizes = pool_sizes(answer_seconds=1, connect_seconds=3)
    async with open_world(database_url, sizes=sizes) as world:
        run = await world.claimed()
        await world.stores.runs.get(KEY)
        await world.stores.workers.beat("w1")
        world.proxy.silence()
        before = world.proxy.counts.accepted
        async with asyncio.TaskGroup() as group:
            journal = world.stores.journal
            write = group.create_task(journal.write(JournalWrite(key=run.key, fence=1)))
            calls = [
                group.create_task(refusal(call))
                for call in (
                    world.stores.runs.get(KEY),
                    world.stores.runs.cancel(KEY, CANCEL_REQUEST),
                    world.stores.workers.beat("w1"),
                )
            ]
            await asyncio.wait(calls)
            assert all(isinstance(call.result(), StoreUnavailableError) for call in calls)
            assert not write.done()
            world.proxy.resume()

        assert write.result().owned
        assert world.proxy.counts.accepted > before


@pytest.mark.parametrize("silent", [False, True])
async def test_a_process_can_end_although_the_database_is_away(
    database_url: str, silent: bool
) -> None:
    """Waiting callers get an error, so the process does not hang."""
    async with open_world(database_url) as world:
        run = await world.claimed()
        if silent:
            world.proxy.silence()
        else:
            world.proxy.refuse()
            world.proxy.cut()
        write = asyncio.create_task(world.stores.journal.write(JournalWrite(key=run.key, fence=1)))
        await asyncio.sleep(0)
        async with asyncio.timeout(150):
            await world.stores.journal.stop(grace_seconds=0.05)

        with pytest.raises(StoreUnavailableError):
            await write
        with pytest.raises(StoreUnavailableError):
            await world.stores.journal.write(JournalWrite(key=run.key, fence=1))
        world.proxy.resume()


async def test_a_process_that_ends_writes_what_is_in_line(database_url: str) -> None:
    """All queued writes are finished before the connection is closed."""
    async with open_world(database_url) as world:
        runs = [await world.claimed(f"case-{n}") for n in range(5)]
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(world.stores.journal.finish(end_of(run))) for run in runs]
            await asyncio.sleep(0)
            await world.stores.journal.stop()

        assert all(task.result().done for task in ends)


async def test_a_process_does_not_start_without_its_database(database_url: str) -> None:
    """The start fails with ``StoreUnavailableError``."""
    async with FaultProxy(upstream_of(database_url)) as proxy:
        proxy.refuse()
        with pytest.raises(StoreUnavailableError):
            async with open_stores(proxied(database_url, proxy)):
                pass


async def test_a_connection_that_breaks_while_it_is_prepared_is_closed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller can close the connection, and the garbage collector may come late."""
    opened: list[Connection] = []

    async def fails(connection: Connection, *_: object) -> None:
        opened.append(connection)
        raise psycopg.OperationalError

    monkeypatch.setattr(Connection, "execute", fails)
    with pytest.raises(StoreUnavailableError):
        await PostgresJournal(database_url, pool_sizes().patience, usual=Quota()).start()

    assert [connection.closed for connection in opened] == [True]


async def test_a_row_is_read_without_a_transaction_over_a_connection_that_works(
    database_url: str,
) -> None:
    """After an error and after lost connections, the pool still has working ones."""
    async with open_world(database_url) as world:
        pool = world.stores.engines.work
        one = await read_row(pool, "SELECT %s::integer AS number", (1,))
        wrong = await refusal(read_row(pool, "SELECT 1 / %s::integer", (0,)))
        none = await read_row(pool, "SELECT 1 WHERE %s", (False,))
        await world.oracle.rows(TERMINATE)
        again = await read_row(pool, "SELECT %s::integer AS number", (2,))
        async with transaction(pool) as connection:
            await connection.exec_driver_sql("CREATE TEMPORARY TABLE a ON COMMIT DROP AS SELECT 1")
        world.proxy.refuse()
        world.proxy.cut()
        away = await refusal(read_row(pool, "SELECT %s::integer AS number", (3,)))

    assert (one, none, again) == ({"number": 1}, None, {"number": 2})
    assert isinstance(wrong, psycopg.errors.DivisionByZero)
    assert isinstance(away, StoreUnavailableError)
