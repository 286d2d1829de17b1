"""Going on with a run whose worker was lost."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from app.control.budget import Budget
from app.engine.call import OutcomeUnknownError
from app.engine.context import FlowContext
from app.runs.run import CallRecord, RunStatus
from tests.support.limits import executor_limits
from tests.support.memory_runs import MemoryRuns
from tests.unit.runs.works import run_story, waits_deaf
from tests.unit.runs.world import (
    KEY,
    Process,
    answering,
    call,
    database,
    new_run,
)


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

    run_story(story)


def test_a_tool_that_was_in_flight_is_repeated_only_if_it_may_be() -> None:
    """Its caller gets an unknown outcome."""

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

    run_story(story)


def test_a_run_whose_workers_are_lost_too_often_fails() -> None:
    """With what it has cost, and saying why."""

    async def story() -> None:
        store, limits = database(), executor_limits(max_attempts=2)
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

    run_story(story)


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

    run_story(story)
