"""The error policy of a step: attempts, retry delays and the final outcome."""

import asyncio
from typing import Any

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import CallFailedError
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.prepared import BoundNode
from caseworker.engine.report import StepTimeoutError
from tests.support.seeded_loop import deaf
from tests.unit.engine.driving import (
    CHAIN,
    Failing,
    GraphRun,
    Inputs,
    OurError,
    Scripted,
    drive,
    graph,
    statuses,
)

ONE = graph("A")
INSTEAD = object()


class Fallback:
    """A fallback node that records its inputs, then fails or succeeds."""

    def __init__(self, error: Exception | None = None, seconds: float = 1) -> None:
        self.error = error
        self.seconds = seconds
        self.seen: list[tuple[Any, Inputs, str]] = []

    async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> ExecutionResult:
        self.seen.append((data, inputs, context.path.text))
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return ExecutionResult({"default": "from the fallback"})


def policed(**values: Any) -> dict[str, dict[str, Any]]:
    fallback = values.get("fallback_node")
    step: dict[str, Any] = {"policy": ErrorPolicy(**values)}
    if fallback is not None:
        step["fallback"] = BoundNode(fallback, "its data")
    return {"A": step}


def attempts(world: GraphRun) -> list[tuple[str, str | None, Any]]:
    """Return status, stop reason and number of each attempt in the trace."""
    nodes = world.gateway.graph.snapshot()["nodes"].values()
    return [
        (node["status"], node["stop_reason"], node["metadata"]["attempt"])
        for node in nodes
        if node["name"] == "attempt"
    ]


@pytest.mark.req("000/E2")
def test_a_step_that_fails_once_is_executed_again() -> None:
    """A retried step counts once; the trace shows both attempts with separate paths."""
    node = Failing(1)
    outcome, world = drive(ONE, node, limits=policed(on_error="retry", retry_count=1))

    assert outcome.steps["A"].outputs == {"default": "at last"}
    assert outcome.error is None
    assert node.began == [0, 2]
    assert node.paths == ["A", "A~2"]
    assert world.gateway.spent() == {"steps": 1}
    assert attempts(world) == [("fail", "Not yet.", 1), ("success", None, 2)]
    assert world.nodes()["A"] == ("success", None)
    assert world.lifecycle("A") == ["step.started", "step.completed"]


@pytest.mark.req("000/E2")
@pytest.mark.parametrize("on_error", ["fail", "retry"])
def test_a_step_whose_attempts_are_used_up_fails_with_its_last_error(on_error: str) -> None:
    """The step fails with its last error, after retry delays of 1 s and 2 s."""
    node = Failing(3)
    outcome, world = drive(CHAIN, node, limits=policed(on_error=on_error, retry_count=2))

    assert outcome.error is node.error
    assert node.began == [0, 2, 5]
    assert statuses(outcome) == {"A": "failed", "B": "not_started", "C": "not_started"}
    assert [status for status, _, _ in attempts(world)] == ["fail"] * 3


@pytest.mark.req("000/E2")
def test_a_skipped_failure_leaves_its_value_and_the_graph_goes_on() -> None:
    """The fallback value reaches the next step; report and trace still show the failure."""
    node = Failing(9)
    limits = policed(on_error="skip", retry_count=1, fallback_value={"none": True})
    outcome, world = drive(CHAIN, node, limits=limits)

    assert set(statuses(outcome).values()) == {"completed"}
    assert dict(node.seen)["B"] == {"default": {"none": True}}
    report = outcome.steps["A"]
    assert (report.recovered_by, report.error) == ("skip", node.error)
    assert outcome.error is None
    assert [status for status, _, _ in attempts(world)] == ["fail", "fail"]
    assert [event.data for event in world.told if event.step_id == "A"][-1] == {
        "recovered_by": "skip",
        "error": "Not yet.",
    }


