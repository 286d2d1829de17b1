"""A schedule fires every instant once, whichever process wakes it, and due instants survive."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from caseworker.core.budget.budget import Budget
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.schedules.cron_times import CatchUp
from caseworker.features.schedules.due_runs import ScheduleFiring
from caseworker.features.schedules.postgres import PostgresSchedules
from caseworker.features.schedules.schedule import (
    NewSchedule,
    Overlap,
    ScheduleNotFoundError,
    TooManySchedulesError,
)
from caseworker.platform.postgres.engines import transaction
from caseworker.platform.postgres.locks import LOCK_TENANT
from caseworker.runs.errors import QueueFullError
from caseworker.runs.observers import RunObservers
from caseworker.runs.quotas import Quota
from caseworker.runs.run import Queueing, RunKey, RunStatus
from tests.integration.postgres.hourly import HOURLY, SCHEDULED_RUN
from tests.support.limits import store_limits
from tests.support.stores import CANCEL_REQUEST, NotingObserver, Oracle, Stores, end_of, new_run


def schedule(name: str = "hourly", **changes: Any) -> NewSchedule:
    usual = NewSchedule(
        tenant="default", name=name, timing=HOURLY, run=SCHEDULED_RUN, overlap=Overlap.ALLOW
    )
    return replace(usual, **changes)


@pytest.fixture
def schedules(stores: Stores) -> PostgresSchedules:
    return opened(stores)


def opened(stores: Stores) -> PostgresSchedules:
    return PostgresSchedules(stores.engines, store_limits(), max_schedules=5)


@pytest.fixture
def firing(stores: Stores) -> ScheduleFiring:
    return firing_of(stores)


def firing_of(stores: Stores, **limits: Any) -> ScheduleFiring:
    return ScheduleFiring(stores.engines, store_limits(**limits))


async def missed(oracle: Oracle, hours: int) -> None:
    """Make the schedule overdue by ``hours`` hours, the last of which has just begun."""
    query = "UPDATE schedules SET next_at = date_trunc('hour', now()) - make_interval(hours => %s)"
    await oracle.rows(query, hours - 1)


async def run_ids(oracle: Oracle) -> list[str]:
    rows = await oracle.rows("SELECT run_id FROM runs ORDER BY metadata ->> 'scheduled_at'")
    return [row["run_id"] for row in rows]


async def test_a_schedule_is_kept_changed_and_deleted(
    schedules: PostgresSchedules, firing: ScheduleFiring, oracle: Oracle
) -> None:
    """A schedule is found by its name within its tenant, and its wake-up is stored with it."""
    made, created = await schedules.put(schedule())
    again, anew = await schedules.put(schedule(overlap=Overlap.SKIP))
    assert (created, anew) == (True, False)
    assert again.schedule_id == made.schedule_id
    assert again.overlap is Overlap.SKIP
    assert again.run == SCHEDULED_RUN
    assert await schedules.get("default", "hourly") == again

    with pytest.raises(ScheduleNotFoundError):
        await schedules.get("another", "hourly")
    with pytest.raises(ScheduleNotFoundError):
        await schedules.delete("another", "hourly")
    await schedules.delete("default", "hourly")
    with pytest.raises(ScheduleNotFoundError):
        await schedules.get("default", "hourly")


async def test_a_tenant_has_so_many_schedules(schedules: PostgresSchedules) -> None:
    """The limit holds for concurrent requests, and existing schedules can still be changed."""
    async with asyncio.TaskGroup() as tasks:
        made = [
            tasks.create_task(_refused(schedules, schedule(f"s{number}"))) for number in range(8)
        ]
    assert sum(task.result() for task in made) == 3
    one = await schedules.find("default", limit=3, cursor=None)
    two = await schedules.find("default", limit=3, cursor=one.next_cursor)
    names = [each.name for each in (*one.items, *two.items)]
    assert names == sorted(set(names))
    assert (len(names), two.next_cursor) == (5, None)
    assert not await _refused(schedules, schedule(names[0]))


async def _refused(schedules: PostgresSchedules, new: NewSchedule) -> bool:
    try:
        await schedules.put(new)
    except TooManySchedulesError:
        return True
    return False


async def test_many_who_wake_it_fire_it_once(
    schedules: PostgresSchedules, firing: ScheduleFiring, stores: Stores, oracle: Oracle
) -> None:
    """Each missed instant gets one run, with the settings of the schedule, and a job."""
    made, _ = await schedules.put(schedule())
    await missed(oracle, 3)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(firing.fire("default", "hourly"))
    for _ in range(3):
        await firing.fire("default", "hourly")

    ids = await run_ids(oracle)
    after = await schedules.get("default", "hourly")
    run = await stores.runs.get(RunKey("default", ids[-1]))
    assert len(ids) == 3
    assert run is not None
    assert run.queueing == Queueing(priority=7, concurrency_key="k", concurrency_limit=2)
    assert run.metadata == {"team": "blue", **made.about(after.last_at or datetime.now(UTC))}
    assert after.last_run_id == ids[-1] == made.run_at(after.last_at or made.created_at).key.run_id
    assert after.next_at is not None
    assert after.next_at > datetime.now(UTC) - timedelta(seconds=60)
    jobs = "SELECT count(*) FROM procrastinate_jobs WHERE queue_name = 'runs'"
    assert await oracle.value(jobs) == 3
    hooks = "SELECT count(*) FROM runs WHERE webhook ->> 'url' = 'https://example.com/hook'"
    assert await oracle.value(hooks) == 3


async def test_an_instant_that_is_fired_again_makes_no_second_run(
    schedules: PostgresSchedules, firing: ScheduleFiring, oracle: Oracle
) -> None:
    """The ID of the run is derived from the instant, so even a restored database repeats none."""
    await schedules.put(schedule())
    for _ in range(3):
        await missed(oracle, 2)
        await firing.fire("default", "hourly")

    assert len(await run_ids(oracle)) == 2


@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
async def test_an_instant_is_skipped_while_the_last_run_is_at_work(
    schedules: PostgresSchedules,
    firing: ScheduleFiring,
    stores: Stores,
    oracle: Oracle,
    running: bool,
) -> None:
    """Once that run has ended, the next instant fires."""
    await schedules.put(schedule(overlap=Overlap.SKIP))
    await missed(oracle, 3)
    await firing.fire("default", "hourly")
    [only] = await run_ids(oracle)
    key = RunKey("default", only)
    assert (await schedules.get("default", "hourly")).skipped == 2
    if running:
        run = await stores.runs.claim(key, "w1")
        assert run is not None
        await stores.journal.finish(end_of(run))
    else:
        await stores.runs.cancel(key, CANCEL_REQUEST)
    await oracle.rows("UPDATE schedules SET next_at = now() - interval '5 days'")
    await oracle.rows("UPDATE schedules SET catch_up = 'one', cron = '*/5 * * * *'")
    await firing.fire("default", "hourly")

    assert len(await run_ids(oracle)) == 2


async def test_the_last_run_is_cancelled_for_the_next(stores: Stores, oracle: Oracle) -> None:
    """A queued run is cancelled at once, a running one is asked to stop; observers are notified."""
    watching = NotingObserver()
    schedules = opened(stores)
    firing = replace(firing_of(stores), observers=RunObservers([watching]))
    await schedules.put(schedule(overlap=Overlap.CANCEL_RUNNING))
    await missed(oracle, 3)
    await firing.fire("default", "hourly")

    found = [await stores.runs.get(RunKey("default", each)) for each in await run_ids(oracle)]
    statuses = [run.status for run in found if run is not None]
    assert statuses == [RunStatus.CANCELLED, RunStatus.CANCELLED, RunStatus.QUEUED]
    assert found[0] is not None
    assert found[0].cancel_request is not None
    assert found[0].cancel_request.requested_by == "schedule hourly"
    one, two, three = await run_ids(oracle)
    assert watching.told == [
        f"accepted {one} queued",
        f"ended {one} cancelled halt",
        f"accepted {two} queued",
        f"ended {two} cancelled halt",
        f"accepted {three} queued",
    ]


async def test_a_refused_run_is_fired_later(stores: Stores, oracle: Oracle) -> None:
    """The firing is rolled back, the schedule stores the error, and only a retry fires it."""
    schedules, full, free = opened(stores), firing_of(stores, max_queued=0), firing_of(stores)
    await schedules.put(schedule())
    await missed(oracle, 2)
    await full.fire_due()

    assert await run_ids(oracle) == []
    assert (await schedules.get("default", "hourly")).last_error == "The run queue is full."
    await free.fire_due()
    assert await run_ids(oracle) == []
    await free.retry()
    assert len(await run_ids(oracle)) == 2
    assert (await schedules.get("default", "hourly")).last_error is None


async def test_instants_of_which_some_are_refused_fire_bit_by_bit(
    schedules: PostgresSchedules, firing: ScheduleFiring, stores: Stores, oracle: Oracle
) -> None:
    """The refused instants fire later, one after another, and each once."""
    await PostgresQuotas(stores.engines.work, Quota()).put("default", Quota(max_queued=2))
    await schedules.put(schedule())
    await missed(oracle, 5)
    for fired in (2, 4, 5):
        await firing.fire("default", "hourly")
        after = await schedules.get("default", "hourly")
        ids = await run_ids(oracle)
        assert len(ids) == fired
        assert after.last_run_id == ids[-1]
        assert after.last_error == (None if fired == 5 else "A quota of the tenant is exceeded.")
        for each in ids:
            await stores.runs.cancel(RunKey("default", each), CANCEL_REQUEST)

    times = "SELECT count(DISTINCT metadata ->> 'scheduled_at') FROM runs"
    assert await oracle.value(times) == 5


async def test_who_cancels_for_the_next_run_waits_for_its_tenant_first(
    schedules: PostgresSchedules, firing: ScheduleFiring, stores: Stores, oracle: Oracle
) -> None:
    """The schedule locks the tenant before any row that a concurrent acceptance needs."""
    quota = Quota(max_cost_usd_per_day=Decimal(10))
    await PostgresQuotas(stores.engines.work, Quota()).put("default", quota)
    request = replace(SCHEDULED_RUN.request, budget=Budget(max_cost_usd=Decimal(1)))
    yearly = replace(HOURLY, cron="0 0 1 1 *", catch_up=CatchUp.ONE)
    run = replace(SCHEDULED_RUN, request=request)
    await schedules.put(schedule(overlap=Overlap.CANCEL_RUNNING, timing=yearly, run=run))
    await oracle.rows("UPDATE schedules SET next_at = now() - interval '1 year'")
    await firing.fire("default", "hourly")
    await oracle.rows("UPDATE schedules SET next_at = now() - interval '1 hour'")
    await oracle.rows("UPDATE schedules SET cron = '*/5 * * * *'")
    async with asyncio.TaskGroup() as tasks, transaction(stores.engines.work) as accepting:
        await accepting.exec_driver_sql(LOCK_TENANT, ("default",))
        tasks.create_task(firing.fire("default", "hourly"))
        await oracle.until_waiting("advisory")
        await accepting.execute(text("SELECT FROM runs FOR UPDATE NOWAIT"))

    statuses = "SELECT array_agg(status ORDER BY created_at) FROM runs"
    assert await oracle.value(statuses) == ["cancelled", "queued"]


async def test_a_schedule_fires_beside_a_queue_that_is_full_of_another_tenant(
    stores: Stores, oracle: Oracle
) -> None:
    """The full queue may wait for a worker or for a later time."""
    schedules, firing = opened(stores), firing_of(stores, max_queued=2)
    full = replace(stores.runs, limits=store_limits(max_queued=2))
    later = datetime.now(UTC) + timedelta(days=365)
    for number, start_at in enumerate((later, later, None, None)):
        new = new_run(f"r{number}", tenant="a")
        new = replace(new, request=replace(new.request, start_at=start_at))
        await full.accept(new, worker_id=None)
    with pytest.raises(QueueFullError):
        await full.accept(new_run("more", tenant="a"), worker_id=None)
    await schedules.put(schedule())
    await missed(oracle, 1)

    await firing.fire("default", "hourly")

    fired = await schedules.get("default", "hourly")
    assert (fired.last_error, fired.last_run_id is not None) == (None, True)
    assert await oracle.value("SELECT count(*) FROM runs WHERE tenant_id = 'default'") == 1


async def test_a_paused_schedule_fires_nothing(
    schedules: PostgresSchedules, firing: ScheduleFiring, oracle: Oracle
) -> None:
    """After it is resumed, it does not fire the instants of the pause."""
    await schedules.put(schedule())
    await missed(oracle, 2)
    paused = await schedules.pause("default", "hourly", paused=True)
    assert (paused.paused, paused.next_at) == (True, None)
    await firing.fire("default", "hourly")
    resumed = await schedules.pause("default", "hourly", paused=False)
    await firing.fire("default", "hourly")

    assert await run_ids(oracle) == []
    assert resumed.next_at is not None
    with pytest.raises(ScheduleNotFoundError):
        await schedules.pause("another", "hourly", paused=True)


async def test_a_change_of_the_time_drops_what_was_due(
    schedules: PostgresSchedules, firing: ScheduleFiring, oracle: Oracle
) -> None:
    """Other changes keep it."""
    await schedules.put(schedule())
    await missed(oracle, 2)
    await schedules.put(schedule(overlap=Overlap.SKIP))
    assert await oracle.value("SELECT next_at < now() FROM schedules")
    other = replace(HOURLY, cron="30 * * * *")
    changed, _ = await schedules.put(schedule(timing=other))

    assert changed.next_at is not None
    assert (changed.next_at.minute, changed.next_at > datetime.now(UTC)) == (30, True)


async def test_a_run_that_begins_later_is_claimed_then(stores: Stores, oracle: Oracle) -> None:
    """A delayed run is queued with a job for that time, and it can be cancelled."""
    later = datetime.now(UTC) + timedelta(hours=1)
    new = new_run("case-1")
    new = replace(new, request=replace(new.request, start_at=later))
    run = (await stores.runs.accept(new, worker_id=None)).run

    assert (run.status, run.request.start_at) == (RunStatus.QUEUED, later)
    assert await stores.runs.claim(new.key, "w1") is None
    assert await oracle.value("SELECT scheduled_at FROM procrastinate_jobs") == later
    await oracle.rows("UPDATE runs SET queued_at = now() - interval '1 second'")
    assert await stores.runs.claim(new.key, "w1") is not None

    other = replace(new, key=RunKey("default", "case-2"))
    await stores.runs.accept(other, worker_id=None)
    cancelled = await stores.runs.cancel(other.key, CANCEL_REQUEST)
    assert cancelled.status is RunStatus.CANCELLED
