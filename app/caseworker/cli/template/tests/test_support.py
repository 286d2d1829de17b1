"""The tool, and the agent with a model that follows a script."""

import asyncio
from pathlib import Path

from shop import order_status

from caseworker.testing import ScriptedModel, calls, run_agent_test, run_tool, says

AGENT = Path(__file__).parents[1] / "agents" / "support.yaml"


def test_the_tool_knows_which_orders_exist():
    assert asyncio.run(run_tool(order_status, order_id=1042))["status"] == "shipped"
    assert asyncio.run(run_tool(order_status, order_id=1))["error"] == "There is no order 1."


def test_the_agent_looks_up_the_order():
    model = ScriptedModel([calls("order_status", {"order_id": 1042}), says("It has been shipped.")])
    run = run_agent_test(AGENT, "Where is order 1042?", model=model, tools=[order_status])
    result = asyncio.run(run)

    assert result.output == "It has been shipped."
    assert '"shipped"' in model.requests[-1].messages[-1].content
