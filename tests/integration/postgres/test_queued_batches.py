"""Queued runs share a commit, and each has its job in the same transaction."""

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.platform.postgres.engines import transaction
from caseworker.runs.accept.postgres.batch_accept import QueueCapacity
from caseworker.runs.errors import (
    IdempotencyMismatchError,
    QueueFullError,
    QuotaExceededError,
    RunConflictError,
)
from caseworker.runs.ports import Accepted
from caseworker.runs.quotas import Quota
from caseworker.runs.run import NewRun, Queueing, RunKey, RunStatus
from tests.support.limits import pool_sizes, store_limits
from tests.support.stores import CANCEL_REQUEST, Oracle, Stores, new_run, open_stores

JOB = "j.queueing_lock = r.tenant_id || '/' || r.run_id AND j.status = 'todo'"
UNPAIRED = f"""SELECT count(*) FROM (SELECT * FROM runs WHERE status = 'queued') r
    FULL JOIN procrastinate_jobs j ON {JOB} WHERE r.run_id IS NULL OR j.id IS NULL"""  # noqa: S608
APART = f"""SELECT count(*) FROM runs r JOIN procrastinate_jobs j ON {JOB}
    WHERE r.xmin::text <> j.xmin::text"""  # noqa: S608
TRANSACTIONS = "SELECT count(DISTINCT xmin::text) FROM runs"

Answer = Accepted | BaseException


async def accepted(stores: Stores, *runs: NewRun, worker_id: str | None = None) -> list[Answer]:
    """Accept runs concurrently, like requests."""

    async def accept(new: NewRun) -> Answer:
        try:
            return await stores.runs.accept(new, worker_id=worker_id)
        except Exception as error:
            return error

    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(accept(new)) for new in runs]
    return [each.result() for each in answers]


async def test_many_runs_are_queued_with_their_jobs_by_few_commits(
    stores: Stores, oracle: Oracle
) -> None:
    """Each stored run equals the run that its caller got."""
    answers = await accepted(stores, *(new_run(f"r{n}") for n in range(100)))

    for answer in answers:
        assert isinstance(answer, Accepted)
        assert answer.created
        assert await stores.runs.get(answer.run.key) == answer.run
        assert answer.run.status is RunStatus.QUEUED
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 100
    assert await oracle.value(UNPAIRED) == 0
    assert await oracle.value(APART) == 0
    assert await oracle.value(TRANSACTIONS) <= 6


def some_runs(chance: random.Random) -> list[NewRun]:
    """Return requests that conflict with each other and with existing runs."""
    runs = []
    for number in range(60):
        tenant = chance.choice(("default", "default", "default", "limited"))
        named = chance.random() < 0.7
        run_id = chance.choice((f"r{number}", "known", "cancelled", f"r{chance.randrange(60)}"))
        key = chance.choice((None, None, "k1", "k2", "known"))
        text = chance.choice(("2+2?", "2+2?", "3+3?"))
        run = new_run(
            run_id if named else f"made-{number}", tenant=tenant, text=text, key=key, named=named
        )
        if chance.random() < 0.1:
            run = replace(run, queueing=Queueing(concurrency_key="c", concurrency_limit=1))
        if chance.random() < 0.1:
            later = datetime.now(UTC) + timedelta(hours=1)
            run = replace(run, request=replace(run.request, start_at=later))
        runs.append(run)
    return runs


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_meets_in_a_batch_is_as_if_it_had_come_alone(
    stores: Stores, oracle: Oracle, seed: int
) -> None:
    """The batch mixes known IDs and keys, early cancels, quotas, concurrency keys and claims."""
    chance = random.Random(seed)
    await PostgresQuotas(stores.engines.work, Quota()).put("limited", Quota(max_queued=4))
    await stores.runs.accept(new_run("known", key="known"), worker_id="w1")
    await stores.runs.cancel(RunKey("default", "cancelled"), CANCEL_REQUEST)
    runs = some_runs(chance)
    claimed = [run for run in runs if chance.random() < 0.2]
    queued = [run for run in runs if run not in claimed]

    async with asyncio.TaskGroup() as group:
        first = group.create_task(accepted(stores, *queued))
        second = group.create_task(accepted(stores, *claimed, worker_id="w1"))

    answers = [
        *zip(queued, first.result(), strict=True),
        *zip(claimed, second.result(), strict=True),
    ]
    created = [
        answer.run.key for _, answer in answers if isinstance(answer, Accepted) and answer.created
    ]
    assert len(created) == len(set(created))
    assert len(created) + 1 == await oracle.value(
        "SELECT count(*) FROM runs WHERE request IS NOT NULL"
    )
    for asked, answer in answers:
        if isinstance(answer, Accepted):
            assert answer.run.request_hash == asked.request_hash
            assert answer.run.key == asked.key or asked.idempotency_key is not None
        else:
            refused = (RunConflictError, IdempotencyMismatchError, QuotaExceededError)
            assert isinstance(answer, refused)
    stopped = await stores.runs.get(RunKey("default", "cancelled"))
    assert stopped is None or stopped.status is RunStatus.CANCELLED
    limited = "SELECT count(*) FROM runs WHERE tenant_id = 'limited' AND status = 'queued'"
    assert await oracle.value(limited) <= 4
    assert await oracle.value(UNPAIRED) == 0


