"""Nodes that return synchronously, and attempts that end before their task starts."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.prepared import BoundNode
from caseworker.engine.report import StepTimeoutError
from tests.unit.engine.driving import CHAIN, OurError, Scripted, drive, graph, statuses


class AtOnce:
    """A synchronous node that raises the given errors, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.attempts = 0

    def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Any:
        self.attempts += 1
        if self._errors:
            raise self._errors.pop(0)
        return ExecutionResult({"default": self.attempts})


@pytest.mark.req("000/E2")
def test_a_node_that_fails_before_there_is_anything_to_wait_for_is_retried_as_well() -> None:
    """A synchronous failure is retried, including an asyncio.CancelledError without a stop."""
    node = AtOnce(OurError("no"), asyncio.CancelledError())
    policy = ErrorPolicy(on_error="retry", retry_count=2)

    outcome, world = drive(
        CHAIN, Scripted(), limits={"A": {"work": BoundNode(node), "policy": policy}}
    )

    assert outcome.error is None
    assert outcome.steps["A"].outputs == {"default": 3}
    assert world.gateway.scope.usage.steps_executed == 3


@pytest.mark.req("000/E2")
def test_a_stop_that_a_node_meets_at_once_goes_past_its_policy() -> None:
    """A stop raised synchronously ends the step without a retry."""
    node = AtOnce(stops.CancelledError("enough"))
    policy = ErrorPolicy(on_error="retry", retry_count=2)

    outcome, _ = drive(CHAIN, Scripted(), limits={"A": {"work": BoundNode(node), "policy": policy}})

    assert isinstance(outcome.stop, stops.CancelledError)
    assert node.attempts == 1
    assert statuses(outcome) == {"A": "cancelled", "B": "not_started", "C": "not_started"}


@pytest.mark.req("000/E2")
@pytest.mark.parametrize(("takes_ms", "allowed_ms"), [(0, 600_000), (30, 20)])
def test_a_node_that_has_its_result_at_once_is_judged_by_its_time_without_a_task(
    takes_ms: int, allowed_ms: int
) -> None:
    """A synchronous node runs in the caller's task; its timeout is checked after it returns."""
    tasks = []

    class Blocking(AtOnce):
        def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Any:
            tasks.append(asyncio.current_task())
            time.sleep(takes_ms / 1000)
            return super().execute(data, inputs, context)

    timed = {"work": BoundNode(Blocking()), "policy": ErrorPolicy(timeout_ms=allowed_ms)}
    plain = {"work": BoundNode(Blocking())}
    outcome, _ = drive(CHAIN, limits={"A": plain, "B": timed})

    assert tasks[0] is tasks[1]
    assert statuses(outcome)["B"] == ("failed" if takes_ms else "completed")
    assert isinstance(outcome.error, StepTimeoutError) == bool(takes_ms)


@pytest.mark.req("000/E2", "000/C3")
@pytest.mark.parametrize("seed", range(20))
def test_an_attempt_that_is_cancelled_before_its_task_began_leaves_nothing_behind(
    seed: int,
) -> None:
    """A cancelled attempt leaves no coroutine that was never awaited, for any loop order."""

    class Cancelling(Scripted):
        def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Any:
            context.token.cancel()
            return super().execute(data, inputs, context)

    outcome, _ = drive(
        graph("A"),
        Cancelling(),
        limits={"A": {"policy": ErrorPolicy(timeout_ms=20_000)}},
        seed=seed,
    )

    assert isinstance(outcome.stop, stops.CancelledError)
    assert statuses(outcome) == {"A": "cancelled"}
