"""Ending runs that no worker executes at the moment."""

from dataclasses import replace
from datetime import timedelta

import pytest

from caseworker.core.budget.stops import rfc3339
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.runs.outcome import cancelled_while_queued
from caseworker.runs.run import CallRecord, CancelRequest, RunKind, RunRequest, RunStatus
from tests.support.graph_invariants import violations
from tests.unit.runs.test_replay import RUN, lost

AT = RUN.created_at + timedelta(minutes=1)
CANCEL_REQUEST = CancelRequest(requested_by="ops", reason="enough", requested_at=AT)


def test_a_run_that_never_began_ends_with_a_halted_root_alone() -> None:
    """A run that never started ends with a halted root and has cost nothing."""
    end = cancelled_while_queued(RUN, CANCEL_REQUEST, ())

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


def test_a_run_between_two_executions_keeps_what_the_first_one_did_and_cost() -> None:
    """The whole journal is closed, and no record is lost."""
    end = cancelled_while_queued(RUN, CANCEL_REQUEST, lost(), last_seq=7)

    assert [event.seq for event in end.events] == [8]

    assert (end.usage["tokens"], end.usage["steps"], end.usage["cost_usd"]) == (45, 1, 0.35)
    assert violations(end.snapshot) == []
    assert {node["status"] for node in end.snapshot["nodes"].values()} == {"halt", "success"}
    kept = {record.node_id: record for record in end.calls}
    assert len(kept) == 5
    assert (kept["n000003"].outcome, kept["n000003"].value) == ("result", [1])
    assert kept["n000004"].charge == {"tokens": 30, "cost_usd": "0.25"}


def test_what_steps_had_finished_stays_in_the_result() -> None:
    """A graph keeps the outputs of finished steps; a running step counts as cancelled."""
    graph = ExecutionGraph("r0")
    root = graph.create_root("graph")
    nodes = {name: graph.begin_node(root, "system", name) for name in ("a", "b", "b/x")}
    noted = {"a": ("result", {"default": 1}), "b": (None, None), "b/x": ("result", {"default": 2})}
    earlier = [CallRecord(node=graph.node(root))] + [
        CallRecord(
            node=graph.node(node),
            call_key=f"step:{name}",
            outcome=noted[name][0],
            value=noted[name][1],
        )
        for name, node in nodes.items()
    ]
    run = replace(RUN, kind=RunKind.GRAPH, request=RunRequest(kind=RunKind.GRAPH))

    assert cancelled_while_queued(run, CANCEL_REQUEST, earlier).result == {
        "outputs": {"a": {"default": 1}},
        "steps": {"a": {"status": "completed"}, "b": {"status": "cancelled"}},
    }


@pytest.mark.parametrize("kind", [RunKind.GRAPH, RunKind.AGENT])
def test_text_of_an_answer_that_never_ended_stays_in_the_result(kind: RunKind) -> None:
    """The text is marked as cut off by the stop; a completed step is not changed."""
    graph = ExecutionGraph("r0")
    root = graph.create_root("graph")
    steps = {"agent": (None, None), "done": ("result", {"default": "All."})}
    earlier = [CallRecord(node=graph.node(root))] + [
        CallRecord(
            node=graph.node(graph.begin_node(root, "system", name)),
            call_key=f"step:{name}",
            outcome=outcome,
            value=value,
        )
        for name, (outcome, value) in steps.items()
    ]
    parts = {"agent": (2, "Half way"), "done": (1, "Old"), "elsewhere": (1, "Old")}
    streamed: dict[tuple[str | None, str], tuple[int, str]] = {
        (step_id, "content_chunk"): part for step_id, part in parts.items()
    }
    run = replace(RUN, kind=kind, request=RunRequest(kind=kind), streamed=streamed)

    result = cancelled_while_queued(run, CANCEL_REQUEST, earlier).result

    assert result is not None
    if kind is RunKind.GRAPH:
        assert result["outputs"]["done"] == {"default": "All."}
        result = result["outputs"]["agent"]["result"]
    assert (result["raw_content"], result["incomplete"]) == ("Half way", "cancelled")
    assert (result["success"], result["terminate_reason"]) == (False, "aborted")
    assert (result["turn_count"], result["messages"]) == (2, [])
    assert result["error"] == {"class": "CancelledError", "message": "enough"}
