"""Writes of many runs share a batch, and each gets its own answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg.rows import dict_row

from caseworker.platform.postgres.connections import Connection
from caseworker.platform.postgres.group_commit import RetryLater
from caseworker.runs.accept.postgres.batch_accept import (
    InsertAnswer,
    QueueCapacity,
    RunInsert,
    accept_in_batch,
)
from caseworker.runs.journal.journal_rows import as_rows
from caseworker.runs.journal.postgres import (
    OwnersAnswer,
    ResponseTimes,
    write_in_batch,
)
from caseworker.runs.ports import FinishResult, JournalWrite, LateResult, Permission
from caseworker.runs.run import CallRecord, EventRecord, FinishRun, Run, RunKey, RunStatus
from tests.support.limits import patience
from tests.support.stores import (
    CANCEL_REQUEST,
    Oracle,
    Stores,
    end_of,
    graph_with_calls,
    new_run,
    open_stores,
    records_of,
)

OWNED = Permission(owned=True, cancel_request=None)
LOST = Permission(owned=False, cancel_request=None)


class Batch:
    """One batch of journal writes, or of accepted runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self, *writes: JournalWrite | FinishRun) -> Sequence[OwnersAnswer]:
        rows = [await as_rows(write) for write in writes]
        async with await self._connect() as connection:
            return await write_in_batch(connection, rows, usual=ResponseTimes(), costs="{}")

    async def accept(self, *inserts: RunInsert) -> Sequence[InsertAnswer | RetryLater]:
        async with await self._connect() as connection:
            return await accept_in_batch(connection, inserts, capacity=QueueCapacity())

    async def _connect(self) -> Connection:
        options: dict[str, Any] = {"autocommit": True, "row_factory": dict_row}
        return await Connection.open(self._url, patience(), **options)


@pytest.fixture
def batch(database_url: str) -> Batch:
    return Batch(database_url)


def was_done(answer: OwnersAnswer) -> bool:
    return isinstance(answer, FinishResult) and answer.done and answer.finished_at is not None


def event(seq: int, type_: str = "text.delta") -> EventRecord:
    return EventRecord(seq=seq, ts=datetime(2026, 1, 1, tzinfo=UTC), type=type_)


def root_of(run_id: str) -> CallRecord:
    return records_of(graph_with_calls(run_id, llm_calls=0))[0]


async def claimed(stores: Stores, run_id: str) -> Run:
    return (await stores.runs.accept(new_run(run_id), worker_id="w1")).run


async def claimed_again(stores: Stores, run: Run) -> Run:
    """Return the run as its next owner has it; ``run`` is that of the old owner."""
    await stores.runs.release(run, active_seconds=1.0, calls=(), counted=True)
    again = await stores.runs.claim(run.key, "w2")
    assert again is not None
    return again


async def test_each_writer_of_a_mixed_batch_gets_an_answer_of_its_own(
    stores: Stores, batch: Batch
) -> None:
    """The batch mixes owned, lost, cancelled, ended and missing runs."""
    mine, cancel_requested, ending = [
        await claimed(stores, name) for name in ("mine", "cancelled", "ending")
    ]
    lost = await claimed(stores, "lost")
    await claimed_again(stores, lost)
    await stores.runs.cancel(cancel_requested.key, CANCEL_REQUEST)

    answers = await batch(
        JournalWrite(key=lost.key, fence=lost.fence),
        end_of(ending),
        JournalWrite(key=mine.key, fence=mine.fence),
        end_of(lost),
        JournalWrite(key=cancel_requested.key, fence=cancel_requested.fence),
        end_of(cancel_requested),
        JournalWrite(key=RunKey("default", "nobody"), fence=1),
    )

    permission = answers[4]
    assert isinstance(permission, Permission)
    assert permission.cancel_request is not None
    refused = answers[5]
    assert isinstance(refused, FinishResult)
    assert not refused.done
    assert refused.cancel_request == permission.cancel_request
    assert [answers[n] for n in (0, 2, 6)] == [LOST, OWNED, LOST]
    assert was_done(answers[1])
    assert answers[3] == FinishResult(done=False)


