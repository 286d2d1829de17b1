"""The operations on runs that callers can use."""

import asyncio
import time
import uuid
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
import structlog

from caseworker.engine.context import FlowContext
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.ports import Accepted
from caseworker.runs.run import NewRun, RunKey, RunStatus
from caseworker.runs.service import new_run_id
from tests.support.graph_invariants import violations
from tests.support.limits import executor_limits
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import (
    KEY,
    RunProcess,
    answering,
    call,
    database,
    loop,
    new_run,
    run_service,
    run_story,
)


async def works(context: FlowContext) -> str:
    answer: str = await call(context, "llm", answering("done", seconds=3))
    return answer


async def must_not_run(context: FlowContext) -> str:
    pytest.fail("the step was executed")


@pytest.mark.req("card/post")
def test_a_replica_without_executor_queues_what_it_accepts() -> None:
    """Any worker claims the run from the queue."""

    async def story() -> None:
        accepted = await run_service(database()).accept(new_run())
        assert (accepted.created, accepted.run.status) == (True, RunStatus.QUEUED)

    run_story(story, after_seconds=100)


@pytest.mark.req("003/NFR3.1")
def test_a_run_that_another_process_may_execute_is_logged_with_its_request() -> None:
    """The log links a queued run to its request, because other processes log only the run ID."""
    merged = structlog.testing.capture_logs([structlog.contextvars.merge_contextvars])
    lines: list[Any] = []

    async def story() -> None:
        with merged as logged, structlog.contextvars.bound_contextvars(request_id="q-1"):
            await run_service(database()).accept(new_run("elsewhere"))
            await RunProcess(works).service.accept(new_run("here"))
            lines.extend(logged)

    run_story(story, after_seconds=100)
    [line] = [line for line in lines if line["event"] == "run.queued"]
    assert (line["run_id"], line["request_id"]) == ("elsewhere", "q-1")


def test_the_same_request_is_accepted_once() -> None:
    """The second answer is the same run, which is not started again."""

    async def story() -> None:
        process = RunProcess(works)
        first = await process.service.accept(new_run())
        second = await process.service.accept(new_run())
        assert (first.created, second.created) == (True, False)
        assert second.run.key == first.run.key
        assert process.executor.active == {KEY}
        assert process.executor.free_slots == executor_limits().max_runs - 1

    run_story(story, after_seconds=100)


@pytest.mark.parametrize("seed", range(10))
def test_a_caller_that_goes_away_leaves_its_run_accepted_and_begun(seed: int) -> None:
    """The run may already have been committed."""

    class Slow(MemoryRuns):
        async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
            await asyncio.sleep(5)
            return await super().accept(new, worker_id=worker_id)

    async def story() -> None:
        process = RunProcess(works, Slow())
        asking = asyncio.create_task(process.service.accept(new_run()))
        await asyncio.sleep(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await process.end_of()).status is RunStatus.COMPLETED

    run_story(story, seed, after_seconds=100)


@pytest.mark.req("004/cancel-early", "card/delete")
@pytest.mark.parametrize("through", ["the process", "a replica"])
def test_a_run_cancelled_before_it_exists_is_never_executed(through: str) -> None:
    """The request is stored for the run and wins; a second request changes nothing."""

    async def story() -> None:
        process = RunProcess(must_not_run)
        replica = run_service(process.store)
        service = replica if through == "a replica" else process.service
        first = await service.cancel(KEY, by="ops", reason="enough")
        second = await service.cancel(KEY, by="somebody else")
        assert (first.status, first.settled_at, first.already_finished) == (None, None, False)
        assert second.cancel_request == first.cancel_request
        with pytest.raises(RunNotFoundError):
            await service.get(KEY)

        accepted = await process.service.accept(new_run())
        assert (accepted.created, accepted.run.status) == (True, RunStatus.CANCELLED)
        trace = await service.trace(KEY)
        [root] = trace.snapshot["nodes"].values()
        assert (root["status"], root["stop_reason"]) == ("halt", "enough")

    run_story(story, after_seconds=100)


@pytest.mark.req("card/delete")
def test_a_queued_run_is_cancelled_at_once() -> None:
    """A queued run is cancelled without a notification."""

    async def story() -> None:
        service = run_service(database())
        await service.accept(new_run())
        receipt = await service.cancel(KEY, by="ops")
        assert receipt.status is RunStatus.CANCELLED
        assert receipt.settled_at is not None
        assert not receipt.already_finished

    run_story(story, after_seconds=100)


@pytest.mark.req("card/delete")
def test_the_receipt_names_the_calls_that_had_begun() -> None:
    """The cancel receipt names the started calls, which may have had an effect."""

    async def story() -> None:
        process = RunProcess(works)
        await process.service.accept(new_run())
        await asyncio.sleep(1)
        receipt = await process.service.cancel(KEY, by="ops")
        run = await process.end_of()
        assert (receipt.status, receipt.settled_at) == (RunStatus.CANCELLED, run.finished_at)
        assert receipt.cancel_request is not None
        calls = receipt.cancel_request.calls or ()
        assert [record.node["name"] for record in calls] == ["llm"]
        assert [record.node["status"] for record in calls] == ["halt"]

    run_story(story, after_seconds=100)


