"""The outcome of a run in the API's terms."""

from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import CancelledError, DeadlineExceededError, HandOver, Stop
from caseworker.core.budget.stops import StopCause as Cause
from caseworker.core.budget.stops import StopKind as Kind
from caseworker.core.budget.usage import BudgetExceededError, ResourceUsage
from caseworker.core.graph.facts import StepStatus
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.engine.report import GraphOutcome, StepReport
from caseworker.runs.execute.outcome import RunOutcome, close, outcome_of
from caseworker.runs.kinds import AGENT_STEP
from caseworker.runs.run import Run, RunKey, RunKind, RunRequest, RunStatus
from tests.support.graph_invariants import violations

AT = datetime(2025, 9, 8, 12, tzinfo=UTC)
RESULT = {"answer": "4", "finish_reason": None}


def run_of(kind: RunKind) -> Run:
    return Run(
        key=RunKey("t", "r0"),
        kind=kind,
        status=RunStatus.RUNNING,
        created_at=AT,
        request_hash="h",
        request=RunRequest(kind=kind, input="2+2?"),
    )


CASE, GRAPH = run_of(RunKind.CASE), run_of(RunKind.GRAPH)


class OurError(Exception):
    """An error of the service with a safe message."""

    __module__ = "caseworker_cases.agent"


def outcome(
    stop: Stop | None = None, error: Exception | None = None, result: Any = RESULT
) -> GraphOutcome:
    outputs = {} if result is None else {"result": result}
    steps = {"case": StepReport(StepStatus.COMPLETED, outputs)}
    return GraphOutcome(steps, error=error, stop=stop)


def test_a_natural_end_is_a_success() -> None:
    """A run that ends normally has no stop."""
    run_outcome = outcome_of(CASE, outcome(), at=AT)

    assert run_outcome == RunOutcome(
        status=RunStatus.COMPLETED, finish_reason="success", result=RESULT
    )