def test_the_value_of_a_skipped_step_is_each_runs_own() -> None:
    """Each run gets its own copy of the fallback value, so a node cannot change the graph's."""
    limits = policed(on_error="skip", fallback_value={"items": [[]]})
    seen = []
    for _ in range(2):
        node = Failing(9)
        drive(CHAIN, node, limits=limits)
        value = dict(node.seen)["B"]["default"]
        seen.append(repr(value))
        value["items"][0].append("of this run")

    assert seen == ["{'items': [[]]}"] * 2


@pytest.mark.req("000/E2")
def test_a_skip_without_attempts_shows_its_failure_too() -> None:
    """The trace shows the failed attempt below the successful step."""
    _, world = drive(ONE, Failing(9), limits=policed(on_error="skip"))

    assert attempts(world) == [("fail", "Not yet.", 1)]
    assert world.nodes()["A"] == ("success", None)


@pytest.mark.req("000/E2")
def test_a_fallback_works_in_the_place_of_the_node() -> None:
    """A fallback node gets its own data, the same inputs and its own path."""
    fallback = Fallback()
    outcome, world = drive(
        ONE,
        Failing(9),
        inputs={"question": "?"},
        limits=policed(on_error="fallback", fallback_node=fallback),
    )

    assert outcome.steps["A"].outputs == {"default": "from the fallback"}
    assert outcome.steps["A"].recovered_by == "fallback"
    assert fallback.seen == [("its data", {"question": "?"}, "A~fallback")]
    assert world.gateway.graph.snapshot()["aggregates"]["total_retries"] == 0
    assert [status for status, _, _ in attempts(world)] == ["fail", "success"]
    assert world.gateway.spent() == {"steps": 1}


@pytest.mark.req("000/E2")
def test_a_fallback_that_fails_fails_the_step_with_its_own_error() -> None:
    """The step fails with the fallback's error, caused by the node's error."""
    node, fallback = Failing(9), Fallback(OurError("Nor do I."))
    outcome, _ = drive(ONE, node, limits=policed(on_error="fallback", fallback_node=fallback))

    assert outcome.error is fallback.error
    assert isinstance(outcome.error, OurError)
    assert outcome.error.__cause__ is node.error
    assert outcome.steps["A"].status.value == "failed"


@pytest.mark.req("000/E2")
def test_a_timeout_is_of_one_attempt_and_handled_like_any_failure() -> None:
    """Each attempt times out after 500 ms; the fallback, under the same timeout, then succeeds."""
    fallback = Fallback(seconds=0.4)
    outcome, world = drive(
        ONE,
        Scripted(),
        limits=policed(
            on_error="fallback",
            retry_count=1,
            retry_delay_ms=100,
            timeout_ms=500,
            fallback_node=fallback,
        ),
    )

    assert outcome.steps["A"].outputs == {"default": "from the fallback"}
    assert world.ended_at == pytest.approx(0.5 + 0.1 + 0.5 + 0.4)
    assert attempts(world)[0][:2] == ("fail", "No result within 500 ms.")


@pytest.mark.req("000/E2")
def test_a_fallback_is_held_to_the_timeout_too() -> None:
    """A fallback that exceeds the timeout fails its step."""
    fallback = Fallback(seconds=60)
    limits = policed(on_error="fallback", timeout_ms=500, fallback_node=fallback)
    outcome, world = drive(ONE, Failing(9), limits=limits)

    assert isinstance(outcome.error, StepTimeoutError)
    assert world.ended_at == pytest.approx(1.0)


@pytest.mark.req("000/E2")
def test_a_timeout_of_the_node_itself_is_not_ours() -> None:
    """A node's own TimeoutError keeps its type; the policy's timeout raises StepTimeoutError."""

    async def own(context: FlowContext, inputs: Inputs) -> Inputs:
        raise TimeoutError("of a library")

    theirs, _ = drive(ONE, Scripted(A=own), limits=policed(timeout_ms=5000))
    ours, _ = drive(ONE, Scripted(), limits=policed(timeout_ms=500))

    assert type(theirs.error) is TimeoutError
    assert type(ours.error) is StepTimeoutError


