"""Executing runs in one process: each in a task of its own, each under its own fence."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog

from app.control.budget import Budget
from app.engine.call import OutcomeUnknownError
from app.engine.context import FlowContext
from app.runs.executor import ExecutorLimits
from app.runs.ports import LateResult, Settled
from app.runs.run import CallRecord, Run, RunStatus, Settlement, StopWish
from app.trace.invariants import violations
from tests.support.memory_runs import MemoryRuns
from tests.unit.runs.world import (
    GRACE,
    KEY,
    Process,
    answering,
    call,
    database,
    deaf,
    loop,
    new_run,
    play,
)

WISH = StopWish(requested_by="ops", reason="enough")

Story = Callable[[], Awaitable[None]]


def told(story: Story, seed: int = 0) -> None:
    """Let a story happen, and what was abandoned in it end."""

    async def main() -> None:
        await story()
        await asyncio.sleep(120)

    with structlog.testing.capture_logs():
        play(main, seed)


async def nothing(context: FlowContext) -> str:
    """Work that is done at once."""
    return "done"


async def waits(context: FlowContext) -> str:
    """Work that keeps what it had and then waits."""
    context.keep(lambda: {"result": {"value": "so far"}})
    await asyncio.sleep(30)
    return "done"


async def waits_deaf(context: FlowContext) -> str:
    """Work that ignores its cancellation, in a call that costs something."""
    await call(context, "deaf", deaf_attempt)
    return "late"


async def deaf_attempt() -> Any:
    await deaf(20)
    return await answering("answer")()


async def must_not_run(context: FlowContext) -> str:
    pytest.fail("the step was executed")


def trace_of(process: Process, run: Run) -> dict[str, tuple[str, str | None]]:
    """Status and reason of the nodes in the last snapshot, which is sound."""
    snapshot = process.store.rows[run.key].snapshots[-1]
    assert violations(snapshot) == []
    nodes = snapshot["nodes"].values()
    return {node["name"]: (node["status"], node["stop_reason"]) for node in nodes}


# -- natural ends and limits --------------------------------------------------------------------


def test_a_run_is_executed_and_settled() -> None:
    """With its result, its usage and its trace."""

    async def story() -> None:
        async def works(context: FlowContext) -> Any:
            return await call(context, "llm", answering(42))

        process = Process(works)
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

    told(story)


@pytest.mark.req("000/B1", "002/2.4")
def test_a_run_that_may_take_no_time_executes_nothing() -> None:
    """Zero seconds allow nothing."""

    async def story() -> None:
        process = Process(must_not_run)
        run = await process.run(new_run(budget=Budget(max_time_seconds=0)))

        assert (run.status, run.finish_reason) == (RunStatus.HALTED, "budget")
        assert run.stop is not None
        assert (run.stop["kind"], run.stop["dimension"], run.stop["limit"]) == (
            "budget",
            "seconds",
            0,
        )
        assert list(trace_of(process, run)) == ["case"]

    told(story)


@pytest.mark.parametrize("seed", range(10))
def test_a_run_whose_deadline_has_passed_executes_nothing(seed: int) -> None:
    """It may have waited in the queue for too long."""

    async def story() -> None:
        process = Process(must_not_run)
        run = await process.run(new_run(deadline=datetime.now(UTC) - timedelta(seconds=1)))

        assert run.status is RunStatus.HALTED
        assert run.stop is not None
        assert run.stop["kind"] == "deadline"

    told(story, seed)


@pytest.mark.req("000/B2", "000/B3", "002/2.4")
@pytest.mark.parametrize("seed", range(10))
def test_time_interrupts_work_in_flight_and_keeps_what_it_had(seed: int) -> None:
    """At the limit, whether seconds or an instant."""

    async def story() -> None:
        process = Process(waits)
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

    told(story, seed)


def test_time_that_earlier_executions_have_used_is_not_given_again() -> None:
    """A run that is handed over goes on with the rest of its seconds."""

    async def story() -> None:
        store = database()
        first = Process(waits, store)
        await first.post(new_run(budget=Budget(max_time_seconds=10)))
        await asyncio.sleep(4)
        await first.executor.drain(0)
        await asyncio.sleep(100)

        second = Process(waits, store, name="p2")
        began = loop().time()
        await second.take()
        run = await second.end_of()
        assert loop().time() - began == pytest.approx(6)
        assert run.stop is not None
        assert run.stop["dimension"] == "seconds"
        assert run.active_seconds == pytest.approx(10)

    told(story)


def test_a_failing_step_fails_the_run() -> None:
    """A failure that is none of ours is named, not quoted."""

    async def story() -> None:
        async def fails(context: FlowContext) -> str:
            raise RuntimeError("alice@example.org")

        process = Process(fails)
        run = await process.run()

        assert (run.status, run.finish_reason) == (RunStatus.FAILED, None)
        assert run.stop is not None
        assert (run.stop["kind"], run.stop["reason"]) == ("error", "It broke with RuntimeError.")
        assert trace_of(process, run)["case"] == ("fail", "It broke with RuntimeError.")
        assert "alice" not in str(process.store.rows[KEY])

    told(story)


# -- stops -------------------------------------------------------------------------------------


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", range(10))
def test_a_stop_reaches_the_work_and_the_run_is_cancelled(seed: int) -> None:
    """At once; with who wished it, and with what there was."""

    async def story() -> None:
        process = Process(waits)
        await process.post()
        await asyncio.sleep(3)
        with_wish = await process.service.cancel(KEY, by="ops", reason="enough")
        assert not with_wish.already_finished
        run = await process.end_of()

        assert loop().time() == 3
        assert (run.status, run.finish_reason) == (RunStatus.CANCELLED, None)
        assert run.result == {"value": "so far", "finish_reason": None}
        assert run.stop is not None
        assert (run.stop["requested_by"], run.stop["reason"]) == ("ops", "enough")
        assert run.wish is not None
        assert run.wish.delivered_at is not None
        assert trace_of(process, run)["case"] == ("halt", "enough")

    told(story, seed)


def test_a_run_that_is_not_here_is_not_stopped_here() -> None:
    """Whoever has it will hear of it."""

    async def story() -> None:
        assert not Process(nothing).executor.stop(KEY, WISH)

    told(story)


def test_a_wish_that_comes_before_the_end_is_written_is_the_end() -> None:
    """The run had completed; it settles as cancelled and keeps its result."""

    said: list[str] = []

    class SlowToSettle(MemoryRuns):
        """Somebody wishes the run to stop while its end is on the way."""

        async def settle(self, settlement: Settlement) -> Settled:
            if not said:
                said.append(settlement.status.value)
                await self.cancel(settlement.key, WISH)
            return await super().settle(settlement)

    async def story() -> None:
        process = Process(nothing, SlowToSettle())
        run = await process.run()

        assert said == ["completed"]
        assert run.status is RunStatus.CANCELLED
        assert run.result == {"value": "done", "finish_reason": None}
        assert process.store.history(KEY) == [RunStatus.RUNNING, RunStatus.CANCELLED]
        snapshot = process.store.rows[KEY].snapshots[-1]
        assert violations(snapshot) == []
        assert snapshot["nodes"]["n000001"]["status"] == "halt"
        assert snapshot["nodes"]["n000002"]["status"] == "success"

    told(story)


# -- work that ignores its cancellation -----------------------------------------------------------


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", range(10))
def test_work_that_ignores_its_stop_is_abandoned_and_its_cost_added_later(seed: int) -> None:
    """The run ends after the grace period, at the estimate; the late result is dropped."""

    async def story() -> None:
        process = Process(waits_deaf)
        await process.post()
        await asyncio.sleep(3)
        await process.service.cancel(KEY, by="ops")
        run = await process.end_of()
        assert loop().time() == 3 + GRACE
        assert (run.status, run.result) == (RunStatus.CANCELLED, None)
        assert run.usage is not None
        assert (run.usage["tokens"], run.usage["api_calls"]) == (100, 1)

        await asyncio.sleep(60)
        later = await process.service.get(KEY)
        assert later.usage is not None
        assert (later.usage["tokens"], later.usage["api_calls"]) == (55, 1)
        assert (later.status, later.result) == (RunStatus.CANCELLED, None)
        [late] = [r for r in await process.store.calls(KEY) if r.node["name"] == "deaf"]
        assert (late.node["status"], late.node["tokens_in"]) == ("halt", 50)

    told(story, seed)


def test_a_late_cost_is_added_after_the_end_is_written() -> None:
    """However long that takes; otherwise the end would overwrite it."""

    class SlowToSettle(MemoryRuns):
        async def settle(self, settlement: Settlement) -> Settled:
            await asyncio.sleep(50)
            return await super().settle(settlement)

    async def story() -> None:
        process = Process(waits_deaf, SlowToSettle())
        await process.post()
        await asyncio.sleep(3)
        await process.service.cancel(KEY, by="ops")
        await process.end_of()
        await asyncio.sleep(1)
        run = await process.service.get(KEY)
        assert run.usage is not None
        assert run.usage["tokens"] == 55

    told(story)


def test_what_abandoned_work_cost_is_not_added_to_a_run_that_goes_on_elsewhere() -> None:
    """There it was counted at its estimate, and the usage is another's to write."""
    late: list[LateResult] = []

    class Watched(MemoryRuns):
        async def late(self, result: LateResult) -> None:
            late.append(result)
            await super().late(result)

    async def story() -> None:
        store = Watched()
        process = Process(waits_deaf, store)
        await process.post()
        await asyncio.sleep(3)
        await process.executor.drain(0)
        second = Process(nothing, store, name="p2")
        await second.take()
        run = await second.end_of()
        assert run.usage is not None
        assert run.usage["tokens"] == 100
        await asyncio.sleep(60)

    told(story)
    assert late == []


