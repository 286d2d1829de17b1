"""An approval whose decision cannot be read."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from caseworker.engine.context import FlowContext
from caseworker.engine.waiting_calls import Decision, Question, WaitingCall, WaitingCalls
from caseworker.runs.run import RunStatus
from tests.support.runs import RunProcess, run_story

QUESTION = Question(subject="pay", message="?", arguments={}, schema=None, timeout_seconds=60)


class Unreachable:
    """Stores approvals, but does not return decisions."""

    async def ask(self, asked: WaitingCall) -> Decision | None:
        return None

    async def decisions(self, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        raise ConnectionError

    def listening(self) -> AbstractContextManager[Any]:
        raise ConnectionError


def test_a_question_whose_decision_cannot_be_read_fails_its_step() -> None:
    """Each pending approval raises the store's error instead of waiting forever."""

    async def story() -> None:
        async def asks(context: FlowContext) -> Any:
            return await WaitingCalls(Unreachable()).decision(context, context.path, QUESTION)

        run = await RunProcess(asks).run()

        assert run.status is RunStatus.FAILED

    run_story(story)


class UnreachableMeanwhile(Unreachable):
    """Stores the second question at the moment at which reading decisions fails."""

    def __init__(self) -> None:
        self.asked = 0
        self.both_asked, self.failed = asyncio.Event(), asyncio.Event()

    async def ask(self, asked: WaitingCall) -> Decision | None:
        self.asked += 1
        if self.asked == 2:
            self.both_asked.set()
            await self.failed.wait()
        await self.both_asked.wait()
        return None

    def listening(self) -> AbstractContextManager[Any]:
        self.failed.set()
        raise ConnectionError


def test_a_question_that_is_stored_while_reading_decisions_fails_does_not_wait_for_ever() -> None:
    """The failed watcher notified only earlier questions, so a new one must start."""
    errors: list[object] = []

    async def story() -> None:
        async def asks(context: FlowContext) -> Any:
            approvals = WaitingCalls(UnreachableMeanwhile())

            async def ask(name: str) -> None:
                try:
                    await approvals.decision(context, context.path.call(name), QUESTION)
                except ConnectionError as error:
                    errors.append(error)

            async with asyncio.timeout(600), asyncio.TaskGroup() as group:
                group.create_task(ask("first"))
                group.create_task(ask("second"))

        await RunProcess(asks).run()

    run_story(story)
    assert len(errors) == 2
