"""Executing runs in one process: each in its own task and with its own fencing token."""

import asyncio
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.engine.call import AttemptError
from caseworker.engine.context import FlowContext
from caseworker.runs.ports import FinishResult
from caseworker.runs.run import FinishRun, RunStatus
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
    run_story,
)
from tests.unit.runs.works import CANCEL_REQUEST, must_not_run, nothing, trace_of, waits


def test_a_run_is_executed_and_settled() -> None:
    """The stored run has a result, usage and a trace."""

    async def story() -> None:
        async def works(context: FlowContext) -> Any:
            return await call(context, "llm", answering(42))

        process = RunProcess(works)
        run = await process.run()

        assert (run.status, run.finish_reason, run.stop) == (RunStatus.COMPLETED, "success", None)
        assert run.result == {"value": 42}
        assert run.usage is not None
        assert run.usage["tokens"] == 55
        assert run.usage["steps"] == run.usage["api_calls"] == run.usage["llm_calls_small"] == 1
        assert run.usage["seconds"] == 0.1
        assert process.store.history(KEY) == [RunStatus.RUNNING, RunStatus.COMPLETED]
        assert trace_of(process, run) == {
            "case": ("success", None),
            "llm": ("success", None),
        }
        assert process.executor.active == frozenset()

    run_story(story)


def test_waiting_for_the_end_of_a_run_returns_the_run() -> None:
    """The executor returns the same run as the store, so a waiting request needs no read."""

    async def story() -> None:
        process = RunProcess(lambda _: asyncio.sleep(1, "done"))
        await process.post()
        ended = await process.executor.ended(KEY)

        assert ended == await process.store.get(KEY)
        assert await process.executor.ended(KEY) is None

    run_story(story)


def test_a_result_that_the_store_changes_is_read_from_it() -> None:
    """Postgres stores no half of a surrogate pair, and no response can contain one."""

    async def story() -> None:
        process = RunProcess(lambda _: asyncio.sleep(1, "half of a pair: \ud83d"))
        await process.post()
        assert await process.executor.ended(KEY) is None
        assert (await process.end_of()).status is RunStatus.COMPLETED

    run_story(story)


def test_what_it_executes_changes_when_a_run_begins_and_when_it_ends() -> None:
    """The counter lets callers notice a change without comparing all runs."""

    async def story() -> None:
        async def works(context: FlowContext) -> Any:
            return [process.executor.changes, len(process.executor.active)]

        process = RunProcess(works)
        assert process.executor.changes == 0
        run = await process.run()

        assert run.result == {"value": [1, 1]}
        assert process.executor.changes == 2

    run_story(story)


@pytest.mark.req("000/B1", "002/2.4")
def test_a_run_that_may_take_no_time_executes_nothing() -> None:
    """A time budget of zero seconds allows no execution."""

    async def story() -> None:
        process = RunProcess(must_not_run)
        run = await process.run(new_run(budget=Budget(max_time_seconds=0)))

        assert (run.status, run.finish_reason) == (RunStatus.HALTED, "budget")
        assert run.stop is not None
        assert (run.stop["kind"], run.stop["dimension"], run.stop["limit"]) == (
            "budget",
            "seconds",
            0,
        )
        assert list(trace_of(process, run)) == ["case"]

    run_story(story)


@pytest.mark.parametrize("seed", range(10))
def test_a_run_whose_deadline_has_passed_executes_nothing(seed: int) -> None:
    """The run may have been queued for too long."""

    async def story() -> None:
        process = RunProcess(must_not_run)
        run = await process.run(new_run(deadline=datetime.now(UTC) - timedelta(seconds=1)))

        assert run.status is RunStatus.HALTED
        assert run.stop is not None
        assert run.stop["kind"] == "deadline"

    run_story(story, seed)