# -- handing over -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_a_process_that_ends_lets_runs_end_and_gives_the_others_back(seed: int) -> None:
    """Without counting an attempt, and it starts nothing more."""

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            await asyncio.sleep(1 if context.run_id == "short" else 30)
            return "done"

        process = Process(works)
        await process.post(new_run("short"))
        await process.post(new_run("long"))
        await process.executor.drain(5)

        assert loop().time() == 5
        short = await process.service.get(replace(KEY, run_id="short"))
        long = await process.service.get(replace(KEY, run_id="long"))
        assert short.status is RunStatus.COMPLETED
        assert (long.status, long.attempts, long.worker_id) == (RunStatus.QUEUED, 0, None)
        assert long.active_seconds == pytest.approx(5)
        assert not process.executor.reserve()
        assert (await process.post(new_run("later"))).status is RunStatus.QUEUED

    told(story, seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_was_just_being_claimed_is_given_back_as_well(seed: int) -> None:
    """The process waits for it; or it would be executed by a process that is no more."""

    class SlowToAccept(MemoryRuns):
        async def accept(self, *arguments: Any, **options: Any) -> Any:
            accepted = await super().accept(*arguments, **options)
            await asyncio.sleep(10)
            return accepted

    async def story() -> None:
        process = Process(must_not_run, SlowToAccept())
        accepting = asyncio.create_task(process.post())
        await asyncio.sleep(1)
        await process.executor.drain(0)
        assert loop().time() == 10
        await accepting
        run = await process.service.get(KEY)
        assert (run.status, run.attempts) == (RunStatus.QUEUED, 0)

    told(story, seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_wish_wins_over_the_end_of_the_process(seed: int) -> None:
    """The run is cancelled here and now, not handed over."""

    async def story() -> None:
        async def winds_up(context: FlowContext) -> str:
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(1)
            return "done"

        process = Process(winds_up)
        await process.post()
        await asyncio.sleep(1)
        draining = asyncio.create_task(process.executor.drain(0))
        await asyncio.sleep(0.5)
        await process.service.cancel(KEY, by="ops")
        await draining
        assert (await process.service.get(KEY)).status is RunStatus.CANCELLED
        assert RunStatus.QUEUED not in process.store.history(KEY)

    told(story, seed)


def test_a_run_that_is_started_twice_is_executed_once() -> None:
    """A job may be delivered twice."""
    begun: list[str] = []

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            begun.append(context.run_id)
            await asyncio.sleep(1)
            return "done"

        process = Process(works)
        run = await process.post()
        process.executor.start(run, permitted_at=0)
        assert (await process.end_of()).status is RunStatus.COMPLETED

    told(story)
    assert begun == ["r0"]


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_was_lost_and_claimed_again_begins_when_its_lost_execution_has_ended(
    seed: int,
) -> None:
    """Nobody had told this process that it was lost."""
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

        process = Process(works)
        await process.post()
        await asyncio.sleep(1)
        process.store.lose("p1")
        await process.take()
        while (run := await process.service.get(KEY)).status is not RunStatus.COMPLETED:
            await asyncio.sleep(1)
        assert run.fence == 2
        assert process.executor.active == frozenset()

    told(story, seed)
    assert times == [("begun", 0), ("ended", 1.5), ("begun", 1.5), ("ended", 12.0)]


# -- going on ----------------------------------------------------------------------------------


class Worked:
    """A step of three calls; notes those that reach the outside."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.hangs_at = "c"

    async def __call__(self, context: FlowContext) -> list[Any]:
        answers = []
        for name in ("a", "b", "c"):
            seconds = 1000.0 if name == self.hangs_at else 0.1
            answers.append(await call(context, name, answering(name, self.made, seconds=seconds)))
        return answers


@pytest.mark.parametrize("losses", [1, 2])
def test_a_run_goes_on_where_lost_executions_have_left_it(losses: int) -> None:
    """However often its worker is lost: finished calls are not made again, and all is charged."""

    async def story() -> None:
        work, store = Worked(), database()
        await Process(work, store).post(new_run(budget=Budget(max_llm_calls_small=3)))
        for loss in range(losses):
            await asyncio.sleep(5)
            store.lose(f"p{loss + 1}")
            if loss == losses - 1:
                work.hangs_at = ""
            process = Process(work, store, name=f"p{loss + 2}")
            await process.take()
        run = await process.end_of()

        assert work.made == ["a", "b"] + ["c"] * (1 + losses)
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 1 + losses)
        assert run.result == {"value": ["a", "b", "c"]}
        assert run.usage is not None
        assert run.usage["llm_calls_small"] == 3
        assert run.usage["api_calls"] == 3 + losses
        assert run.usage["tokens"] == 3 * 55 + losses * 100
        assert run.usage["steps"] == 1
        nodes = store.rows[KEY].snapshots[-1]["nodes"].values()
        lost = [node for node in nodes if node["stop_reason"] == "worker_lost"]
        assert len(lost) == 2 * losses  # each time the step and the call

    told(story)


def test_a_tool_that_was_in_flight_is_repeated_only_if_it_may_be() -> None:
    """Its caller is told that the outcome is unknown."""

    async def story() -> None:
        made: list[str] = []

        async def works(context: FlowContext) -> str:
            try:
                await call(context, "pay", answering("pay", made, seconds=1000), repeatable=False)
            except OutcomeUnknownError:
                return "unknown"
            return "paid"

        store = database()
        await Process(works, store).post()
        await asyncio.sleep(5)
        store.lose("p1")
        second = Process(works, store, name="p2")
        await second.take()
        assert (await second.end_of()).result == {"value": "unknown"}
        assert made == ["pay"]

    told(story)


def test_a_run_whose_workers_are_lost_too_often_fails() -> None:
    """With what it has cost, and saying why."""

    async def story() -> None:
        store, limits = database(), ExecutorLimits(max_attempts=2)
        await Process(waits_deaf, store, limits=limits).post()
        for loss in range(2):
            await asyncio.sleep(5)
            store.lose(f"p{loss + 1}")
            process = Process(waits_deaf, store, name=f"p{loss + 2}", limits=limits)
            await process.take()
        run = await process.end_of()
        assert (run.status, run.attempts) == (RunStatus.FAILED, 3)
        assert run.stop is not None
        assert (run.stop["kind"], run.stop["reason"]) == (
            "worker_lost",
            "Its worker was lost 2 times.",
        )
        assert run.usage is not None
        assert run.usage["tokens"] == 200

    told(story)


def test_a_run_whose_journal_cannot_be_read_fails_and_is_not_begun_for_ever() -> None:
    """Its usage is kept."""

    class Torn(MemoryRuns):
        async def calls(self, key: Any) -> Sequence[CallRecord]:
            root, _, *rest = await super().calls(key)
            return [root, *rest]

    async def story() -> None:
        work, store = Worked(), Torn()
        await Process(work, store).post()
        await asyncio.sleep(5)
        store.lose("p1")
        second = Process(work, store, name="p2")
        await second.take()
        run = await second.end_of()
        assert run.status is RunStatus.FAILED
        assert run.stop is not None
        assert run.stop["reason"] == "The run's journal cannot be read."
        assert run.usage is not None
        assert run.usage["tokens"] == 2 * 55 + 100

    told(story)


# -- slots -------------------------------------------------------------------------------------


def test_a_process_takes_no_more_runs_than_it_has_slots_for() -> None:
    """Those that are just being claimed count; the others are queued."""

    async def story() -> None:
        process = Process(waits, limits=ExecutorLimits(max_runs=2))
        assert (await process.post(new_run("r0"))).status is RunStatus.RUNNING
        assert process.executor.reserve()
        assert (await process.post(new_run("r1"))).status is RunStatus.QUEUED
        assert not process.executor.reserve()

        waiting = asyncio.create_task(process.executor.room())
        await asyncio.sleep(1)
        assert not waiting.done()
        process.executor.unreserve()
        await waiting
        assert process.executor.free_slots == 1

    told(story)


def test_a_run_that_ends_makes_room() -> None:
    """Whoever waits for a slot is told."""

    async def story() -> None:
        process = Process(waits, limits=ExecutorLimits(max_runs=1))
        await process.post()
        waiting = asyncio.create_task(process.executor.room())
        await asyncio.sleep(29)
        assert not waiting.done()
        await waiting
        assert loop().time() == 30

    told(story)


def test_a_run_that_breaks_outside_its_steps_is_left_for_others_to_find() -> None:
    """The database did not answer; the slot is free again."""

    class Away(MemoryRuns):
        async def settle(self, settlement: Settlement) -> Settled:
            raise RuntimeError("no database")

    async def story() -> None:
        process = Process(nothing, Away())
        await process.post()
        await process.executor.ended(KEY)
        assert process.executor.active == frozenset()
        assert (await process.service.get(KEY)).status is RunStatus.RUNNING

    told(story)