async def test_a_connection_that_dies_between_run_and_job_leaves_neither(
    stores: Stores, oracle: Oracle
) -> None:
    """The batch is retried, and callers with generated IDs learn that they created their runs."""
    await oracle.rows("CREATE SEQUENCE inserts")
    await oracle.rows(
        """CREATE FUNCTION die_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF nextval('inserts') = 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
           RETURN NEW; END $$"""
    )
    await oracle.rows(
        """CREATE TRIGGER die_once AFTER INSERT ON procrastinate_jobs FOR EACH ROW
           EXECUTE FUNCTION die_once()"""
    )

    answers = await accepted(stores, *(new_run(f"r{n}", named=False) for n in range(3)))

    assert await oracle.value("SELECT last_value FROM inserts") == 5
    assert [isinstance(each, Accepted) and each.created for each in answers] == [True] * 3
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 3
    assert await oracle.value(UNPAIRED) == 0


async def test_a_job_that_is_left_over_is_the_runs_own(stores: Stores, oracle: Oracle) -> None:
    """A job of an erased run is reused; the other runs are accepted as usual."""
    await stores.runs.accept(new_run("r1"), worker_id=None)
    await oracle.rows("DELETE FROM runs")

    answers = await accepted(stores, *(new_run(f"r{n}") for n in range(3)))

    assert [isinstance(each, Accepted) and each.created for each in answers] == [True] * 3
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 3
    assert await oracle.value(UNPAIRED) == 0


async def test_what_was_claimed_before_the_queued_ones_failed_is_its_callers(
    stores: Stores, oracle: Oracle
) -> None:
    """Their caller executes them: its worker is alive, so no other worker would claim them."""
    await stores.runs.accept(new_run("r1"), worker_id=None)
    await oracle.rows("DELETE FROM runs")

    async with asyncio.TaskGroup() as group:
        queued = group.create_task(accepted(stores, *(new_run(f"r{n}") for n in range(3))))
        claimed = group.create_task(
            accepted(stores, *(new_run(f"c{n}") for n in range(3)), worker_id="w1")
        )

    answers = [*queued.result(), *claimed.result()]
    assert [isinstance(each, Accepted) and each.created for each in answers] == [True] * 6
    assert await oracle.value(UNPAIRED) == 0


async def test_runs_that_begin_later_leave_the_queue_to_those_that_wait(
    database_url: str,
) -> None:
    """Delayed runs have their own limit, which counts all queued runs."""
    later = datetime.now(UTC) + timedelta(days=1)

    def delayed(run_id: str) -> NewRun:
        new = new_run(run_id)
        return replace(new, request=replace(new.request, start_at=later))

    async with open_stores(database_url, store_limits(max_queued=3)) as stores:
        for each in ("l1", "l2", "l3", "l4"):
            answers = await accepted(stores, delayed(each))
            assert isinstance(answers[0], QueueFullError if each == "l4" else Accepted)
        answers = await accepted(stores, *(new_run(f"r{n}") for n in range(3)))
        assert [isinstance(each, Accepted) for each in answers] == [True] * 3
        assert isinstance((await accepted(stores, new_run("more")))[0], QueueFullError)


