"""Decisions of an earlier execution are used again."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker.engine.context import FlowContext
from caseworker.engine.waiting_calls import Decision, Question, Verdict, WaitingCall, WaitingCalls
from tests.unit.engine.driving import GraphRun, Scripted, drive, graph, statuses

QUESTION = Question(
    subject="pay", message="Pay?", arguments={"amount": 5}, schema=None, timeout_seconds=60
)


class Desk:
    """Decides each question at once, and records it."""

    def __init__(self, verdict: Verdict) -> None:
        self.decision = Decision(verdict=verdict, by="anna", at=datetime(2026, 1, 1, tzinfo=UTC))
        self.asked: list[WaitingCall] = []

    async def ask(self, asked: WaitingCall) -> Decision:
        self.asked.append(asked)
        return self.decision

    async def decisions(self, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        return {}

    def listening(self) -> AbstractContextManager[Any]:
        return nullcontext()


def executed(desk: Desk, question: Question, before: GraphRun | None = None) -> GraphRun:
    """Execute a step that asks; ``before`` is its earlier execution."""
    found: list[Decision] = []

    async def asks(context: FlowContext, _: Mapping[str, Any]) -> Mapping[str, Any]:
        found.append(await WaitingCalls(desk).decision(context, context.path, question))
        return {"default": found[0].verdict.value}

    def remember(world: GraphRun) -> None:
        for entry in before.gateway.journal.entries.values() if before else ():
            if entry.call_key.endswith("approval") and entry.outcome is not None:
                world.gateway.journal.remember(
                    entry.call_key, entry.outcome, entry.value, entry.request_hash
                )

    outcome, world = drive(graph("A"), Scripted(A=asks), before=remember)
    assert statuses(outcome) == {"A": "completed"}
    assert found == [desk.decision]
    return world


@pytest.mark.parametrize("verdict", [Verdict.APPROVED, Verdict.REFUSED])
def test_a_recorded_decision_on_the_same_question_is_used(verdict: Verdict) -> None:
    """The next process does not repeat the question, and its trace has no second one."""
    desk = Desk(verdict)
    world = executed(desk, QUESTION)
    again = executed(desk, QUESTION, world)

    assert len(desk.asked) == 1
    names = [node["name"] for node in again.gateway.graph.snapshot()["nodes"].values()]
    assert "approval of pay" not in names


@pytest.mark.parametrize("changed", [{"arguments": {"amount": 6}}, {"subject": "refund"}])
def test_another_question_at_the_same_place_is_asked(changed: dict[str, Any]) -> None:
    """A decision holds for the arguments that the approver has seen."""
    desk = Desk(Verdict.APPROVED)
    world = executed(desk, QUESTION)
    other = {"subject": "pay", "arguments": {"amount": 5}, **changed}
    executed(desk, Question(message="Pay?", schema=None, timeout_seconds=60, **other), world)

    assert len(desk.asked) == 2
