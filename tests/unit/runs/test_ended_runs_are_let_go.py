"""An ended run's memory is freed without the garbage collector, which runs too rarely."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.engine.call import AttemptError
from caseworker.engine.context import FlowContext
from caseworker.runs.run import RunStatus
from tests.support.runs import KEY, RunProcess, answering, call, new_run, run_story
from tests.unit.runs.works import CANCEL_REQUEST, nothing, waits

Work = Callable[[FlowContext], Awaitable[Any]]


class UnluckyError(Exception):
    """The error that a step fails with."""


@dataclass(frozen=True)
class FrozenError(Exception):
    """An error whose attributes cannot be set."""

    code: int


async def fails_frozen(context: FlowContext) -> Any:
    raise FrozenError(1)


async def fails(context: FlowContext) -> Any:
    raise UnluckyError


async def fails_after_another_failure(context: FlowContext) -> Any:
    try:
        await fails(context)
    except UnluckyError as first:
        raise ExceptionGroup("both", [first, ValueError("second")]) from first


async def asks_for_too_much(context: FlowContext) -> Any:
    await call(context, "one", answering(1))
    await call(context, "two", answering(2))


async def asks_in_vain(context: FlowContext) -> Any:
    async def attempt() -> Any:
        raise AttemptError("Busy.", error_class="Busy", retryable=True)

    return await call(context, "in vain", attempt)


@pytest.mark.parametrize(
    ("work", "status"),
    [
        pytest.param(nothing, RunStatus.COMPLETED, id="completed"),
        pytest.param(fails, RunStatus.FAILED, id="failed"),
        pytest.param(fails_frozen, RunStatus.FAILED, id="failed, and cannot be written to"),
        pytest.param(fails_after_another_failure, RunStatus.FAILED, id="failed twice"),
        pytest.param(asks_in_vain, RunStatus.FAILED, id="failed call"),
        pytest.param(asks_for_too_much, RunStatus.HALTED, id="halted"),
        pytest.param(waits, RunStatus.CANCELLED, id="cancelled"),
    ],
)
def test_an_ended_run_is_let_go_without_the_garbage_collector(
    work: Work, status: RunStatus
) -> None:
    """An ended run's task, journal, token, trace and values are freed, however it ended."""
    held: list[weakref.ref[Any]] = []

    async def remembered(context: FlowContext) -> Any:
        (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "run r0")
        held.extend(map(weakref.ref, (context.run.journal, context.token, context.calls, task)))
        del task
        return await work(context)

    async def story() -> None:
        process = RunProcess(remembered)
        accepted = await process.post(new_run(budget=Budget(max_llm_calls_small=1)))
        if work is waits:
            await asyncio.sleep(1)
            await process.service.cancel(KEY, by=CANCEL_REQUEST.requested_by)
        run = await process.end_of(accepted.key)
        await asyncio.sleep(1)

        assert run.status is status
        assert len(held) == 4
        assert [gone() for gone in held] == [None] * 4

    gc.disable()
    try:
        run_story(story)
    finally:
        gc.enable()