@pytest.mark.req("000/E2")
@pytest.mark.parametrize("returns", [True, False])
def test_a_node_that_ignores_its_timeout_is_abandoned(returns: bool) -> None:
    """After the grace period the node is abandoned; its late result is dropped and recorded."""

    async def stubborn(context: FlowContext, inputs: Inputs) -> Inputs:
        await deaf(30)
        if returns:
            return {"default": "too late"}
        raise OurError("Too late.")

    outcome, world = drive(
        ONE,
        Scripted(A=stubborn),
        limits=policed(on_error="skip", fallback_value="instead", timeout_ms=2000),
        after_seconds=60,
    )

    assert outcome.steps["A"].outputs == {"default": "instead"}
    assert world.ended_at == pytest.approx(2 + 1)
    assert world.lifecycle("A").count("late_result") == returns


@pytest.mark.req("000/E2")
@pytest.mark.parametrize("on_error", ["retry", "skip", "fallback"])
def test_no_policy_touches_a_stop(on_error: str) -> None:
    """A limit reached inside a step ends the run under every error policy."""

    async def spends(context: FlowContext, inputs: Inputs) -> Inputs:
        context.scope.charge({Dimension.TOKENS: 6})
        context.scope.charge({Dimension.TOKENS: 6})
        raise AssertionError

    fallback = Fallback()
    outcome, world = drive(
        CHAIN,
        Scripted(A=spends),
        budget=Budget(max_tokens=10),
        limits=policed(
            on_error=on_error,
            retry_count=2,
            fallback_node=fallback if on_error == "fallback" else None,
        ),
    )

    assert isinstance(outcome.stop, BudgetExceededError)
    assert statuses(outcome) == {"A": "halted", "B": "not_started", "C": "not_started"}
    assert len(world.node.seen) == 1
    assert fallback.seen == []


@pytest.mark.req("000/E2", "000/C3")
def test_a_stop_ends_the_wait_between_two_attempts() -> None:
    """A stop ends the retry delay at once."""

    def before(world: GraphRun) -> None:
        asyncio.get_running_loop().call_later(5, world.gateway.token.cancel)

    outcome, world = drive(
        ONE, Failing(9), limits=policed(retry_count=3, retry_delay_ms=60_000), before=before
    )

    assert isinstance(outcome.stop, stops.CancelledError)
    assert world.ended_at == pytest.approx(5)


def test_a_step_does_not_wait_past_the_seconds_of_its_run() -> None:
    """A step fails with its error at once if the retry delay would exceed the run's time limit."""
    node = Failing(9)
    outcome, world = drive(
        ONE,
        node,
        budget=Budget(max_time_seconds=20),
        limits=policed(retry_count=3, retry_delay_ms=60_000),
    )

    assert outcome.error is node.error
    assert world.ended_at == pytest.approx(1)


def test_a_step_comes_back_when_the_other_side_said_so() -> None:
    """A step whose call failed with Retry-After waits that long before its next attempt."""
    asked = CallFailedError("Busy.", error_class="X", attempts=3, retry_after_seconds=40)
    node = Failing(1, asked)
    drive(ONE, node, limits=policed(retry_count=1, retry_delay_ms=100))

    assert node.began == [0, pytest.approx(41)]


@pytest.mark.req("000/P3")
def test_a_persistent_node_is_never_executed_twice_at_once() -> None:
    """Parallel steps that share a persistent node execute it one at a time."""
    lock = NodeLock("terminal")
    most = working = 0

    async def works(context: FlowContext, inputs: Inputs) -> Inputs:
        nonlocal most, working
        working += 1
        most = max(most, working)
        await asyncio.sleep(1)
        working -= 1
        return {"default": None}

    node = Scripted(A=works, B=works, C=works)
    limits = {step_id: {"work": BoundNode(node, None, lock)} for step_id in "ABC"}
    outcome, world = drive(graph("ABC", max_parallel=3), node, limits=limits)

    assert set(statuses(outcome).values()) == {"completed"}
    assert most == 1
    assert world.ended_at == pytest.approx(6)
    assert not lock.locked
