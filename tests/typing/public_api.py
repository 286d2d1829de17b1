"""How a program uses the public Python API: type checkers read this, a test runs it."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, assert_type

from caseworker import (
    AgentResult,
    Budget,
    BudgetExceededError,
    CancellationToken,
    ErrorPolicy,
    Event,
    ExecutionContext,
    ExecutionGraph,
    ExecutionTrace,
    FunctionNode,
    Graph,
    GraphRun,
    Stop,
    ToolContext,
    ToolResult,
    run_agent,
    tool,
)
from caseworker.models.ports import ModelProvider
from caseworker.testing import ScriptedModel, calls, run_agent_test, run_tool, says


class Doubled:
    """A node of a program's own."""

    id = "doubled"

    async def execute(self, context: ExecutionContext) -> int:
        """Return twice what the step before has returned."""
        value: int = context.upstream["one"]
        return 2 * value


def one(context: ExecutionContext) -> int:
    """Return what the graph was given."""
    context.check_budget()
    context.check_cancelled()
    return len(str(context.input))


def graph() -> Graph:
    """Build a graph of two steps."""
    built = Graph("typed", max_parallel=2)
    built.add_step(FunctionNode("one", one), "one", input="x")
    policy = ErrorPolicy(on_error="skip", fallback_value=0, timeout_ms=1000)
    built.add_step(Doubled(), "two", depends_on=["one"], error_policy=policy)
    return built


async def main() -> dict[str, Any]:
    """Execute it in every way there is."""
    budget = Budget(max_seconds=10, max_cost_usd=Decimal("0.1"), max_tokens=1000)
    trace = ExecutionTrace("typed", datetime.now(UTC))
    context = ExecutionContext(budget=budget, cancellation=CancellationToken(), trace=trace)
    built = graph()
    assert_type(built.validate(), list[str])
    assert_type(built.execution_order(), list[str])
    try:
        results = await built.execute(context)
    except BudgetExceededError as error:
        assert_type(error.usage.tokens_used, int)
        raise
    except Stop as stop:
        assert_type(stop.cause.reason, str | None)
        raise
    assert_type(results, dict[str, Any])
    run = await built.run(context)
    assert_type(run, GraphRun)
    assert_type(run.calls, ExecutionGraph)
    assert_type(run.explain(), str)
    async for item in built.stream():
        assert_type(item, Event | GraphRun)
    assert_type(context.usage.cost_dollars, float)
    return results


async def ask(provider: ModelProvider) -> str:
    """Run an agent."""
    definition: dict[str, Any] = {"name": "helper", "prompt": {}}
    result = await run_agent(definition, input="Hi", provider=provider, model="m")
    assert_type(result, AgentResult)
    assert_type(result.error, str | None)
    return result.raw_content


@tool(deterministic=True)
def cost(kg: float, context: ToolContext | None = None) -> float:
    """Return a price."""
    return 2 * kg


async def tested() -> list[dict[str, Any]]:
    """Test a tool and an agent that calls it."""
    assert_type(await run_tool(cost, kg=1.5), ToolResult)
    model = ScriptedModel([calls("cost", {"kg": 1}), says("2")])
    result = await run_agent_test({"name": "a", "prompt": {}}, "?", model=model, tools=[cost])
    assert_type(result.usage.tokens_used, int)
    return result.tool_calls


if __name__ == "__main__":
    print(asyncio.run(main()))  # noqa: T201