def test_cancelling_a_finished_run_changes_nothing_and_says_so() -> None:
    """A cancel request for a finished run changes nothing, also if it is repeated."""

    async def story() -> None:
        process = RunProcess(works)
        run = await process.run()
        for _ in range(2):
            receipt = await process.service.cancel(KEY, by="ops")
            assert (receipt.status, receipt.already_finished) == (RunStatus.COMPLETED, True)
            assert receipt.settled_at == run.finished_at
        assert await process.service.get(KEY) == run

    run_story(story, after_seconds=100)


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_caller_can_wait_for_the_end(place: str) -> None:
    """The caller may wait as long as it likes, wherever the run is executed."""

    async def story() -> None:
        process = RunProcess(works)
        service = process.service if place == "here" else run_service(process.store)
        await process.service.accept(new_run())
        early = await service.wait(KEY, seconds=1)
        assert early.status is RunStatus.RUNNING
        assert loop().time() == pytest.approx(1)
        late = await service.wait(KEY, seconds=60)
        assert late.status is RunStatus.COMPLETED
        assert loop().time() == pytest.approx(3, abs=0.5)
        assert (await service.wait(KEY, seconds=60)).status is RunStatus.COMPLETED

    run_story(story, after_seconds=100)


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_process_that_ends_answers_whoever_waits(place: str) -> None:
    """The answer is the run in its current state."""

    async def story() -> None:
        process = RunProcess(works)
        service = process.service if place == "here" else run_service(process.store)
        await process.service.accept(new_run())
        asyncio.get_running_loop().call_later(1, service.stop_waiting)
        run = await service.wait(KEY, seconds=60)
        assert run.status is RunStatus.RUNNING
        assert loop().time() == pytest.approx(1)

    run_story(story, after_seconds=100)


def test_waiting_for_a_run_that_does_not_exist_is_an_error() -> None:
    """Waiting for an unknown run raises an error at once."""

    async def story() -> None:
        with pytest.raises(RunNotFoundError):
            await RunProcess(works).service.wait(KEY, seconds=60)
        assert loop().time() == 0

    run_story(story, after_seconds=100)


@pytest.mark.req("card/trace")
def test_the_trace_can_be_followed_while_the_run_works() -> None:
    """Every replica reads the trace from the journal."""

    async def story() -> None:
        process = RunProcess(works)
        replica = run_service(process.store)
        await process.service.accept(new_run())
        await asyncio.sleep(1)
        during = (await replica.trace(KEY)).snapshot
        assert [node["status"] for node in during["nodes"].values()] == ["running"] * 3
        assert violations(during) == []

        await process.end_of()
        after = await replica.trace(KEY)
        assert after.run.status is RunStatus.COMPLETED
        assert after.run.finished_at is not None
        ended_ms = int(after.run.finished_at.timestamp() * 1000)
        assert after.snapshot["snapshot_ts_ms"] == ended_ms, "it shows how the run has ended"
        assert {node["status"] for node in after.snapshot["nodes"].values()} == {"success"}
        with pytest.raises(RunNotFoundError):
            await replica.trace(RunKey("other", "r0"))

    run_story(story, after_seconds=100)


def test_a_run_whose_journal_is_not_of_one_run_still_has_a_trace() -> None:
    """The trace shows the root and the run's end; the log reports the missing nodes."""

    async def story() -> None:
        process = RunProcess(works)
        await process.run()
        nodes = [dict(node) for node in await process.store.nodes(KEY)]
        for node in nodes[1:]:
            node.update(status="running", end_ts_ms=None)
        with patch.object(process.store, "nodes", AsyncMock(return_value=nodes)):
            trace = await process.service.trace(KEY)
        [root] = trace.snapshot["nodes"].values()
        assert (root["parent_id"], root["status"]) == (None, "success")
        assert violations(trace.snapshot) == []

    run_story(story, after_seconds=100)


def test_a_run_that_waits_in_the_queue_has_a_trace() -> None:
    """The trace of a queued run holds only the root."""

    async def story() -> None:
        service = run_service(database())
        await service.accept(new_run())
        [root] = (await service.trace(KEY)).snapshot["nodes"].values()
        assert root["status"] == "running"

    run_story(story, after_seconds=100)


def test_ids_that_the_service_chooses_are_of_version_seven_and_sort_by_age() -> None:
    """The index of IDs therefore stays compact."""
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_run_id())
    after = time.time_ns() // 1_000_000

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after
    assert len({new_run_id() for _ in range(1000)}) == 1000
