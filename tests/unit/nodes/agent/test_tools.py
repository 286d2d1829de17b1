"""What agents are offered: names that every protocol takes, and what servers have."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.engine.driver import GraphExecution
from app.nodes.agent.execution import Agents
from app.nodes.agent.node import agent_type
from app.nodes.catalog import NodeCatalog
from app.tools.dispatch import ONE_ATTEMPT, ToolDispatch
from app.tools.ports import Tool, ToolSpec
from app.tools.registry import ToolPolicy, ToolRegistry
from app.trace.payloads import REDACTED
from tests.unit.nodes.agent.world import Gate, agent, asking, said, wants, world


class Servers:
    """One server, whose tools change from time to time."""

    names: Sequence[str] = ("files",)

    def __init__(self, *offered: str) -> None:
        self.offered = list(offered)
        self.asked = 0

    def serves(self, name: str) -> bool:
        return name.startswith("files.")

    async def tools(self, server: str) -> Sequence[ToolSpec]:
        self.asked += 1
        return [
            ToolSpec(name=f"files.{name}", description=name, parameters={"type": "object"})
            for name in self.offered
        ]

    async def find(self, name: str) -> Tool:
        return Gate(name)

    async def aclose(self) -> None:
        """Nothing to end."""


def with_servers(servers: Servers, *lines: Any, **more: Any) -> Any:
    here = world(*lines, **more)
    tools = ToolDispatch(
        ToolRegistry(), ToolPolicy(), payloads=REDACTED, retry=ONE_ATTEMPT, servers=servers
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
    """All, those that are allowed, or one."""
    here = with_servers(Servers("read", "write"), "Ok.")

    await here.run(asking(agent(tools=[use])), default="?")

    assert [tool.name for tool in here.small.requests[0].tools] == [*offered, "finish"]


@pytest.mark.req("003/resume")
async def test_an_execution_that_begins_again_offers_what_the_first_one_did() -> None:
    """Whatever the server has by then; it is not even asked."""
    servers = Servers("read", "write")
    graph = asking(agent(tools=[{"mcp": "files"}]))
    here = with_servers(servers, said("", wants("nothing")), "Ok.")
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
    """The second gets a number."""
    here = world("Ok.", more_tools=[Gate("a.b"), Gate("a_b")])

    await here.run(asking(agent(tools=["a.b", "a_b"])), default="?")

    names = [tool.name for tool in here.small.requests[0].tools]
    assert names == ["a_b", "a_b_2", "finish"]
