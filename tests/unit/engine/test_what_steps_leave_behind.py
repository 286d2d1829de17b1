"""Errors of steps keep no objects of their run alive."""

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.retry import ErrorPolicy
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.prepared import BoundNode
from tests.unit.engine.driving import OurError, Scripted, drive, graph, statuses

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
        outcome.let_go()
        del outcome, world

        assert [gone() for gone in node.gone] == [None] * len(node.gone)
    finally:
        gc.enable()
