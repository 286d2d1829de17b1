"""An approval whose decision cannot be read."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from caseworker.engine.approvals import Approvals, Asked, Decision, Question
from caseworker.engine.context import FlowContext
from caseworker.runs.run import RunStatus
from tests.unit.runs.works import run_story
from tests.unit.runs.world import Process

QUESTION = Question(subject="pay", message="?", arguments={}, schema=None, timeout_seconds=60)


class Unreachable:
    """Stores approvals, but does not return decisions."""

    async def ask(self, asked: Asked) -> Decision | None:
        return None

    async def decisions(self, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        raise ConnectionError

    def listening(self) -> AbstractContextManager[Any]:
        raise ConnectionError


def test_a_question_whose_decision_cannot_be_read_fails_its_step() -> None:
    """Each pending approval raises the store's error instead of waiting forever."""

    async def story() -> None:
        async def asks(context: FlowContext) -> Any:
            return await Approvals(Unreachable()).decision(context, context.path, QUESTION)

        run = await Process(asks).run()

        assert run.status is RunStatus.FAILED

    run_story(story)