async def test_an_old_and_a_new_owner_in_one_batch_are_kept_apart(
    stores: Stores, batch: Batch
) -> None:
    """The old owner is refused and writes nothing, whichever write comes first."""
    old = await claimed(stores, "r")
    new = await claimed_again(stores, old)
    root = root_of("r")
    ours = replace(root, call_key="new owner")
    theirs = replace(root, call_key="old owner")
    by_old = JournalWrite(key=old.key, fence=1, calls=(theirs,), events=(event(1, "old"),))
    by_new = JournalWrite(key=new.key, fence=2, calls=(ours,), events=(event(1, "new"),))

    assert await batch(by_old, by_new, by_old) == [LOST, OWNED, LOST]
    page = await stores.runs.events(new.key, after=0, limit=10)
    assert page is not None
    assert page.events == [event(1, "new")]
    assert [record.call_key for record in await stores.runs.calls(new.key)] == ["new owner"]
    ends = await batch(end_of(old), end_of(new, RunStatus.FAILED))
    assert ends[0] == FinishResult(done=False)
    assert was_done(ends[1])


@pytest.mark.req("card/executor")
async def test_an_owner_with_an_old_fence_changes_nothing(stores: Stores, oracle: Oracle) -> None:
    """Journal writes, ends, releases and late results are refused."""
    old = await claimed(stores, "r")
    new = await claimed_again(stores, old)
    state = """SELECT r, (SELECT count(*) FROM calls),
        (SELECT count(*) FROM events) FROM runs r"""
    before = await oracle.rows(state)
    root = (root_of("r"),)

    events = (event(1),)
    write = JournalWrite(key=old.key, fence=1, calls=root, events=events)
    await stores.journal.write(write)
    await stores.journal.finish(end_of(old, calls=root, events=events))
    await stores.runs.release(old, active_seconds=9, calls=root, counted=True, events=events)
    await stores.runs.late(LateResult(key=old.key, fence=1, calls=root, usage={"tokens": 9}))

    assert await oracle.rows(state) == before
    assert (await stores.journal.write(JournalWrite(key=new.key, fence=2))).owned


async def test_a_journal_and_an_end_in_one_batch_keep_their_order(
    stores: Stores, batch: Batch
) -> None:
    """The journal write is accepted first, and the end overwrites it."""
    run = await claimed(stores, "r")
    graph = graph_with_calls("r")
    opened = records_of(graph)
    graph.mark_halt("n000001", "over")
    closed = records_of(graph)

    answers = await batch(
        JournalWrite(key=run.key, fence=1, calls=opened),
        end_of(run, calls=closed),
    )

    assert answers[0] == OWNED
    assert was_done(answers[1])
    assert [r.node["status"] for r in await stores.runs.calls(run.key)] == ["halt", "success"]


async def test_of_two_writes_of_one_run_the_later_state_is_kept(
    stores: Stores, batch: Batch
) -> None:
    """Both writes get the same answer."""
    run = await claimed(stores, "r")
    first = replace(root_of("r"), charge={"tokens": 1})
    second = replace(root_of("r"), charge={"tokens": 2})

    answers = await batch(
        JournalWrite(key=run.key, fence=1, calls=(first,)),
        JournalWrite(key=run.key, fence=1, calls=(second,)),
    )

    assert answers == [OWNED, OWNED]
    assert [record.charge for record in await stores.runs.calls(run.key)] == [{"tokens": 2}]


async def test_two_writes_of_one_run_may_carry_the_same_events(
    stores: Stores, batch: Batch
) -> None:
    """Each event is stored once, next to the events of another run."""
    run, other = await claimed(stores, "r"), await claimed(stores, "other")

    await batch(
        JournalWrite(key=run.key, fence=1, events=(event(1), event(2))),
        JournalWrite(key=other.key, fence=1, events=(event(1),)),
        end_of(run, events=(event(1), event(2), event(3, "run.completed"))),
    )

    for key, numbers in ((run.key, [1, 2, 3]), (other.key, [1])):
        page = await stores.runs.events(key, after=0, limit=10)
        assert page is not None
        assert [each.seq for each in page.events] == numbers


