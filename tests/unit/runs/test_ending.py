"""Ending runs that no worker executes at the moment."""

from dataclasses import replace
from datetime import timedelta

import pytest

from caseworker.core.budget.stops import rfc3339
from caseworker.core.graph.facts import StepStatus
from caseworker.engine.report import GraphOutcome, StepReport
from caseworker.runs.execute.outcome import cancelled_while_queued, run_result_of
from caseworker.runs.run import CancelRequest, RunKind, RunRequest, RunStatus
from tests.support.runs import CLAIMED_RUN

AT = CLAIMED_RUN.created_at + timedelta(minutes=1)
CANCEL_REQUEST = CancelRequest(requested_by="ops", reason="enough", requested_at=AT)


def test_a_run_that_never_began_ends_with_a_halted_root_alone() -> None:
    """A run that never started ends with a halted root and has cost nothing."""
    end = cancelled_while_queued(CLAIMED_RUN, CANCEL_REQUEST)

    assert (end.status, end.finish_reason, end.result) == (RunStatus.CANCELLED, None, None)
    nothing = {"tokens": 0, "steps": 0, "api_calls": 0, "cost_usd": 0.0, "seconds": 0.0}
    assert end.usage == nothing | {"tokens_estimated": 0, "cost_usd_estimated": 0.0}
    assert end.stop == {
        "kind": "cancelled",
        "requested_by": "ops",
        "reason": "enough",
        "at": rfc3339(AT),
    }
    [root] = end.snapshot["nodes"].values()
    assert (root["status"], root["stop_reason"]) == ("halt", "enough")
    assert [record.node for record in end.calls] == [root]
    assert [(event.seq, event.type) for event in end.events] == [(1, "run.cancelled")]
    assert end.events[0].data == {"finish_reason": None, "stop": end.stop}
    assert end.delivered_at == AT


@pytest.mark.parametrize("kind", [RunKind.GRAPH, RunKind.AGENT])
def test_text_of_an_answer_that_never_ended_stays_in_the_result(kind: RunKind) -> None:
    """The text is marked as cut off by the stop; a completed step is not changed."""
    steps = {
        "agent": StepReport(status=StepStatus.CANCELLED),
        "done": StepReport(status=StepStatus.COMPLETED, outputs={"default": "All."}),
    }
    parts = {"agent": (2, "Half way"), "done": (1, "Old"), "elsewhere": (1, "Old")}
    streamed: dict[tuple[str | None, str], tuple[int, str]] = {
        (step_id, "content_chunk"): part for step_id, part in parts.items()
    }
    run = replace(CLAIMED_RUN, kind=kind, request=RunRequest(kind=kind), streamed=streamed)

    result = run_result_of(run, GraphOutcome(steps, stop=CANCEL_REQUEST.stop))

    assert result is not None
    if kind is RunKind.GRAPH:
        assert result["outputs"]["done"] == {"default": "All."}
        result = result["outputs"]["agent"]["result"]
    assert (result["raw_content"], result["incomplete"]) == ("Half way", "cancelled")
    assert (result["success"], result["terminate_reason"]) == (False, "aborted")
    assert (result["turn_count"], result["messages"]) == (2, [])
    assert result["error"] == {"class": "CancelledError", "message": "enough"}
