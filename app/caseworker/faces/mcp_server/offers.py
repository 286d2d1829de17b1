"""Tools that the service offers to MCP clients; each call is an ordinary run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from caseworker.features.definitions.agent_kind import AgentRunBody
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.registration import Definition
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.agent.tools import INPUT, parameters_of
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.bodies import is_storable
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.http.admission import MCP_BUDGET, KindApi, McpTool
from caseworker.runs.http.body import RunFields
from caseworker.runs.http.kinds import APIS
from caseworker.runs.run import DefinitionRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTool:
    """A tool offered to MCP clients. Each call of it creates a run."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the tool's arguments."""
    body: Callable[[Mapping[str, Any], Mapping[str, Any]], RunFields]
    """Function that returns the request body for a call. It takes the tool's arguments, and the
    fields ``run_id`` (may be null) and ``metadata`` for the run. It may raise a
    ValidationError."""


MAX_AGENTS = 100
"""Maximum number of registered agents that are listed as tools. Further ones can be called but are
not listed."""


async def offered_tools(request: ApiRequest) -> Mapping[str, RunTool]:
    """Return the tools that the caller may use now, by name.

    They are the tools of the kinds of runs, and the newest version of each registered agent.
    """
    store, tenant = request.service(Definitions).store, request.caller.tenant
    page = await store.find(tenant, DefinitionKind.AGENT, limit=MAX_AGENTS, cursor=None)
    refs = [head.ref for head in page.items]
    agents = await store.load(tenant, refs, max_bytes=MAX_AGENTS * request.limits.max_graph_bytes)
    tools_of_agents = (_tool_of(agents[ref]) for ref in refs if ref in agents)
    return _OF_KINDS | {each.name: each for each in tools_of_agents if each.name not in _OF_KINDS}


async def offered_tool(request: ApiRequest, name: str) -> RunTool | None:
    """Return the tool with a name that the caller may use now; None if it does not exist."""
    if (tool := _OF_KINDS.get(name)) is not None or not is_storable(name):
        return tool
    ref = DefinitionRef(name, kind=DefinitionKind.AGENT)
    definition = await request.service(Definitions).store.get(request.caller.tenant, ref)
    return None if definition is None else _tool_of(definition)


def _tool_of(definition: Definition) -> RunTool:
    agent = AgentDefinition.model_validate(definition.content)
    limits = {} if _BUDGET_NAME in agent.inputs else {_BUDGET_NAME: MCP_BUDGET}
    of_agent = parameters_of(agent)

    def body(args: Mapping[str, Any], of_run: Mapping[str, Any]) -> AgentRunBody:
        of_body = {INPUT, *limits}
        return AgentRunBody.model_validate(
            {
                "kind": "agent",
                "agent": {"name": definition.head.name, "version": definition.head.version},
                "inputs": {name: value for name, value in args.items() if name not in of_body},
                **{name: args[name] for name in of_body if name in args},
                **of_run,
            }
        )

    return RunTool(
        name=definition.head.name,
        description=agent.description or f"The agent {definition.head.name}.",
        parameters={**of_agent, "properties": {**of_agent["properties"], **limits}},
        body=body,
    )


_BUDGET_NAME = "budget"


def _tool_of_kind(api: KindApi, tool: McpTool) -> RunTool:
    return RunTool(
        name=tool.name,
        description=tool.description,
        parameters={
            "type": "object",
            "additionalProperties": False,
            "required": list(tool.required),
            "properties": tool.parameters,
        },
        body=lambda args, of_run: api.body.model_validate({"kind": api.kind, **args, **of_run}),
    )


_OF_KINDS: Final = {
    tool.name: _tool_of_kind(api, tool) for api in APIS.values() for tool in api.mcp_tools
}
