"""Tools offered by agents: names that every protocol accepts, and the tools of MCP servers."""

from collections.abc import Sequence
from typing import Any

import pytest

from caseworker.core.budget.retry import ONE_ATTEMPT
from caseworker.core.trace.payloads import REDACTED
from caseworker.engine.driver import GraphExecution
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.functions import offered_functions
from caseworker.nodes.agent.node import agent_type
from caseworker.nodes.catalog import NodeCatalog
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import Tool, ToolSpec
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from tests.unit.nodes.agent.world import (
    Gate,
    agent,
    asking,
    events,
    model_reply,
    scripted_agent,
    wants,
)


class Servers:
    """One server whose tools change over time."""

    names: Sequence[str] = ("files",)

    def __init__(self, *offered: str) -> None:
        self.offered = list(offered)
        self.asked = 0

    def serves(self, name: str) -> bool:
        return name.startswith("files.")

    async def tools(self, server: str, tenant: str = "") -> Sequence[ToolSpec]:
        self.asked += 1
        return [
            ToolSpec(name=f"files.{name}", description=name, parameters={"type": "object"})
            for name in self.offered
        ]

    async def find(self, name: str, tenant: str = "") -> Tool:
        return Gate(name)

    async def aclose(self) -> None:
        """Do nothing: no server was started."""


def with_servers(servers: Servers, *lines: Any, **more: Any) -> Any:
    here = scripted_agent(*lines, **more)
    tools = ToolDispatch(
        ToolRegistry(),
        ToolPolicy(),
        payloads=REDACTED,
        approval_timeout_seconds=60.0,
        wait_seconds=60.0,
        expose_errors=False,
        retry=ONE_ATTEMPT,
        servers=servers,
    )
    agents = Agents(tools, timezone="UTC", wrap_up_reserve=1)
    here.catalog = NodeCatalog([agent_type(agents, tools, tools.servers)])
    return here


@pytest.mark.parametrize(
    ("use", "offered"),
    [
        ({"mcp": "files"}, ["files_read", "files_write"]),
        ({"mcp": "files", "allow": ["write"]}, ["files_write"]),
        ("files.read", ["files_read"]),
    ],
)
async def test_the_tools_of_a_server_are_offered_under_safe_names(
    use: Any, offered: list[str]
) -> None:
    """An agent can use all tools, an allowed subset, or one tool."""
    here = with_servers(Servers("read", "write"), "Ok.")

    await here.run(asking(agent(tools=[use])), default="?")

    assert [tool.name for tool in here.small.requests[0].tools] == [*offered, "finish"]


@pytest.mark.req("003/resume")
async def test_an_execution_that_begins_again_offers_what_the_first_one_did() -> None:
    """The tool list comes from the journal, and the server is not called again."""
    servers = Servers("read", "write")
    graph = asking(agent(tools=[{"mcp": "files"}]))
    here = with_servers(servers, model_reply("", wants("nothing")), "Ok.")
    await here.run(graph, default="?")
    here.journal.reopen()
    here.journal._earlier.pop("step:a")
    servers.offered = ["other"]

    again = with_servers(servers, journal=here.journal)
    outcome = await GraphExecution(
        again.catalog.prepare(graph, graph_id="g"), {"default": "?"}, again.context()
    ).run()

    assert servers.asked == 1
    assert outcome.steps["a"].outputs["default"] == "Ok."
    assert again.small.requests == []


async def test_names_that_become_the_same_stay_apart() -> None:
    """The second of two equal tool names gets a number."""
    here = scripted_agent("Ok.", more_tools=[Gate("a.b"), Gate("a_b")])

    await here.run(asking(agent(tools=["a.b", "a_b"])), default="?")

    names = [tool.name for tool in here.small.requests[0].tools]
    assert names == ["a_b", "a_b_2", "finish"]


async def test_a_tool_of_many_uses_is_offered_as_its_functions() -> None:
    """A function's call is a call of the tool, in the trace and in events."""
    call = wants("calendar_date_after", date="2025-01-15", amount=45, unit="days")
    here = scripted_agent(model_reply("", call), "March 1.", more_tools=[Calendar()])

    outcome = await here.run(asking(agent(tools=["calendar"])), default="?")

    names = [tool.name for tool in here.small.requests[0].tools]
    assert {"calendar_date_after", "calendar_today"} <= set(names)
    assert "calendar" not in names
    assert '"iso":"2025-03-01"' in here.small.requests[1].messages[-1].content
    [node] = [node for node in here.trace.snapshot()["nodes"].values() if node["kind"] == "tool"]
    args: Any = node["metadata"]["args"]
    assert (node["name"], args["operation"]) == ("calendar", "add")
    begun, ended = [data for kind, data in events(here) if kind.startswith("tool_call_")]
    assert begun["tool_call"]["name"] == ended["name"] == "calendar"
    assert begun["tool_call"]["function"] == "calendar_date_after"
    assert outcome.steps["a"].outputs["default"] == "March 1."


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"date": "2025-01-15", "amount": 4}, "'unit' is missing. It takes date,"),
        (
            {"date": "2025-01-15", "amount": 4, "unit": "days", "operation": "now"},
            "There is an argument that is not known. It takes date,",
        ),
        ({"date": "2025-01-15", "amount": 4, "unit": "hops"}, "'unit' must be one of"),
    ],
)
async def test_what_is_wrong_with_the_call_of_a_function_says_what_it_takes(
    args: dict[str, Any], problem: str
) -> None:
    """Fixed arguments cannot be given, and the tool validates the values."""
    here = scripted_agent(
        model_reply("", wants("calendar_date_after", **args)), "Ok.", more_tools=[Calendar()]
    )

    await here.run(asking(agent(tools=["calendar"])), default="?")

    assert problem in here.small.requests[1].messages[-1].content


def test_definitions_of_functions_say_names_and_types_alone() -> None:
    """All arguments are required and no extra ones allowed, so strict endpoints enforce them."""
    functions = offered_functions([Calendar.spec, Calculator.spec])

    shown = {one.definition.name: one.definition.parameters for one in functions["calendar"]}
    assert shown["calendar.leap_year"] == {
        "type": "object",
        "additionalProperties": False,
        "required": ["year"],
        "properties": {"year": {"type": "integer"}},
    }
    [calculator] = functions["calculator"]
    assert calculator.definition.parameters["properties"] == {"expression": {"type": "string"}}