@pytest.mark.req("000/B2", "000/B3", "002/2.4")
@pytest.mark.parametrize("seed", range(10))
def test_time_interrupts_work_in_flight_and_keeps_what_it_had(seed: int) -> None:
    """The limit may be a duration or a point in time."""

    async def story() -> None:
        process = RunProcess(waits)
        await process.post(new_run("seconds", Budget(max_time_seconds=5)))
        await process.post(new_run("instant", deadline=datetime.now(UTC) + timedelta(seconds=9)))
        seconds = await process.end_of(replace(KEY, run_id="seconds"))
        assert loop().time() == pytest.approx(5)
        instant = await process.end_of(replace(KEY, run_id="instant"))
        assert loop().time() == pytest.approx(9, abs=0.5)

        for run, kind in ((seconds, "budget"), (instant, "deadline")):
            assert (run.status, run.finish_reason) == (RunStatus.HALTED, "budget")
            assert run.result == {"value": "so far", "finish_reason": "budget"}
            assert run.stop is not None
            assert run.stop["kind"] == kind

    run_story(story, seed)


def test_a_retry_is_not_waited_for_beyond_the_deadline() -> None:
    """The call fails at once, and the step can report it."""

    async def busy() -> Any:
        raise AttemptError("Busy.", error_class="Busy", retryable=True, retry_after_seconds=20)

    async def story() -> None:
        process = RunProcess(lambda context: call(context, "llm", busy))
        run = await process.run(new_run(deadline=datetime.now(UTC) + timedelta(seconds=10)))
        assert (run.status, loop().time()) == (RunStatus.FAILED, 0)

    run_story(story)


def test_an_attempt_in_progress_is_stored_soon() -> None:
    """Other processes can follow the trace while a repeated call waits for its answer."""
    attempts = 0

    async def busy_once() -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise AttemptError("Busy.", error_class="Busy", retryable=True)
        await asyncio.sleep(60)

    async def story() -> None:
        process = RunProcess(lambda context: call(context, "llm", busy_once))
        await process.post()
        await asyncio.sleep(30)
        nodes = await process.store.nodes(KEY)
        assert attempts == 2
        assert [node["name"] for node in nodes if node["kind"] != "system"] == ["llm"]
        assert [node["status"] for node in nodes if node["name"] == "attempt"] == [
            "fail",
            "running",
        ]
        await process.end_of()

    run_story(story)


def test_time_that_earlier_executions_have_used_is_not_given_again() -> None:
    """After a hand-over the run continues with its remaining seconds."""

    async def story() -> None:
        store = database()
        first = RunProcess(waits, store)
        await first.post(new_run(budget=Budget(max_time_seconds=10)))
        await asyncio.sleep(4)
        await first.executor.drain(0)
        await asyncio.sleep(100)

        second = RunProcess(waits, store, name="p2")
        began = loop().time()
        await second.take()
        run = await second.end_of()
        assert loop().time() - began == pytest.approx(6)
        assert run.stop is not None
        assert run.stop["dimension"] == "seconds"
        assert run.active_seconds == pytest.approx(10)

    run_story(story)


def test_a_failing_step_fails_the_run() -> None:
    """The message of a foreign error is redacted."""

    async def story() -> None:
        async def fails(context: FlowContext) -> str:
            raise RuntimeError("alice@example.org")

        process = RunProcess(fails)
        run = await process.run()

        assert (run.status, run.finish_reason) == (RunStatus.FAILED, None)
        assert run.stop is not None
        assert (run.stop["kind"], run.stop["reason"]) == ("error", "RuntimeError: [email]")
        assert trace_of(process, run)["case"] == ("fail", "RuntimeError: [email]")
        assert (run.stop["step_id"], run.stop["error_class"]) == ("case", "RuntimeError")
        assert run.stop["at"].endswith("Z")
        assert "alice" not in str(process.store.rows[KEY])

    run_story(story)


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", range(10))
def test_a_stop_reaches_the_work_and_the_run_is_cancelled(seed: int) -> None:
    """The run ends at once, with the requester's name and the partial result."""

    async def story() -> None:
        process = RunProcess(waits)
        await process.post()
        await asyncio.sleep(3)
        with_cancel_request = await process.service.cancel(KEY, by="ops", reason="enough")
        assert not with_cancel_request.already_finished
        run = await process.end_of()

        assert loop().time() == 3
        assert (run.status, run.finish_reason) == (RunStatus.CANCELLED, None)
        assert run.result == {"value": "so far", "finish_reason": None}
        assert run.stop is not None
        assert (run.stop["requested_by"], run.stop["reason"]) == ("ops", "enough")
        assert run.cancel_request is not None
        assert run.cancel_request.delivered_at is not None
        assert trace_of(process, run)["case"] == ("halt", "enough")

    run_story(story, seed)


