"""Answers that a process knows from the result of a run, without reading them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker.features.threads.answers import StoredAnswer
from caseworker.runs.run import Run, RunKind, RunStatus
from tests.support.stores import new_run

STEP = {"id": "agent", "type": "agent", "data": {}}
MODEL = {"provider": "openai", "model": "m", "calls": 1}
RESULT: dict[str, Any] = {
    "success": True,
    "raw_content": "Hello.",
    "incomplete": None,
    "incomplete_reason": None,
    "models": [MODEL],
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}],
}
TOOL = {"role": "tool", "tool_call_id": "c", "content": "42"}


def ended(
    *, status: RunStatus = RunStatus.COMPLETED, step: Any = STEP, text: Any = "Hello.", **more: Any
) -> Run:
    """Return an ended run; ``more`` are other fields of the result of its agent."""
    new = new_run("r")
    output = {"default": text, "result": {**RESULT, **more}}
    return Run(
        key=new.key,
        kind=RunKind.GRAPH,
        request=replace(new.request, graph={"steps": [step], "edges": []}),
        request_hash="",
        status=status,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        result={"outputs": {"agent": output}},
    )


def test_the_answer_of_one_call_is_in_the_result() -> None:
    """The database stores the same answer with its message."""
    assert StoredAnswer.of_run(ended(), ["agent"]) == StoredAnswer(
        status=RunStatus.COMPLETED, content="Hello.", model="m"
    )


@pytest.mark.parametrize(
    "run",
    [
        ended(status=RunStatus.FAILED),
        ended(step={**STEP, "type": "function"}),
        ended(text={"b": 1, "a": 2}),
        ended(models=[MODEL, {**MODEL, "model": "other"}]),
        ended(models=[{**MODEL, "calls": 2}]),
        ended(models=[{**MODEL, "model": ""}]),
        ended(models=[]),
        ended(messages=[*RESULT["messages"], TOOL]),
        replace(ended(), result=None),
        replace(ended(), result={"outputs": {}}),
        replace(ended(), result={"outputs": {"agent": {"default": "Hi", "result": "text"}}}),
    ],
    ids=lambda run: str(run.status),
)
def test_other_answers_are_read(run: Run) -> None:
    """The database has the calls of tools, the last model and the order of fields."""
    assert StoredAnswer.of_run(run, ["agent"]) is None
    assert StoredAnswer.of_run(run, ["agent", "other"]) is None