async def test_of_a_batch_that_is_accepted_new_runs_alone_are_stored(
    stores: Stores, batch: Batch
) -> None:
    """A known ID or key does not fail the batch; it is resolved separately."""
    known = (await claimed(stores, "known")).key
    await stores.runs.accept(new_run("keyed", key="k"), worker_id="w1")
    before = await stores.runs.get(known)

    answers = await batch.accept(
        RunInsert(new_run("new"), "w1"),
        RunInsert(new_run("known", text="3+3?"), "w1"),
        RunInsert(new_run("another", key="k"), "w1"),
    )

    assert [type(answer) for answer in answers] == [datetime, type(None), type(None)]
    assert await stores.runs.get(known) == before
    assert await stores.runs.get(RunKey("default", "another")) is None


async def test_two_posts_of_one_id_in_one_batch_make_one_run(stores: Stores, batch: Batch) -> None:
    """The first post creates the run; the second one gets no answer and reads that run."""
    first, second = new_run("r"), new_run("r", text="3+3?")

    answers = await batch.accept(RunInsert(first, "w1"), RunInsert(second, "w1"))

    stored = await stores.runs.get(first.key)
    assert isinstance(answers[0], datetime)
    assert answers[1] is None
    assert stored is not None
    assert stored.request.input == first.request.input


async def test_two_posts_of_one_key_in_one_batch_make_one_run(
    stores: Stores, batch: Batch, oracle: Oracle
) -> None:
    """One post creates the run; the generated ID of the other is never used."""
    answers = await batch.accept(
        *(RunInsert(new_run(name, key="k", named=False), "w1") for name in ("one", "two"))
    )

    assert sorted(type(answer).__name__ for answer in answers) == ["NoneType", "datetime"]
    assert await oracle.value("SELECT count(*) FROM runs") == 1


async def test_a_key_that_somebody_is_busy_with_is_waited_for_apart(
    stores: Stores, oracle: Oracle, batch: Batch
) -> None:
    """Only the post with that key waits, and it then returns the run created in the meantime."""
    lock = "SELECT pg_advisory_xact_lock(hashtextextended(E'default\\nk', 0))"
    async with oracle.connection.transaction():
        await oracle.rows(lock)
        made = """
            INSERT INTO runs (
                tenant_id, run_id, kind, status, request, request_hash, metadata, idempotency_key
            )
            SELECT tenant_id, 'theirs', kind, 'queued', request, request_hash, metadata, 'k'
            FROM runs WHERE run_id = 'like'"""
        await stores.runs.accept(new_run("like"), worker_id="w1")
        await oracle.rows(made)
        keyed = new_run("ours", key="k", named=False)
        waiting = asyncio.create_task(stores.runs.accept(keyed, worker_id="w1"))
        answers = await batch.accept(
            RunInsert(keyed, "w1"), RunInsert(new_run("other", key="l"), "w1")
        )
        assert not waiting.done()

    assert [type(answer) for answer in answers] == [type(None), datetime]
    assert (await waiting).run.key.run_id == "theirs"
    assert not (await waiting).created


async def test_a_write_that_was_made_before_is_made_once(
    stores: Stores, batch: Batch, oracle: Oracle
) -> None:
    """After a lost commit answer, repeated writes get the same answers and add nothing."""
    run = await claimed(stores, "r")
    journal = JournalWrite(key=run.key, fence=1, calls=(root_of("r"),), events=(event(1),))
    end = end_of(run, calls=records_of(graph_with_calls("r")), events=(event(1), event(2)))
    counts = """SELECT (SELECT count(*) FROM calls) AS calls, (SELECT count(*) FROM events) AS e"""

    assert [await batch(journal), await batch(journal)] == [[OWNED], [OWNED]]
    first, second = await batch(end), await batch(end)
    assert was_done(first[0])
    assert second == first
    assert await oracle.rows(counts) == [{"calls": 2, "e": 2}]
    other = replace(end, status=RunStatus.FAILED)
    assert await batch(other) == [FinishResult(done=False)]


