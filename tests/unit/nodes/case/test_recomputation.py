"""Asking deterministic tools again."""

from datetime import UTC, datetime

from app.nodes.case.verifier import DeterministicTools
from app.tools.calculator import Calculator
from app.tools.ports import ToolContext
from tests.unit.nodes.case.world import BrokenTool, calculate, plan, result_of, world

CONTEXT = ToolContext(run_id="r", timezone="UTC", now=datetime(2025, 9, 8, tzinfo=UTC))


async def test_a_deterministic_tool_is_asked_again_and_no_other() -> None:
    """None says that there is nothing to compare with."""
    tools = DeterministicTools([Calculator()])

    again = await tools.again("calculator", {"expression": "6 * 7"}, CONTEXT)

    assert again is not None
    assert again["value"] == "42"
    assert await tools.again("respond", {"answer": "42"}, CONTEXT) is None


async def test_a_tool_that_breaks_when_asked_again_is_an_error_dict() -> None:
    """Which no value equals."""
    again = await DeterministicTools([BrokenTool()]).again("broken", {}, CONTEXT)

    assert again == {
        "error": "The tool broke when it was asked again.",
        "code": "RuntimeError",
    }


async def test_working_an_answer_out_again_is_no_tool_call() -> None:
    """It is neither charged nor traced."""
    here = world([plan(calculate("6 * 7"))])

    result = result_of(await here.run())

    assert result["verified"] is True
    assert here.scope.usage.to_dict()["tool_calls"] == 1
    assert here.trace.snapshot()["aggregates"]["total_tool_calls"] == 1
