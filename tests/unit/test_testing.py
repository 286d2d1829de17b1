"""The module `caseworker.testing`, and the pages that show it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from caseworker import Budget, ModelError, ToolContext, tool
from caseworker.main.demo import RECORDING
from caseworker.testing import ScriptedModel, calls, recorded, run_agent_test, run_tool, says
from caseworker_cases.tools.calculator import Calculator
from tests.support.pages import ROOT, blocks_of

CLERK = {"name": "clerk", "prompt": {"system": "Calculate."}, "tools": ["calculator"]}


def page(name: str) -> dict[str, Any]:
    """Execute the Python blocks of a page and return their names."""
    code = "\n".join(block.text for block in blocks_of(ROOT / "docs" / name, "python"))
    names: dict[str, Any] = {"__name__": name.replace("-", "_").removesuffix(".md")}
    exec(compile(code, name, "exec"), names)  # noqa: S102
    return names


def test_the_tests_of_the_page_pass() -> None:
    """Readers copy them into their projects."""
    tests = [each for name, each in page("test-your-agent.md").items() if name.startswith("test_")]

    assert len(tests) == 5
    for test in tests:
        test()


async def test_the_tools_of_the_page_run() -> None:
    """Arguments are described, and a refusal reaches the model."""
    names = page("write-a-tool.md")
    cost, day = names["shipping_cost"], names["pickup_day"]
    parcel = cost.spec.parameters["properties"]["parcel"]

    assert parcel["description"] == "The parcel with its packaging."
    assert (await run_tool(cost, parcel={"weight_kg": 31}))["error"].endswith("split the order.")
    assert await run_tool(cost, parcel={"weight_kg": 3}) == {"value": 5, "unit": "EUR"}
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert await day.run({}, ToolContext(run_id="r", timezone="UTC", now=now)) == {
        "value": "2026-01-02"
    }


async def test_errors_of_tools_are_hidden_and_timed_as_in_the_service() -> None:
    """Models see the class of an exception, and no text."""

    @tool(requires_approval=True)
    def approved() -> None:
        """Returns nothing."""

    @tool
    def broken() -> None:
        """Raises an error."""
        raise ValueError("the password")

    assert await run_tool(broken) == {
        "error": "The tool broke (ValueError).",
        "code": "ValueError",
    }
    assert (await run_tool(approved))["code"] == "approval_unavailable"


async def test_an_agent_of_a_file_is_limited_by_its_budget(tmp_path: Path) -> None:
    """A script that ends early fails the agent, and its errors are those of providers."""
    file = tmp_path / "clerk.yaml"
    file.write_text(yaml.safe_dump(CLERK))
    tools = [Calculator()]
    script = [calls("calculator", {"expression": "6 * 7"})]

    async def ran(*more: Any, **options: Any) -> Any:
        model = ScriptedModel([*script, *more])
        return await run_agent_test(file, "6 * 7?", model=model, tools=tools, **options)

    short = await ran()
    down = await ran(ModelError("down", retryable=False))
    costly = await ran(says("42"), budget=Budget(max_cost_dollars=0.0001))

    assert short.error == "The script has no reply to request 2."
    assert short.tool_calls[0]["result"]["value"] == "42"
    assert down.error == "down"
    assert (costly.terminate_reason, costly.tool_calls) == ("budget", [])


async def test_a_recording_is_replayed() -> None:
    """It was made by `caseworker serve --record`."""
    system = (
        "Call the calculator for every number you need. Then answer the customer in one short"
        " sentence."
    )
    work = run_agent_test(
        {**CLERK, "prompt": {"system": system}},
        "What do 12 chairs at 48.50 euros cost with 19% tax?",
        model=recorded(RECORDING),
        tools=[Calculator()],
        max_output_tokens=64,
        temperature=0.0,
    )
    result = await work

    assert "692.58 euros" in str(result.output), result.error