async def test_delayed_runs_of_a_tenant_leave_places_to_delayed_runs_of_others(
    database_url: str,
) -> None:
    """Runs delayed by a year take no capacity from other tenants."""
    later = datetime.now(UTC) + timedelta(days=365)

    def delayed(run_id: str, tenant: str) -> NewRun:
        new = new_run(run_id, tenant=tenant)
        return replace(new, request=replace(new.request, start_at=later))

    async with open_stores(database_url, store_limits(max_queued=2)) as stores:
        answers = [(await accepted(stores, delayed(f"r{n}", "a")))[0] for n in range(3)]
        assert [type(each) for each in answers] == [Accepted, Accepted, QueueFullError]
        assert isinstance((await accepted(stores, delayed("r0", "b")))[0], Accepted)
        assert isinstance((await accepted(stores, delayed("r1", "b")))[0], QueueFullError)


async def test_a_full_queue_takes_nothing_more(database_url: str, oracle: Oracle) -> None:
    """Batches fill it up to its limit."""
    async with open_stores(database_url, store_limits(max_queued=5)) as stores:
        answers = await accepted(stores, *(new_run(f"r{n}") for n in range(5)))
        assert [isinstance(each, Accepted) for each in answers] == [True] * 5
        assert await oracle.value(TRANSACTIONS) <= 2

        for more in ([new_run("alone")], [new_run("one"), new_run("more")]):
            answers = await accepted(stores, *more)
            assert [type(each) for each in answers] == [QueueFullError] * len(more)
        assert await oracle.value("SELECT count(*) FROM runs") == 5
        assert await oracle.value(UNPAIRED) == 0


async def test_a_crowd_at_a_full_queue_is_refused_without_a_connection_for_each(
    database_url: str,
) -> None:
    """Refused posts do not wait for a database connection."""
    limits, sizes = store_limits(max_queued=2), pool_sizes(work=1, connect_seconds=5)
    async with open_stores(database_url, limits, sizes=sizes) as stores:
        await accepted(stores, new_run("r1"), new_run("r2", key="k"))

        async with transaction(stores.engines.work):
            crowd = [new_run(f"more-{n}", key=f"k{n}" if n % 2 else None) for n in range(300)]
            answers = await accepted(stores, *crowd)

        assert {type(each) for each in answers} == {QueueFullError}


async def test_what_was_accepted_is_found_again_though_the_queue_is_full(
    database_url: str,
) -> None:
    """A run is found by ID or key, and a run cancelled in advance needs no capacity."""
    async with open_stores(database_url, store_limits(max_queued=2)) as stores:
        await stores.runs.cancel(RunKey("default", "cancelled"), CANCEL_REQUEST)
        await accepted(stores, new_run("r1"), new_run("r2", key="k"))

        again = [new_run("r1"), new_run("other", key="k", named=False), new_run("cancelled")]
        answers = await accepted(stores, *again, *(new_run(f"more-{n}") for n in range(20)))

        found = [each for each in answers[:3] if isinstance(each, Accepted)]
        assert [each.run.key.run_id for each in found] == ["r1", "r2", "cancelled"]
        assert [each.created for each in found] == [False, False, True]
        assert {type(each) for each in answers[3:]} == {QueueFullError}


async def test_the_last_places_of_a_queue_go_to_the_first_of_a_batch(
    database_url: str, oracle: Oracle
) -> None:
    """One statement accepts the first runs and refuses the others."""
    limits, sizes = store_limits(max_queued=5), pool_sizes(work=1, connect_seconds=5)
    async with open_stores(database_url, limits, sizes=sizes) as stores:
        await accepted(stores, new_run("r"))
        async with transaction(stores.engines.work):
            answers = await accepted(stores, *(new_run(f"r{n:02}") for n in range(20)))

    assert [isinstance(each, Accepted) for each in answers] == [True] * 4 + [False] * 16
    assert {type(each) for each in answers[4:]} == {QueueFullError}
    assert await oracle.value(UNPAIRED) == 0


