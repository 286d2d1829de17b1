"""Cases whose tools create files: prompts, verification and results."""

from collections.abc import Mapping
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from tests.unit.cases.agent.world import cannot, case_run, plan, respond, result_of

PLOT: dict[str, Any] = {
    "name": "plot-1.png",
    "media_type": "image/png",
    "size_bytes": 9,
    "sha256": "abcdef0123456789" * 4,
    "url": "/runs/run-1/artifacts/plot-1.png",
}


class PlottingTool:
    """A tool whose results list a file as the dispatch does; it counts its calls."""

    spec = ToolSpec(
        name="plot",
        description="Plots.",
        deterministic=True,
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
    )

    def __init__(self) -> None:
        self.uses = 0

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.uses += 1
        return {"text": "a plot", "artifacts": [PLOT]}


PLOTTED: tuple[str, dict[str, Any]] = ("plot", {})


async def test_files_are_not_made_again_to_verify_them() -> None:
    """A tool that created files is not run again for verification."""
    tool = PlottingTool()
    here = case_run([plan(PLOTTED)], more_tools=[tool], recomputed=[tool])

    result = result_of(await here.run("Plot it.", expected_tools=["plot"]))

    assert result["verified"]
    assert tool.uses == 1
    assert result["artifacts"] == [PLOT]


async def test_a_planner_is_told_the_names_of_the_files_and_no_more() -> None:
    """Prompts contain the file names, but no digests or URLs, which would only cost tokens."""
    here = case_run(
        [plan(PLOTTED), plan(respond("a plot"))],
        more_tools=[PlottingTool()],
    )

    await here.run("Plot it.", expected_tools=["plot", "respond"])

    assert len(here.small.requests) == 2
    assert PLOT["name"] in here.small.prompts
    assert PLOT["sha256"] not in here.small.prompts
    assert PLOT["url"] not in here.small.prompts


async def test_the_files_of_a_case_that_is_cut_off_stay_in_its_result() -> None:
    """A halted case keeps its files in the result, like its evidence."""
    here = case_run(
        [plan(PLOTTED), cannot()],
        more_tools=[PlottingTool()],
        budget=Budget(max_llm_calls_big=0),
    )

    result = result_of(await here.run("Plot it.", expected_tools=["calculator", "plot"]))

    assert result["finish_reason"] == "budget"
    assert result["artifacts"] == [PLOT]
