"""Files that tools create, up to the result of their step."""

from typing import Any

import pytest

from caseworker.features.artifacts.storage import RunArtifacts
from caseworker.tools.artifacts import ArtifactKeeper
from caseworker.tools.ports import ToolContext
from tests.support.artifacts import LIMITS, Files, files_of_a_run
from tests.support.drawing_tool import DrawingTool
from tests.unit.cases.agent.world import Journal, plan, respond
from tests.unit.nodes.world import NodeRun, graph, step

SHOWN = {"name", "media_type", "size_bytes", "sha256", "url"}


def drawing(*texts: str, **args: Any) -> dict[str, Any]:
    return graph(step("t", "tool", {"tool": "draw", "args": {"texts": [*texts], **args}}))


def node_run(files: Files, tool: Any, journal: Journal | None = None) -> NodeRun:
    """Return a process whose runs can store files."""
    here = NodeRun(more_tools=[tool], journal=journal or Journal())
    here.services[ArtifactKeeper] = RunArtifacts(files.store.save, LIMITS, files.run, here.token)
    return here


@pytest.mark.req("002/9.4", "002/5.4")
async def test_a_result_lists_the_files_of_its_call() -> None:
    """The engine adds the list; a result without files has none."""
    files = await files_of_a_run()
    here = node_run(files, DrawingTool())

    result = await here.value(drawing("a", "b"), "t")
    without = await here.value(drawing(), "t")

    first, second = result["artifacts"]
    assert [first["name"], second["name"]] == files.store.names
    assert first["url"] == f"/runs/run-1/artifacts/{first['name']}"
    assert set(first) == SHOWN
    assert (first["media_type"], first["size_bytes"]) == ("image/png", 1)
    assert result["text"] == "2 drawings"
    assert "artifacts" not in without


async def test_a_run_that_keeps_no_files_gives_its_tools_no_place_for_them() -> None:
    """Without storage the tool gets no place for files and reports that itself."""
    tool = DrawingTool()

    result = await NodeRun(more_tools=[tool]).value(drawing("a"), "t")

    assert [context.artifacts for context in tool.contexts] == [None]
    assert result == {"text": "1 drawings"}


async def test_a_call_that_is_replayed_makes_no_file_again() -> None:
    """The replayed result refers to the file of the first execution."""
    files, journal, tool = await files_of_a_run(), Journal(), DrawingTool()
    first = await node_run(files, tool, journal).value(drawing("a"), "t")
    journal.reopen()

    again = await node_run(files, tool, journal).value(drawing("a"), "t")

    assert again == first
    assert len(tool.contexts) == 1
    assert [each["name"] for each in first["artifacts"]] == files.store.names


@pytest.mark.req("002/23.3", "002/5.5")
async def test_a_file_that_is_too_large_is_an_error_of_the_tool() -> None:
    """The tool need not handle the error; no file is stored, and the step can continue."""
    files = await files_of_a_run()

    error = await node_run(files, DrawingTool()).failure(drawing("a" * (LIMITS.max_bytes + 1)))

    assert "Tool draw failed (too_large)" in str(error)
    assert "1,000,000 bytes" in str(error)
    assert files.store.names == []


async def test_an_error_refers_to_no_file() -> None:
    """Files stored before the failure are not listed in the error."""
    files = await files_of_a_run()

    error = await node_run(files, DrawingTool()).failure(drawing("a", fail=True))

    assert "broken_pen" in str(error)
    assert len(files.store.names) == 1


async def test_what_a_tool_says_of_its_files_is_replaced_and_other_words_of_it_stay() -> None:
    """`artifacts` stays the tool's own value if no file was stored."""
    files = await files_of_a_run()

    class Boasting(DrawingTool):
        async def run(self, args: Any, context: ToolContext) -> dict[str, Any]:
            await super().run(args, context)
            return {"artifacts": ["a bronze coin"]}

    here = node_run(files, Boasting())

    assert await here.value(drawing(), "t") == {"artifacts": ["a bronze coin"]}
    (listed,) = (await here.value(drawing("a"), "t"))["artifacts"]
    assert set(listed) == SHOWN


@pytest.mark.req("002/9.2", "002/9.4", "002/5.4")
async def test_a_case_lists_the_files_that_its_tools_have_made() -> None:
    """The case lists all details; its evidence refers to the files by name."""
    files = await files_of_a_run()
    here = node_run(files, DrawingTool())
    here.small.replies.append(plan(("draw", {"texts": ["a", "b"]}), respond("2 drawings")))

    case = {"input": "Draw a and b.", "expected_tools": ["draw"]}
    outcome = await here.run(graph(step("c", "case", case)))

    result = outcome.steps["c"].outputs["result"]
    drawn, said = result["evidence"]
    assert [set(each) for each in result["artifacts"]] == [SHOWN, SHOWN]
    assert [each["name"] for each in result["artifacts"]] == files.store.names
    assert drawn["result"] == {"text": "2 drawings", "artifacts": files.store.names}
    assert "artifacts" not in said["result"]
    assert result["verified"]