@pytest.mark.parametrize(
    ("stop", "status", "finish_reason", "kind"),
    [
        (CancelledError("enough"), RunStatus.CANCELLED, None, "cancelled"),
        (
            BudgetExceededError(ResourceUsage(), Budget(), "spent"),
            RunStatus.HALTED,
            "budget",
            "budget",
        ),
        (DeadlineExceededError(AT), RunStatus.HALTED, "budget", "deadline"),
        (HandOver("lost"), RunStatus.FAILED, None, "worker_lost"),
        (Stop(Cause(kind=Kind.ERROR)), RunStatus.FAILED, None, "error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Stop) else None,
)
def test_every_stop_has_its_status(
    stop: Stop, status: RunStatus, finish_reason: str | None, kind: str
) -> None:
    """The partial result is kept, and the cause has a time."""
    run_outcome = outcome_of(CASE, outcome(stop), at=AT)

    assert (run_outcome.status, run_outcome.finish_reason) == (status, finish_reason)
    assert run_outcome.result == {"answer": "4", "finish_reason": finish_reason}
    assert run_outcome.stop is not None
    assert (run_outcome.stop.kind, run_outcome.stop.at) == (kind, AT)


@pytest.mark.parametrize("stop", [None, BudgetExceededError(ResourceUsage(), Budget(), "spent")])
def test_the_end_of_an_agent_run_has_no_finish_reason(stop: Stop | None) -> None:
    """The result of an agent run holds the reason, and the run has no finish reason."""
    result = {"success": stop is None, "terminate_reason": "goal" if stop is None else "budget"}
    steps = {AGENT_STEP: StepReport(StepStatus.COMPLETED, {"default": "4", "result": result})}

    run_outcome = outcome_of(run_of(RunKind.AGENT), GraphOutcome(steps, stop=stop), at=AT)

    assert (run_outcome.finish_reason, run_outcome.result) == (None, result)


@pytest.mark.parametrize("stop", [None, BudgetExceededError(ResourceUsage(), Budget(), "spent")])
def test_the_end_of_a_graph_run_tells_of_every_step(stop: Stop | None) -> None:
    """A graph run has no finish reason, which only cases have."""
    steps = {
        "a": StepReport(StepStatus.COMPLETED, {"default": 1, "other": [2]}),
        "b": StepReport(
            StepStatus.COMPLETED, {"default": None}, OurError("No."), recovered_by="skip"
        ),
        "c": StepReport(StepStatus.FAILED, {}, KeyError("alice@example.org")),
        "d": StepReport(StepStatus.SKIPPED),
    }
    run_outcome = outcome_of(GRAPH, GraphOutcome(steps, stop=stop), at=AT)

    assert run_outcome.status is (RunStatus.COMPLETED if stop is None else RunStatus.HALTED)
    assert run_outcome.finish_reason is None
    assert run_outcome.result == {
        "outputs": {"a": {"default": 1, "other": [2]}, "b": {"default": None}},
        "steps": {
            "a": {"status": "completed"},
            "b": {
                "status": "completed",
                "error": "No.",
                "error_class": "OurError",
                "attempts": 1,
                "recovered_by": "skip",
            },
            "c": {
                "status": "failed",
                "error": "KeyError: '[email]'",
                "error_class": "KeyError",
                "attempts": 1,
            },
            "d": {"status": "skipped"},
        },
    }


def test_a_stop_before_there_was_anything_has_no_result() -> None:
    """The result is missing and not empty."""
    assert outcome_of(CASE, outcome(CancelledError(), result=None), at=AT).result is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OurError("No verified answer."), "No verified answer."),
        (KeyError("alice@example.org"), "KeyError: '[email]'"),
        (OurError("key sk-proj-abcdefghijklmnop1234567890"), "key [secret]"),
    ],
)
def test_a_failure_says_what_may_be_said_of_it(error: Exception, said: str) -> None:
    """A step may set the finish reason of its failure."""
    result = {"answer": None, "finish_reason": "big_fail"}
    run_outcome = outcome_of(CASE, outcome(error=error, result=result), at=AT)

    assert (run_outcome.status, run_outcome.finish_reason) == (RunStatus.FAILED, "big_fail")
    assert run_outcome.stop is not None
    assert (run_outcome.stop.kind, run_outcome.stop.reason) == ("error", said)
    assert run_outcome.error_class == type(error).__name__


@pytest.mark.parametrize(
    ("run_outcome", "root"),
    [
        (RunOutcome(status=RunStatus.COMPLETED), ("success", None, None)),
        (
            RunOutcome(
                status=RunStatus.FAILED,
                error_class="OurError",
                stop=Cause(kind=Kind.ERROR, reason="No."),
            ),
            ("fail", "No.", "OurError"),
        ),
        (
            RunOutcome(status=RunStatus.FAILED, stop=Cause(kind=Kind.WORKER_LOST)),
            ("fail", "worker_lost", "Error"),
        ),
        (
            RunOutcome(status=RunStatus.CANCELLED, stop=Cause(kind=Kind.CANCELLED)),
            ("halt", "cancelled", None),
        ),
        (
            RunOutcome(status=RunStatus.HALTED, stop=Cause(kind=Kind.BUDGET, reason="Spent.")),
            ("halt", "Spent.", None),
        ),
    ],
    ids=lambda value: value.status.value if isinstance(value, RunOutcome) else None,
)
def test_the_end_of_a_run_ends_everything_below_it(
    run_outcome: RunOutcome, root: tuple[Any, ...]
) -> None:
    """Open nodes are halted with the reason."""
    graph = ExecutionGraph("r0")
    top = graph.create_root("run")
    graph.mark_running(top)
    step = graph.begin_node(top, "system", "step")
    call = graph.begin_node(step, "tool", "call")

    close(graph, top, run_outcome)

    node = graph.node(top)
    assert (node["status"], node["stop_reason"], node["error_class"]) == root
    assert {graph.node(below)["status"] for below in (step, call)} == {"halt"}
    assert violations(graph.snapshot()) == []
