"""The graph that a run executes, and how its result is built."""

from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.engine.driver import GraphExecution
from caseworker.engine.report import GraphOutcome
from caseworker.nodes.catalog import GraphProblemsError
from caseworker.nodes.node_type import RunFacts
from caseworker.runs.execute.outcome import run_result_of
from caseworker.runs.execute.plan import RunGraphs
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import Run, RunKey, RunKind, RunRequest, RunStatus
from tests.unit.cases.agent.world import ScriptedModel, calculate, plan
from tests.unit.nodes.world import NOW, NodeRun, flow, function, graph, step


def run_of(request: RunRequest) -> Run:
    return Run(
        key=RunKey("t", "run-1"),
        kind=request.kind,
        status=RunStatus.RUNNING,
        created_at=NOW,
        request_hash="h",
        request=request,
    )


def graph_run(of: Mapping[str, Any], **inputs: Any) -> Run:
    return run_of(RunRequest(kind=RunKind.GRAPH, graph=of, inputs=inputs))


async def executed(run: Run, here: NodeRun) -> tuple[GraphOutcome, dict[str, Any] | None]:
    request = run.request
    here.facts = RunFacts(now=NOW, timezone=request.timezone, seed=request.seed)
    prepared = RunGraphs(here.catalog).graph_for(run)
    inputs = KINDS[run.kind].inputs(run.request)
    outcome = await GraphExecution(prepared, inputs, here.context()).run()
    return outcome, run_result_of(run, outcome)


@pytest.mark.req("004/one-path")
async def test_a_case_is_a_graph_of_one_step() -> None:
    """The journal keys start with that step, and the step's result is the run's result."""
    here = NodeRun(small=ScriptedModel([plan(calculate("6 * 7"))]))
    run = run_of(RunRequest(kind=RunKind.CASE, input="6 * 7?", timezone="Asia/Tokyo", seed=4))

    outcome, result = await executed(run, here)

    assert result == outcome.steps["case"].outputs["result"]
    assert result is not None
    assert (result["answer"], result["finish_reason"]) == ("42", "success")
    assert here.journal.recorded("step:case") is None
    here.journal.reopen()
    assert here.journal.recorded("case/small/1/plan") is not None
    assert here.small.document(0)["today"] == "Tuesday, September 9, 2025"  # in Tokyo
    assert here.small.requests[0].seed == 4


def test_cases_that_say_no_more_than_their_question_share_a_graph() -> None:
    """One graph is prepared per mode; cases with other settings have their own graphs."""
    graphs = RunGraphs(NodeRun().catalog)
    small, big = "hrm_small_then_escalate", "fallback_only"
    asked: list[dict[str, Any]] = [
        {"input": "1?", "mode": small},
        {"input": "2?", "mode": small},
        {"input": "1?", "mode": big},
        {"input": "1?", "mode": small, "gold_answer": "1"},
        {"input": "1?", "mode": small, "expected_tools": ("calculator",)},
        {"input": "3?", "mode": small},
    ]
    made = [graphs.graph_for(run_of(RunRequest(kind=RunKind.CASE, **one))) for one in asked]

    assert made[0] is made[1] is made[5]
    assert len({id(one) for one in made}) == 4
    data = [one.steps["case"].work.data for one in made]
    assert [(one.mode, one.gold_answer) for one in data[2:4]] == [(big, None), (small, "1")]
    assert list(data[4].expected_tools or ()) == ["calculator"]


async def test_the_question_of_a_case_is_no_template() -> None:
    """The question may contain any text of the caller."""
    here = NodeRun(small=ScriptedModel([plan(calculate("1"))]))
    question = "What are ${default} and $${x} and ${ ?"

    await executed(run_of(RunRequest(kind=RunKind.CASE, input=question)), here)

    assert here.small.document(0)["question"] == question


async def test_a_case_that_never_began_has_no_result() -> None:
    """A case that never started has no result."""
    here = NodeRun(budget=Budget(max_steps=0))

    _, result = await executed(run_of(RunRequest(kind=RunKind.CASE, input="?")), here)

    assert result is None


async def test_the_result_of_a_graph_has_the_outputs_and_the_end_of_every_step() -> None:
    """Steps that were skipped, failed or replaced by their policy are included."""

    @function("break")
    def broken(context: Any) -> Any:
        raise ValueError("the pump of alice@example.org broke")

    skip = {"on_error": "skip", "fallback_value": "instead"}
    routes = [{"when": {"path": "default", "op": "eq", "value": 1}, "to": "one"}]
    of = graph(
        step("say", "tool", {"tool": "echo", "args": {"say": "${say}"}}),
        step("skip", "function", {"name": "break"}, policy=skip),
        step("route", "router", {"routes": routes}),
        step("dead", "tool", {"tool": "echo"}),
        step("fail", "tool", {"tool": "echo", "args": {"say": "fail"}}),
        step("never", "tool", {"tool": "echo"}),
        flow("route", "dead", "one"),
        flow("say", "fail"),
        flow("skip", "fail"),
        flow("fail", "never"),
    )

    _, result = await executed(graph_run(of, say="hi", default=2), NodeRun(functions=[broken]))

    assert result is not None
    failed = result["steps"].pop("fail")
    assert result == {
        "outputs": {
            "say": {"default": {"said": "hi", "times": 1}},
            "skip": {"default": "instead"},
        },
        "steps": {
            "say": {"status": "completed"},
            "skip": {
                "status": "completed",
                "error": "ValueError: the pump of [email] broke",
                "error_class": "ValueError",
                "attempts": 1,
                "recovered_by": "skip",
            },
            "route": {"status": "completed"},
            "dead": {"status": "skipped"},
            "never": {"status": "not_started"},
        },
    }
    assert (failed["status"], failed["error_class"]) == ("failed", "ToolFailedError")
    assert failed["error"].startswith("Tool echo failed (unsaid)")


def test_a_graph_that_cannot_be_executed_here_is_refused() -> None:
    """The run may have been accepted by a process with other functions."""
    with pytest.raises(GraphProblemsError, match="No function"):
        RunGraphs(NodeRun().catalog).graph_for(
            graph_run(graph(step("f", "function", {"name": "gone"})))
        )