def test_a_run_that_is_not_here_is_not_stopped_here() -> None:
    """The run's own worker receives the request."""

    async def story() -> None:
        assert not RunProcess(nothing).executor.cancel(KEY, CANCEL_REQUEST)

    run_story(story)


def test_a_cancel_request_that_comes_before_the_end_is_written_is_the_end() -> None:
    """The run had completed; it ends as cancelled and keeps its result."""
    said: list[str] = []

    class SlowToFinish(MemoryRuns):
        """A store in which a cancel request arrives while the end is being written."""

        async def finish(self, finish_run: FinishRun) -> FinishResult:
            if not said:
                said.append(finish_run.status.value)
                await self.cancel(finish_run.key, CANCEL_REQUEST)
            return await super().finish(finish_run)

    async def story() -> None:
        process = RunProcess(nothing, SlowToFinish())
        run = await process.run()

        assert said == ["completed"]
        assert run.status is RunStatus.CANCELLED
        assert run.result == {"value": "done", "finish_reason": None}
        assert process.store.history(KEY) == [RunStatus.RUNNING, RunStatus.CANCELLED]
        snapshot = process.store.rows[KEY].snapshots[-1]
        assert violations(snapshot) == []
        assert snapshot["nodes"]["n000001"]["status"] == "halt"
        assert snapshot["nodes"]["n000002"]["status"] == "success"

    run_story(story)


def test_a_process_takes_no_more_runs_than_it_has_slots_for() -> None:
    """Runs being claimed occupy a slot; further runs are queued."""

    async def story() -> None:
        process = RunProcess(waits, limits=executor_limits(max_runs=2))
        assert (await process.post(new_run("r0"))).status is RunStatus.RUNNING
        assert process.executor.reserve()
        assert (await process.post(new_run("r1"))).status is RunStatus.QUEUED
        assert not process.executor.reserve()

        waiting = asyncio.create_task(process.executor.wait_for_slot())
        await asyncio.sleep(1)
        assert not waiting.done()
        process.executor.unreserve()
        await waiting
        assert process.executor.free_slots == 1

    run_story(story)


def test_a_run_that_ends_makes_room() -> None:
    """Callers waiting for a slot are woken."""

    async def story() -> None:
        process = RunProcess(waits, limits=executor_limits(max_runs=1))
        await process.post()
        waiting = asyncio.create_task(process.executor.wait_for_slot())
        await asyncio.sleep(29)
        assert not waiting.done()
        await waiting
        assert loop().time() == 30

    run_story(story)


def test_a_run_that_breaks_outside_its_steps_is_left_for_others_to_find() -> None:
    """The database failed; the run's slot is free again, and recovery finds the run."""

    class Away(MemoryRuns):
        async def finish(self, finish_run: FinishRun) -> FinishResult:
            raise RuntimeError("no database")

    async def story() -> None:
        process = RunProcess(nothing, Away())
        await process.post()
        await process.executor.ended(KEY)
        assert process.executor.active == frozenset()
        assert (await process.service.get(KEY)).status is RunStatus.RUNNING

    run_story(story)


def test_the_first_event_of_a_run_says_that_it_was_started() -> None:
    """The first event is `run.started` with the attempt's number."""

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            return "done"

        process = RunProcess(works)
        await process.run()
        events = await process.store.events(KEY, after=0, limit=9)
        assert events is not None
        assert (events.events[0].type, events.events[0].data) == ("run.started", {"attempt": 1})

    run_story(story)


def test_a_waiting_run_is_two_tasks_and_few_bytes() -> None:
    """Thousands of runs may wait. The store of the test is included in the bytes."""
    runs = 50

    async def story() -> None:
        process, before = RunProcess(waits), asyncio.all_tasks()
        await process.post(new_run("first"))
        await asyncio.sleep(1)
        tracemalloc.start()
        try:
            for number in range(runs):
                await process.post(new_run(f"r{number}", Budget(max_time_seconds=60)))
            await asyncio.sleep(1)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        tasks = asyncio.all_tasks() - before
        assert len(tasks) == 2 * (runs + 1)
        assert held / runs < 33_000
        await asyncio.sleep(40)

    run_story(story)
