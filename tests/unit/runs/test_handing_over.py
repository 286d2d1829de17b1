"""Runs that a process releases, loses or claims again."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import structlog
from structlog.contextvars import merge_contextvars

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.engine.context import FlowContext
from caseworker.engine.events import STEP_CANCELLED
from caseworker.engine.ports import CallOutcome
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.execute.release import GIVE_UP_SECONDS
from caseworker.runs.journal.replay import graph_of
from caseworker.runs.run import CallRecord, NewRun, Run, RunKey, RunKind, RunRequest, RunStatus
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import (
    EPOCH,
    KEY,
    RunProcess,
    database,
    loop,
    new_run,
    run_story,
    virtual_service_time,
)
from tests.unit.runs.works import must_not_run, nothing, waits


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.guarantee(11)
def test_a_process_that_ends_lets_runs_end_and_gives_the_others_back(seed: int) -> None:
    """A release does not count as an attempt, and the process starts no more runs."""

    async def story() -> None:
        started = asyncio.Barrier(3)

        async def works(context: FlowContext) -> str:
            await started.wait()
            await asyncio.sleep(1 if context.run_id == "short" else 30)
            return "done"

        process = RunProcess(works)
        await process.post(new_run("short"))
        await process.post(new_run("long"))
        await started.wait()
        await process.executor.drain(5)

        assert loop().time() == 5
        short = await process.service.get(replace(KEY, run_id="short"))
        long = await process.service.get(replace(KEY, run_id="long"))
        assert short.status is RunStatus.COMPLETED
        assert (long.status, long.attempts, long.worker_id) == (RunStatus.QUEUED, 0, None)
        assert long.active_seconds == pytest.approx(5)
        assert not process.executor.reserve()
        assert (await process.post(new_run("later"))).status is RunStatus.QUEUED

    run_story(story, seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_was_just_being_claimed_is_given_back_as_well(seed: int) -> None:
    """The process waits for the claim, or the run would belong to a stopped process."""

    class SlowToAccept(MemoryRuns):
        async def accept(self, *arguments: Any, **options: Any) -> Any:
            accepted = await super().accept(*arguments, **options)
            await asyncio.sleep(10)
            return accepted

    async def story() -> None:
        process = RunProcess(must_not_run, SlowToAccept())
        accepting = asyncio.create_task(process.post())
        await asyncio.sleep(1)
        await process.executor.drain(0)
        assert loop().time() == 10
        await accepting
        run = await process.service.get(KEY)
        assert (run.status, run.attempts) == (RunStatus.QUEUED, 0)

    run_story(story, seed)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.guarantee(11)
def test_a_cancel_request_wins_over_the_end_of_the_process(seed: int) -> None:
    """The run is cancelled in this process and not handed over."""

    async def story() -> None:
        async def winds_up(context: FlowContext) -> str:
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(1)
            return "done"

        process = RunProcess(winds_up)
        await process.post()
        await asyncio.sleep(1)
        draining = asyncio.create_task(process.executor.drain(0))
        await asyncio.sleep(0.5)
        await process.service.cancel(KEY, by="ops")
        await draining
        assert (await process.service.get(KEY)).status is RunStatus.CANCELLED
        assert RunStatus.QUEUED not in process.store.history(KEY)

    run_story(story, seed)


def test_a_limit_that_a_process_meets_while_it_ends_is_met_again_by_the_next_one() -> None:
    """The hand-over ended the step, so the limit it hit in that moment must not end the run."""

    async def story() -> None:
        async def meets_its_limit(context: FlowContext) -> None:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                context.scope.charge({Dimension.TOOL_CALLS: 1})

        budget = Budget(max_tool_calls=0)
        first = RunProcess(meets_its_limit)
        await first.post(new_run(budget=budget))
        await asyncio.sleep(1)
        await first.executor.drain(0)
        assert (await first.service.get(KEY)).status is RunStatus.QUEUED

        async def meets_it_at_once(context: FlowContext) -> None:
            context.scope.charge({Dimension.TOOL_CALLS: 1})

        second = RunProcess(meets_it_at_once, first.store, name="p2")
        await second.take()
        run = await second.end_of()
        assert run.status is RunStatus.HALTED
        told = [event.type for event in first.store.rows[KEY].events.values()]
        assert told.count(STEP_CANCELLED) == 1

    run_story(story)


def test_a_run_that_was_lost_is_not_given_back() -> None:
    """The run belongs to another owner now."""
    given_back: list[Any] = []

    class Watched(MemoryRuns):
        async def release(self, *arguments: Any, **options: Any) -> None:
            given_back.append(arguments)

    async def story() -> None:
        process = RunProcess(waits, Watched())
        await process.post()
        await asyncio.sleep(1)
        process.store.lose("p1")
        process.executor.lose(KEY)
        await process.executor.ended(KEY)
        assert loop().time() == 1

    run_story(story)
    assert given_back == []


def test_a_run_that_is_started_twice_is_executed_once() -> None:
    """A run is executed once, although its job was delivered twice."""
    begun: list[str] = []

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            begun.append(context.run_id)
            await asyncio.sleep(1)
            return "done"

        process = RunProcess(works)
        run = await process.post()
        process.executor.start(run, permitted_at=0)
        assert (await process.end_of()).status is RunStatus.COMPLETED

    run_story(story)
    assert begun == ["r0"]


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_was_lost_and_claimed_again_begins_when_its_lost_execution_has_ended(
    seed: int,
) -> None:
    """A run that its process lost and claims again waits for the lost execution to end."""
    times: list[tuple[str, float]] = []

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            times.append(("begun", loop().time()))
            try:
                await asyncio.sleep(10)
            finally:
                await asyncio.sleep(0.5)
                times.append(("ended", loop().time()))
            return "done"

        process = RunProcess(works)
        await process.post()
        await asyncio.sleep(1)
        process.store.lose("p1")
        await process.take()
        run = await process.end_of()
        assert (run.status, run.fence) == (RunStatus.COMPLETED, 2)
        assert process.executor.active == frozenset()

    run_story(story, seed)
    assert times == [("begun", 0), ("ended", 1.5), ("begun", 1.5), ("ended", 12.0)]


class AwayNowAndThen(MemoryRuns):
    """A store whose release and reads fail until a given time."""

    away_until = 0.0

    async def release(self, *arguments: Any, **options: Any) -> None:
        self._require_presence()
        await super().release(*arguments, **options)

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        self._require_presence()
        return await super().calls(key)

    def _require_presence(self) -> None:
        if loop().time() < self.away_until:
            raise StoreUnavailableError


def test_a_run_is_given_back_as_soon_as_the_database_is_there() -> None:
    """The run is not lost, and no attempt is counted."""

    async def story() -> None:
        store = AwayNowAndThen()
        process = RunProcess(waits, store)
        await process.post()
        store.away_until = 4.0
        await process.executor.drain(1)
        run = await process.service.get(KEY)
        assert (run.status, run.attempts) == (RunStatus.QUEUED, 0)
        assert 4 <= loop().time() < 7

    run_story(story)


def test_a_step_that_may_take_long_to_end_is_waited_for() -> None:
    """The run is handed over after the step has ended."""

    async def ends_slowly(context: FlowContext) -> str:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(2 * GIVE_UP_SECONDS)
        return "done"

    async def story() -> None:
        process = RunProcess(ends_slowly, grace_seconds=3 * GIVE_UP_SECONDS)
        await process.post()
        await process.executor.drain(1)
        run = await process.service.get(KEY)
        assert (run.status, run.attempts) == (RunStatus.QUEUED, 0)

    run_story(story)


def test_a_process_ends_although_its_runs_cannot_be_given_back() -> None:
    """A process exits even if its runs cannot be released; they are recovered later."""

    async def story() -> None:
        store = AwayNowAndThen()
        process = RunProcess(waits, store)
        await process.post()
        store.away_until = 1000.0
        await process.executor.drain(1)
        assert loop().time() < 10
        assert process.executor.active == frozenset()
        assert (await process.service.get(KEY)).status is RunStatus.RUNNING

    run_story(story)


def test_a_run_begins_when_what_it_did_before_can_be_read() -> None:
    """A database outage right after the claim does not cost an attempt."""

    async def story() -> None:
        store = AwayNowAndThen()
        first, second = RunProcess(waits, store), RunProcess(nothing, store, name="p2")
        await first.post()
        await first.executor.drain(1)
        store.away_until = 30.0
        await second.take()
        run = await second.end_of()
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1)

    run_story(story)


def unknown_step() -> NewRun:
    graph = {"steps": [{"id": "new", "type": "of_the_next_release", "data": {}}], "edges": []}
    request = RunRequest(kind=RunKind.GRAPH, input="", budget=Budget(), graph=graph)
    return replace(new_run(), request=request)


def test_a_run_that_this_process_cannot_execute_is_left_to_others() -> None:
    """The run comes from a newer release: it is logged by ID, and no attempt is counted."""

    async def story() -> None:
        process = RunProcess(must_not_run)
        await process.store.accept(unknown_step(), worker_id=None)
        with structlog.testing.capture_logs([merge_contextvars]) as logs:
            await process.take()
            await process.executor.ended(KEY)
        run = await process.service.get(KEY)
        assert (run.status, run.attempts, run.worker_id) == (RunStatus.QUEUED, 0, None)
        (line,) = [line for line in logs if line["event"] == "run.declined"]
        assert line["run_id"] == "r0"
        assert "of_the_next_release" in line["detail"]
        assert await process.take() is None
        await asyncio.sleep(5)
        assert await process.take() is not None

    run_story(story)


def test_a_run_that_nobody_can_execute_fails_in_the_end() -> None:
    """After about five minutes the run fails with the problem of its graph."""

    async def story() -> None:
        process = RunProcess(must_not_run)
        await process.store.accept(unknown_step(), worker_id=None)
        while not (await process.service.get(KEY)).finished:
            await process.take()
            await process.executor.ended(KEY)
            await asyncio.sleep(1)
        run = await process.service.get(KEY)
        assert 240 < loop().time() < 400
        assert run.status is RunStatus.FAILED
        assert "of_the_next_release" in str(run.stop)

    run_story(story)


async def _end_of_unknown(process: RunProcess, new: NewRun, *, cancel: bool) -> Run:
    """Stop a run that another process has begun, and return it at its end."""
    await process.store.accept(new, worker_id=None)
    before = await process.store.claim(KEY, "p0")
    assert before is not None
    graph, root = graph_of(before, ())
    step = graph.begin_node(root, "system", "new")
    graph.mark_success(step)
    done: dict[str, Any] = {
        "call_key": "step:new",
        "outcome": CallOutcome.RESULT,
        "value": {"output": "kept"},
    }
    calls = [
        CallRecord(node=node, **(done if node["node_id"] == step else {}))
        for node in graph.changed_since(0).nodes
    ]
    await process.store.release(before, active_seconds=0, calls=calls, counted=False)
    if cancel:
        with virtual_service_time():
            await process.service.cancel(KEY, by="operator")
    else:
        await process.executor.replay_stopped(KEY)
    return await process.end_of()


@pytest.mark.parametrize("cancel", [True, False])
def test_a_stopped_run_that_this_process_cannot_execute_ends_at_once(cancel: bool) -> None:
    """Neither a cancel request nor a deadline waits for a process that knows the graph."""

    async def story() -> None:
        new = unknown_step()
        if not cancel:
            new = replace(new, request=replace(new.request, deadline=EPOCH))
        run = await _end_of_unknown(RunProcess(must_not_run), new, cancel=cancel)
        assert run.status is (RunStatus.CANCELLED if cancel else RunStatus.HALTED), run.stop
        assert run.result is not None
        assert run.result["outputs"] == {"new": {"output": "kept"}}
        assert loop().time() < 1

    run_story(story)


@pytest.mark.req("003/NFR3.1")
def test_a_run_that_is_taken_over_is_named_in_the_log_before_it_is_executed() -> None:
    """If the run crashes its workers, the last log line of each names it."""

    async def story() -> None:
        with structlog.testing.capture_logs([merge_contextvars]) as logs:
            store = database()
            await RunProcess(waits, store).post()
            store.lose("p1")
            await RunProcess(waits, store, name="p2").take()
            await asyncio.sleep(1)
        (line,) = [line for line in logs if line["event"] == "run.taken_over"]
        assert (line["run_id"], line["attempt"], line["log_level"]) == ("r0", 2, "warning")

    run_story(story)