async def test_a_locked_row_is_passed_over_and_holds_up_nobody(
    stores: Stores, oracle: Oracle, batch: Batch
) -> None:
    """A forgotten transaction stalls one run instead of all runs of a process."""
    locked, ending, free = [await claimed(stores, name) for name in ("locked", "ending", "free")]
    async with oracle.connection.transaction():
        await oracle.rows("SELECT FROM runs WHERE run_id IN ('locked', 'ending') FOR UPDATE")
        answers = await batch(
            JournalWrite(key=locked.key, fence=1, calls=(root_of("locked"),)),
            JournalWrite(key=free.key, fence=1, calls=(root_of("free"),)),
            end_of(ending),
        )
        waiting = asyncio.create_task(stores.journal.finish(end_of(ending)))
        assert (await stores.journal.write(JournalWrite(key=free.key, fence=1))).owned
        assert not waiting.done()
        assert list(await stores.runs.calls(locked.key)) == []

    assert answers == [RetryLater.LATER, OWNED, RetryLater.LATER]
    assert was_done(await waiting)
    assert len(await stores.runs.calls(free.key)) == 1


async def test_an_acceptance_waits_for_a_cancel_request_that_is_just_being_stored(
    stores: Stores, oracle: Oracle
) -> None:
    """Only this acceptance waits, other runs continue, and the cancel request wins."""
    run = await claimed(stores, "other")
    async with oracle.connection.transaction():
        await oracle.rows(
            """INSERT INTO runs (tenant_id, run_id, cancel_requested_at, cancel_requested_by,
                   pending_cancel_expires_at)
               VALUES ('default', 'r', now(), 'tester', now() + interval '1 hour')"""
        )
        waiting = asyncio.create_task(stores.runs.accept(new_run("r"), worker_id="w1"))
        await asyncio.sleep(0)
        for _ in range(5):
            write = JournalWrite(key=run.key, fence=1)
            assert await stores.journal.write(write) == OWNED
        assert not waiting.done()

    assert (await waiting).run.status is RunStatus.CANCELLED


@pytest.mark.parametrize("keyed", [False, True])
async def test_runs_that_are_accepted_at_once_share_commits(
    stores: Stores, oracle: Oracle, keyed: bool
) -> None:
    """Runs with and without keys share a transaction, as the transaction ID of their rows shows."""
    async with asyncio.TaskGroup() as group:
        for number in range(200):
            new = new_run(f"r{number}", key=f"key {number}" if keyed else None)
            group.create_task(stores.runs.accept(new, worker_id="w1"))

    counts = await oracle.rows("SELECT count(*), count(DISTINCT xmin::text) AS commits FROM runs")
    assert counts[0]["count"] == 200
    assert counts[0]["commits"] <= 5


async def test_two_processes_that_accept_the_same_ids_do_not_wait_for_one_another(
    database_url: str, oracle: Oracle
) -> None:
    """Each ID makes one run without a wait, in whatever order the processes accept them."""
    names = [f"r{n}" for n in range(20)]
    async with open_stores(database_url) as one, open_stores(database_url) as two:
        for number in range(10):
            async with asyncio.timeout(150), asyncio.TaskGroup() as group:
                for stores, order in ((one, names), (two, names[::-1])):
                    for name in order:
                        new = new_run(f"{name}-{number}")
                        group.create_task(stores.runs.accept(new, worker_id="w1"))

    assert await oracle.value("SELECT count(*) FROM runs") == 200
    assert (
        await oracle.value(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        == 0
    )


async def test_many_small_rows_are_serialized_in_parts() -> None:
    """Other work of the process continues while the rows of a large write are serialized."""
    iterations = 0

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    events = tuple(map(event, range(1_000)))

    await as_rows(JournalWrite(key=RunKey("t", "many"), fence=1, events=events))

    counting.cancel()
    assert iterations >= 3