FREE_ONE = (
    """CREATE FUNCTION free_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
       DELETE FROM runs WHERE run_id = (SELECT min(run_id) FROM runs WHERE run_id < 'r3');
       RETURN NULL; END $$""",
    """CREATE TRIGGER free_one AFTER INSERT ON runs FOR EACH STATEMENT
       EXECUTE FUNCTION free_one()""",
)
"""SQL that lets each insert free a queue slot after it has counted the queue, three in all.

A worker that claims a run has the same effect.
"""


@pytest.mark.parametrize("tenant", ["default", "another"])
async def test_places_that_come_free_while_a_crowd_is_refused_are_taken_by_a_batch(
    database_url: str, oracle: Oracle, tenant: str
) -> None:
    """Runs accepted one by one at the same time would not count each other."""
    limits, sizes = store_limits(max_queued=5), pool_sizes(work=1, connect_seconds=5)
    async with open_stores(database_url, limits, sizes=sizes) as stores:
        await accepted(stores, *(new_run(f"r{n}") for n in range(5)))
        for statement in FREE_ONE:
            await oracle.rows(statement)
        crowd = 20 if tenant == "default" else 1  # other tenants get extra slots one by one
        async with transaction(stores.engines.work):
            runs = [new_run(f"s{n:02}", tenant=tenant) for n in range(crowd)]
            answers = await accepted(stores, *runs)

    kinds = [type(each) for each in answers]
    taken = min(3, crowd)
    assert kinds.count(Accepted) == taken
    assert kinds.count(QueueFullError) == crowd - taken
    assert await oracle.value("SELECT count(*) FROM runs") <= 5


async def test_others_are_refused_without_a_connection_where_all_places_beyond_are_taken(
    database_url: str,
) -> None:
    """A queue at twice its limit refuses every tenant in the batch itself."""
    limits, sizes = store_limits(max_queued=1), pool_sizes(work=1, connect_seconds=5)
    async with open_stores(database_url, limits, sizes=sizes) as stores:
        for tenant in ("a", "b"):
            (answer,) = await accepted(stores, new_run("r", tenant=tenant))
            assert isinstance(answer, Accepted)
        async with transaction(stores.engines.work):
            answers = await accepted(stores, *(new_run("r", tenant=f"t{n}") for n in range(20)))

    assert {type(each) for each in answers} == {QueueFullError}


async def test_processes_that_count_the_queue_seldom_pass_its_limit_by_little(
    database_url: str, oracle: Oracle
) -> None:
    """One process has an old count and is not notified of runs that another has queued."""
    most, limits = 640, store_limits(max_queued=640)
    async with (
        open_stores(database_url, limits) as idle,
        open_stores(database_url, limits) as busy,
    ):
        await accepted(idle, new_run("first"))
        await accepted(busy, *(new_run(f"b{n:03}") for n in range(most - 1)))
        assert await oracle.value("SELECT count(*) FROM runs") == most

        crowd = [new_run(f"{side}{n:03}") for n in range(100) for side in "xy"]
        async with asyncio.TaskGroup() as group:
            group.create_task(accepted(busy, *crowd[::2]))
            group.create_task(accepted(idle, *crowd[1::2]))

        assert await oracle.value("SELECT count(*) FROM runs") <= most + 10


def test_the_queue_is_counted_seldom_while_it_is_empty_and_always_when_it_is_nearly_full() -> None:
    """The queue is counted again after a second, because other processes may have queued runs."""
    now = 0.0
    room = QueueCapacity(clock=lambda: now)
    assert not room.take(1)

    room.counted(10 * QueueCapacity.PART)
    assert room.take(8)
    assert room.take(2)
    assert not room.take(1)

    room.counted(10 * QueueCapacity.PART)
    now += QueueCapacity.SECONDS
    assert not room.take(1)

    room.counted(QueueCapacity.PART - 1)
    assert not room.take(1)
