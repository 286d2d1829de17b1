"""A queued run that misses its deadline is halted and never starts."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.runs.observers import RunObservers
from caseworker.runs.quotas import Quota
from caseworker.runs.run import NewRun, RunKey, RunStatus
from tests.support.stores import (
    CANCEL_REQUEST,
    NotingObserver,
    Oracle,
    Stores,
    new_run,
    recovery_of,
)


def run(run_id: str, *, deadline: datetime | None = None) -> NewRun:
    new = new_run(run_id)
    return replace(new, request=replace(new.request, deadline=deadline))


async def test_a_queued_run_is_halted_at_its_deadline(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """The run never started, so it has no start time."""
    await PostgresQuotas(pair[0].engines.work, Quota()).put("default", Quota(max_running=0))
    later = datetime.now(UTC) + timedelta(hours=1)
    await pair[0].runs.accept(run("late", deadline=later), worker_id="w1")
    await pair[0].runs.accept(run("patient"), worker_id="w1")
    await oracle.rows("UPDATE runs SET deadline = now() WHERE deadline IS NOT NULL")
    watching = NotingObserver()
    looking = [recovery_of(stores, observers=RunObservers([watching])) for stores in 2 * pair]
    async with asyncio.TaskGroup() as group:
        for recovery in looking:
            group.create_task(recovery.recover())
    assert watching.told == ["ended late halted halt"]  # by one of all the processes

    ended = await pair[1].runs.get(RunKey("default", "late"))
    assert ended is not None
    assert (ended.status, ended.started_at) == (RunStatus.HALTED, None)
    assert ended.stop is not None
    assert ended.stop["kind"] == "deadline"
    waiting = await pair[1].runs.get(RunKey("default", "patient"))
    assert waiting is not None
    assert waiting.status is RunStatus.QUEUED


@pytest.mark.req("004/cancel-early")
@pytest.mark.parametrize("stop", ["cancel request", "deadline"])
async def test_any_process_ends_a_released_run_whose_stop_was_not_delivered(
    pair: tuple[Stores, Stores], oracle: Oracle, stop: str
) -> None:
    """The process that took the request, or its notification, may be lost."""
    for name in ("stopped", "resumes"):
        await pair[0].runs.accept(run(name), worker_id="w1")
    await oracle.rows("UPDATE runs SET status = 'queued', worker_id = NULL, queued_at = now()")
    if stop == "deadline":
        await oracle.rows("UPDATE runs SET deadline = now() WHERE run_id = 'stopped'")
    else:
        await pair[0].runs.cancel(RunKey("default", "stopped"), CANCEL_REQUEST)
    ended = list[RunKey]()

    async def end(key: RunKey) -> None:
        ended.append(key)

    await recovery_of(pair[1], end=end).recover()

    assert ended == [RunKey("default", "stopped")]


async def test_a_run_whose_deadline_has_passed_is_halted_by_the_request_that_brings_it(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """The halted run has no job and no attempt, and a repeated request finds it."""
    late = run("late", deadline=datetime.now(UTC) - timedelta(seconds=5))

    accepted = await pair[0].runs.accept(late, worker_id="w1")
    again = await pair[1].runs.accept(late, worker_id="w1")

    assert (accepted.created, again.created) == (True, False)
    assert again.run == await pair[0].runs.get(late.key)
    assert (again.run.status, again.run.started_at) == (RunStatus.HALTED, None)
    assert (again.run.attempts, again.run.fence) == (0, 0)
    assert again.run.stop is not None
    assert again.run.stop["kind"] == "deadline"
    assert accepted.run.status is RunStatus.HALTED
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 0


async def test_a_run_whose_deadline_has_passed_is_not_claimed(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Claims by ID and in queue order skip it until it is halted."""
    later = datetime.now(UTC) + timedelta(hours=1)
    late = run("late", deadline=later)
    await pair[0].runs.accept(late, worker_id=None)
    await pair[0].runs.accept(run("patient"), worker_id=None)
    await oracle.rows("UPDATE runs SET deadline = now() WHERE deadline IS NOT NULL")

    assert await pair[0].runs.claim(late.key, "w1") is None
    claimed = await pair[1].runs.claim(None, "w1")
    assert claimed is not None
    assert claimed.key.run_id == "patient"
    assert await pair[1].runs.claim(None, "w1") is None
