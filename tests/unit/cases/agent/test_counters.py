"""The counters of a case match the charges of its run."""

from typing import Any

import pytest

from caseworker.core.budget.budget import Dimension
from caseworker.tools.ports import ToolResult, failure
from tests.support.limits import retry_policy
from tests.support.seeded_loop import run
from tests.unit.cases.agent.world import Source, calculate, case_run, plan, result_of

BUSY = failure("The source is busy.", "source_unavailable")


@pytest.mark.req("002/7.3", "002/20.1", "002/21.3")
@pytest.mark.parametrize(
    ("results", "attempts"),
    [([{"value": "42"}], 1), ([BUSY, BUSY, {"value": "42"}], 3), ([BUSY] * 3, 3)],
)
def test_every_attempt_of_a_tool_is_counted(results: list[ToolResult], attempts: int) -> None:
    """Each attempt of a tool counts, in the result and in the budget."""
    here = case_run(
        [plan(("source", {}), calculate("6 * 7"))],
        more_tools=[Source(*results)],
        tool_retry=retry_policy(),
    )
    story = run(lambda: here.run(act={"max_steps": 1}), seed=0)

    assert story.result is not None
    result = result_of(story.result)
    assert result["counters"]["tool_calls"] == attempts + 1
    assert here.scope.usage.of(Dimension.TOOL_CALLS) == attempts + 1


@pytest.mark.req("002/7.3")
async def test_what_other_steps_of_the_run_call_is_none_of_the_cases_calls() -> None:
    """Tool calls of other steps count for the shared limit, not for the case."""
    others: dict[Dimension, Any] = {Dimension.TOOL_CALLS: 3}
    here = case_run([plan(calculate("6 * 7"))], used_by_others=others)

    result = result_of(await here.run())

    assert result["counters"]["tool_calls"] == 1
    assert here.scope.usage.of(Dimension.TOOL_CALLS) == 4
