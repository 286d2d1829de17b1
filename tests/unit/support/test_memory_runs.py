"""The runs in memory keep the promises of the ports, in every order of events."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.runs.errors import IdempotencyMismatchError, QueueFullError, RunConflictError
from app.runs.ports import Accepted, JournalStore, JournalWrite, LateResult, RunStore, WorkerStore
from app.runs.run import (
    CallRecord,
    CancelRequest,
    FinishRun,
    NewRun,
    Run,
    RunKey,
    RunKind,
    RunRequest,
    RunStatus,
)
from tests.support import seeded_loop
from tests.support.memory_runs import MemoryRuns

KEY = RunKey("default", "a")
CANCEL_REQUEST = CancelRequest(requested_by="someone", reason="why")


def new_run(
    run_id: str = "a", *, text: str = "2+2?", key: str | None = None, named: bool = True
) -> NewRun:
    return NewRun(
        key=RunKey("default", run_id),
        request=RunRequest(kind=RunKind.CASE, input=text),
        request_hash=text,
        idempotency_key=key,
        named=named,
    )


def end_of(run: Run, status: RunStatus = RunStatus.COMPLETED, **values: Any) -> FinishRun:
    finish_run: dict[str, Any] = {
        "key": run.key,
        "fence": run.fence,
        "status": status,
        "finish_reason": None,
        "result": None,
        "usage": {},
        "stop": None,
        "active_seconds": 1.0,
        "calls": (),
        "snapshot": {},
    }
    return FinishRun(**finish_run | values)


def call(node_id: str, status: str, **values: Any) -> CallRecord:
    return CallRecord(node={"node_id": node_id, "kind": "tool", "status": status}, **values)


async def claimed(store: MemoryRuns, worker: str = "one") -> Run:
    return (await store.accept(new_run(), worker_id=worker)).run


def test_one_object_is_all_three_stores() -> None:
    """Checked by the type checker: the assignment is the test."""
    store = MemoryRuns()
    ports: tuple[RunStore, JournalStore, WorkerStore] = (store, store, store)

    assert ports[0] is store


async def test_a_run_is_claimed_with_its_acceptance_or_queued() -> None:
    """Once, by one worker."""
    store = MemoryRuns()
    here = await claimed(store)
    there = (await store.accept(new_run("b"), worker_id=None)).run

    assert (here.status, here.worker_id, here.fence, here.attempts) == ("running", "one", 1, 1)
    assert (there.status, there.fence, store.queued()) == ("queued", 0, [there.key])
    taken = await store.claim(there.key, "two")
    assert taken is not None
    assert (taken.status, taken.fence, taken.worker_id) == ("running", 1, "two")
    assert await store.claim(there.key, "three") is None


async def test_a_pending_cancel_waits_for_its_run_until_it_expires() -> None:
    """The first request counts; the run it meets is cancelled and never runs."""
    clock = [datetime(2025, 1, 1, tzinfo=UTC)]
    store = MemoryRuns(now=lambda: clock[0], pending_cancel_ttl_seconds=60)
    await store.cancel(KEY, CANCEL_REQUEST)
    await store.cancel(KEY, CancelRequest(requested_by="another"))
    await store.cancel(RunKey("default", "b"), CANCEL_REQUEST)
    clock[0] += timedelta(seconds=30)
    met = await store.accept(new_run(), worker_id="one")
    clock[0] += timedelta(seconds=31)
    missed = await store.accept(new_run("b"), worker_id="one")

    assert (met.created, met.run.status, met.run.started_at) == (True, "cancelled", None)
    assert met.run.cancel_request is not None
    assert met.run.cancel_request.requested_by == "someone"
    assert [node["status"] for node in await store.nodes(KEY)] == ["halt"]
    assert (missed.run.status, missed.run.cancel_request) == ("running", None)


async def test_a_queued_run_is_cancelled_at_once_and_a_running_one_learns_of_it() -> None:
    """A finished one is left alone."""
    store = MemoryRuns()
    await store.accept(new_run("b"), worker_id=None)
    run = await claimed(store)

    queued = await store.cancel(RunKey("default", "b"), CANCEL_REQUEST)
    running = await store.cancel(KEY, CANCEL_REQUEST)

    assert queued.run is not None
    assert (queued.run.status, queued.already_finished) == ("cancelled", False)
    assert running.run is not None
    assert (running.run.status, running.already_finished) == ("running", False)
    assert (await store.beat("one")).cancelled == {KEY: running.cancel_request}
    assert (
        await store.write(JournalWrite(key=KEY, fence=run.fence))
    ).cancel_request == running.cancel_request
    refused = await store.finish(end_of(run))
    assert (refused.done, refused.cancel_request) == (False, running.cancel_request)
    assert (await store.finish(end_of(run, RunStatus.CANCELLED))).done
    assert (await store.cancel(KEY, CANCEL_REQUEST)).already_finished


async def test_what_an_owner_writes_after_it_lost_the_run_changes_nothing() -> None:
    """The fence is what counts, not the name of the worker."""
    store = MemoryRuns()
    old = await claimed(store)
    assert store.lose("one") == [KEY]
    new = await store.claim(KEY, "one")
    assert new is not None

    stale = JournalWrite(key=KEY, fence=old.fence, calls=(call("n000002", "running"),))
    assert not (await store.write(stale)).owned
    assert not (await store.finish(end_of(old))).done
    await store.release(old, active_seconds=9, calls=(), counted=True)

    assert await store.get(KEY) == new
    assert await store.calls(KEY) == []


async def test_a_released_run_goes_back_to_the_queue() -> None:
    """Its attempt counts or not, as its owner says; its fence never falls."""
    store = MemoryRuns()
    run = await claimed(store)
    await store.release(run, active_seconds=2.5, calls=(call("n000001", "running"),), counted=False)
    again = await store.claim(KEY, "two")
    assert again is not None
    await store.release(again, active_seconds=3, calls=(), counted=True)
    last = await store.get(KEY)

    assert last is not None
    assert (again.attempts, again.fence, again.active_seconds) == (1, 2, 2.5)
    assert (last.status, last.attempts, last.worker_id) == ("queued", 1, None)
    assert [record.node_id for record in await store.calls(KEY)] == ["n000001"]


async def test_a_call_that_has_ended_keeps_the_way_it_ended() -> None:
    """A later usage of the same end is taken."""
    store = MemoryRuns()
    run = await claimed(store)

    async def write(*records: CallRecord) -> None:
        await store.write(JournalWrite(key=KEY, fence=run.fence, calls=records))

    await write(call("n000010", "running", call_key="k"), call("n000009", "created"))
    await write(call("n000010", "success", charge={"tokens": 1}))
    await write(call("n000010", "halt"))
    await store.finish(end_of(run))
    charged = call("n000010", "success", charge={"tokens": 2})
    await store.late(LateResult(key=KEY, fence=run.fence, calls=(charged,), usage={"tokens": 2}))

    records = await store.calls(KEY)
    assert [(one.node_id, one.node["status"]) for one in records] == [
        ("n000009", "created"),
        ("n000010", "success"),
    ]
    assert (records[1].call_key, records[1].charge) == ("k", {"tokens": 2})
    assert (await store.get(KEY) or run).usage == {"tokens": 2}


async def test_ids_and_keys_name_one_request() -> None:
    """The same one is found again, another one is refused."""
    store = MemoryRuns(max_queued=2)
    first = (await store.accept(new_run(key="k"), worker_id=None)).run
    await store.accept(new_run("b"), worker_id=None)

    for again in (new_run(key="k"), new_run("made", key="k", named=False)):
        assert await store.accept(again, worker_id=None) == Accepted(first, created=False)
    with pytest.raises(IdempotencyMismatchError):
        await store.accept(new_run(key="k", text="other"), worker_id=None)
    for other in (new_run("b", key="k"), new_run("b", text="other"), new_run("b", key="new")):
        with pytest.raises(RunConflictError):
            await store.accept(other, worker_id=None)
    with pytest.raises(QueueFullError):
        await store.accept(new_run("c"), worker_id=None)


@pytest.mark.parametrize("worker", ["one", None])
def test_a_cancel_request_and_a_run_never_miss_each_other(worker: str | None) -> None:
    """POST and DELETE in every order: the run is cancelled, or its worker sees it."""
    outcomes = {seeded_loop.run(lambda: _race(worker), seed).result for seed in range(100)}

    assert outcomes == ({"cancelled", "running, seen"} if worker else {"cancelled"})


def test_one_key_makes_one_run_in_every_order() -> None:
    """Ten posts, each with an id of its own."""
    for seed in range(50):
        assert seeded_loop.run(_post_ten, seed).result == 1


async def _race(worker: str | None) -> str:
    store = MemoryRuns()
    async with asyncio.TaskGroup() as group:
        group.create_task(store.accept(new_run(), worker_id=worker))
        group.create_task(store.cancel(KEY, CANCEL_REQUEST))
    run = await store.get(KEY)
    assert run is not None
    seen = KEY in (await store.beat("one")).cancelled
    return f"{run.status.value}, seen" if seen else run.status.value


async def _post_ten() -> int:
    store = MemoryRuns()
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            new = new_run(f"made-{number}", key="k", named=False)
            group.create_task(store.accept(new, worker_id="one"))
    return len(store.rows)
