"""Functions that other packages add to the service."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from app.bootstrap.agents import build_tools
from app.bootstrap.errors import StartupError
from app.bootstrap.plugins import FUNCTIONS, functions_of, named_tools
from app.bootstrap.toolbox import Toolbox
from app.engine.context import ExecutionContext
from app.nodes.function import FunctionNode
from app.settings.cases import ToolSettings
from app.settings.schema import Settings
from app.tools.ports import ToolContext, ToolResult, ToolSpec

HERE = "tests.unit.bootstrap.test_plugins"

ready_made = FunctionNode("its own name", lambda context: None, persistent=True)
no_function = 7


def plain(context: ExecutionContext) -> Any:
    return context.input


async def coroutine(context: ExecutionContext) -> Any:
    return context.input


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=FUNCTIONS)


def test_functions_are_found_by_name_and_plain_ones_get_a_thread() -> None:
    """Nobody knows whether they block; a node is taken as it is."""
    found = functions_of(
        [
            point("z", f"{HERE}:ready_made"),
            point("plain", f"{HERE}:plain"),
            point("coroutine", f"{HERE}:coroutine"),
        ]
    )

    assert [(node.id, node.blocking) for node in found] == [
        ("coroutine", False),
        ("plain", True),
        ("its own name", False),
    ]
    assert found[2].id == ready_made.id


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (f"{HERE}:absent", "'x' .* cannot be loaded: AttributeError"),
        ("no.such.module:f", "'x' .* cannot be loaded: ModuleNotFoundError"),
        (f"{HERE}:no_function", "'x' .* cannot be called"),
    ],
)
def test_one_that_is_broken_stops_the_start(value: str, said: str) -> None:
    """Rather than failing every graph that names it."""
    with pytest.raises(StartupError, match=said):
        functions_of([point("x", value)])


class Weather:
    """A tool that somebody else wrote."""

    spec = ToolSpec(name="weather", description="Says rain.", parameters={"type": "object"})

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return {"value": "rain"}


ready_tool = Weather()


@pytest.mark.parametrize("name", ["Weather", "ready_tool", "make_weather"])
def test_a_tool_is_added_by_its_dotted_name(name: str) -> None:
    """A tool, a class of one, or a function that makes one."""
    [tool] = named_tools([f"{HERE}:{name}"])

    assert tool.spec.name == "weather"
    tools = Toolbox(ToolSettings(plugins=(f"{HERE}:{name}",)), others=()).tools
    assert [each.spec.name for each in tools][-1] == "weather"


def make_weather() -> Weather:
    return Weather()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (f"{HERE}:absent", "cannot be loaded: AttributeError"),
        (f"{HERE}:no_function", "is none"),
        (f"{HERE}:plain", "cannot be made: TypeError"),
    ],
)
def test_a_tool_that_is_none_stops_the_start(value: str, said: str) -> None:
    """With the name that was configured."""
    with pytest.raises(StartupError, match=f"tool .*{said}"):
        named_tools([value])


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (ToolSettings(deny=("Plotter",)), "tools.deny: there is no tool 'Plotter'; did you mean"),
        (ToolSettings(allow=("hammer",)), "tools.allow: there is no tool 'hammer'. The tools are"),
    ],
)
def test_a_tool_that_does_not_exist_is_neither_allowed_nor_denied(
    settings: ToolSettings, line: str
) -> None:
    """Who denies a tool by a wrong name would be left with it."""
    with pytest.raises(StartupError) as refused:
        build_tools(Settings(tools=settings), Toolbox(settings, others=()).tools)

    assert str(refused.value).startswith(line)
    assert "plotter" in str(refused.value)
