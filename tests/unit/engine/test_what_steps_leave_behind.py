"""Steps that have ended keep no objects of their run alive, and hold none of its budget."""

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.prepared import BoundNode
from tests.unit.engine.driving import OurError, Scripted, drive, flow, graph, statuses

Inputs = Mapping[str, Any]

RETRY = ErrorPolicy(on_error="retry", retry_count=1)
SKIP = ErrorPolicy(on_error="skip", retry_count=1)
FALLBACK = ErrorPolicy(on_error="fallback", fallback_node="other")


class Fails:
    """A node that fails ``times`` times, synchronously or after a second."""

    def __init__(self, times: int, *, at_once: bool) -> None:
        self.times, self.at_once = times, at_once
        self.gone: list[weakref.ref[Any]] = []

    def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> Any:
        self.gone.append(weakref.ref(context.view))
        if self.at_once:
            return self._end()
        return self._end_later()

    async def _end_later(self) -> ExecutionResult:
        await asyncio.sleep(1)
        return self._end()

    def _end(self) -> ExecutionResult:
        if len(self.gone) <= self.times:
            raise OurError("No.")
        return ExecutionResult({"default": 42})


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("policy", "times", "status"),
    [
        pytest.param(RETRY, 1, "completed", id="tried again"),
        pytest.param(RETRY, 2, "failed", id="tried again in vain"),
        pytest.param(SKIP, 2, "completed", id="skipped"),
        pytest.param(FALLBACK, 1, "completed", id="replaced"),
        pytest.param(ErrorPolicy(), 1, "failed", id="failed"),
    ],
)
def test_what_failed_is_freed_with_the_run(
    policy: ErrorPolicy, times: int, status: str, at_once: bool
) -> None:
    """Failed attempts leave no reference cycle that keeps the run alive."""
    node = Fails(times, at_once=at_once)
    limits = {"policy": policy, "fallback": BoundNode(Scripted())}

    gc.disable()
    try:
        outcome, world = drive(graph("A"), node, limits={"A": limits})  # type: ignore[arg-type]
        assert statuses(outcome) == {"A": status}
        outcome.drop_tracebacks()
        del outcome, world

        assert [gone() for gone in node.gone] == [None] * len(node.gone)
    finally:
        gc.enable()


def test_the_end_of_a_step_releases_only_its_own_reservations() -> None:
    """What another step still holds cannot be spent, or the budget would be exceeded."""
    seen: list[tuple[str, Any, int]] = []

    async def careless(context: FlowContext, inputs: Inputs) -> Inputs:
        context.scope.reserve({Dimension.TOKENS: 30})
        return {"default": 1}

    async def working(context: FlowContext, inputs: Inputs) -> Inputs:
        held = context.scope.reserve({Dimension.TOKENS: 60})
        await asyncio.sleep(5)
        seen.append(("working", context.scope.reserved(Dimension.TOKENS), 60))
        held.settle({Dimension.TOKENS: 60})
        return {"default": 1}

    async def later(context: FlowContext, inputs: Inputs) -> Inputs:
        seen.append(("later", context.scope.remaining(Dimension.TOKENS), 40))
        return {"default": 1}

    node = Scripted(A=careless, B=working, C=later)
    steps = graph("ABC", flow("A", "C"), max_parallel=3)
    outcome, world = drive(steps, node, budget=Budget(max_tokens=100))

    assert statuses(outcome) == dict.fromkeys("ABC", "completed")
    assert {name: found for name, found, _ in seen} == {name: want for name, _, want in seen}
    assert world.gateway.scope.reserved(Dimension.TOKENS) == 0
