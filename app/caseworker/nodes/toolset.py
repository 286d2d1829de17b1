"""Step types for tools: one runs a tool, the other links tools to other steps."""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import Field

from caseworker.core.graph.graph import DEFAULT_HANDLE, Channel
from caseworker.core.graph.problems import quoted
from caseworker.core.graph.validation import Handles
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.nodes.node_type import NONE, Fault, NodeType, RunFacts
from caseworker.nodes.strict_parsing import ObjectField, StepData
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.suggestions import suggestion
from caseworker.tools.dispatch import ToolDispatch, ToolRequest
from caseworker.tools.ports import ToolContext, ToolResult, is_failure

ToolName = Annotated[str, Field(min_length=1, max_length=128)]


def unknown_tool(name: str, names: Collection[str]) -> str:
    """Return the same message for a tool that does not exist and for one that is denied."""
    return (
        f"No permitted tool is named {quoted(name)}; see GET /tools.{suggestion(name, names)} The "
        "operator adds own tools to tools.plugins."
    )


TOOLS = "tools"
"""Link handle for toolsets, both as an output and as an input."""


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The tools of a tool server, or a selection of them."""

    server: str
    allow: tuple[str, ...] | None = None
    """Allowlist of tools, by the names that the server uses; None allows all."""
    requires_approval: bool = False
    """Whether a person must approve each call of these tools."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools without duplicates, in the order in which they were named."""

    names: tuple[str, ...] = ()
    servers: tuple[ServerTools, ...] = ()
    agents: tuple[Hashable, ...] = ()
    """Agents that are used as tools. This module does not interpret them."""

    def __or__(self, other: "Toolset") -> "Toolset":
        return Toolset(
            tuple(dict.fromkeys(self.names + other.names)),
            tuple(dict.fromkeys(self.servers + other.servers)),
            tuple(dict.fromkeys(self.agents + other.agents)),
        )

    def __contains__(self, name: object) -> bool:
        return name in self.names


class ServerUse(StepData):
    """The tools to use from a configured tool server."""

    server: Annotated[str, Field(min_length=1, max_length=64)]
    allow: Annotated[list[ToolName], Field(max_length=128)] | None = None
    """Allowlist of tools, by the names that the server uses. Default: all."""
    requires_approval: bool = False
    """Whether a person must approve each call of the server's tools before it is made."""


class ToolsetData(StepData):
    """The tools that a toolset step provides."""

    tools: Annotated[list[ToolName], Field(max_length=128)] = Field(default_factory=list)
    """Names of the tools, as listed by GET /tools."""
    mcp: Annotated[list[ServerUse], Field(max_length=16)] = Field(default_factory=list)
    """Servers whose tools belong to the toolset; agents and models can use them."""

    def toolset(self) -> Toolset:
        """Return the toolset without duplicates."""
        servers = (
            ServerTools(m.server, None if m.allow is None else tuple(m.allow), m.requires_approval)
            for m in self.mcp
        )
        return Toolset() | Toolset(tuple(self.tools), tuple(servers))


class ToolsetNode:
    """Provides the tools that are configured in its step, and those of linked toolsets."""

    async def execute(
        self, data: ToolsetData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Raise TypeError, because a toolset cannot be executed."""
        raise TypeError("A toolset can only be linked.")

    async def materialize(
        self, data: ToolsetData, output_handle: str, context: FlowContext
    ) -> Toolset:
        """Return the step's own tools and those of the toolsets linked to it."""
        linked = await linked_tools(context)
        own_tools = data.toolset()
        return own_tools if linked is None else own_tools | linked


async def linked_tools(context: FlowContext) -> Toolset | None:
    """Return all tools linked to a step; None if no toolset is linked.

    Raises:
        TypeError: a linked value is not a toolset.
    """
    linked = await context.runtime.resolve_links(context.node_id, TOOLS)
    if not linked:
        return None
    tools = Toolset()
    for one in linked:
        if not isinstance(one, Toolset):
            raise TypeError("Only toolsets and agents can be linked to the input tools.")
        tools |= one
    return tools


def toolset_type(names: Collection[str], servers: Collection[str] = ()) -> NodeType:
    """Return the step type that links tools to other steps.

    ``names`` contains the names of the permitted tools, ``servers`` those of the configured tool
    servers.
    """

    def faults(data: ToolsetData) -> list[Fault]:
        tools = [
            (f"tools.{index}", unknown_tool(name, names))
            for index, name in enumerate(data.tools)
            if name not in names
        ]
        return tools + [
            (f"mcp.{index}.server", f"No MCP server {quoted(use.server)} is configured.")
            for index, use in enumerate(data.mcp)
            if use.server not in servers
        ]

    return NodeType(
        name="toolset",
        description="Lists tools that the steps linked to it may use."
        " The tools of toolsets linked to its input tools are added.",
        node=ToolsetNode(),
        data=ToolsetData,
        handles=Handles(
            flow_inputs=NONE,
            flow_outputs=NONE,
            link_inputs=frozenset({TOOLS}),
            link_outputs=frozenset({TOOLS}),
        ),
        executes=False,
        faults=faults,
    )


ERROR = "error"
"""Output handle for a tool's error; used if an edge starts at it."""

MAX_REASON_CHARS = 300
_CALL = "call"
"""The last part of the call's key."""


class ToolFailedError(Exception):
    """A tool returned an error, and no edge handles it."""

    def __init__(self, tool: str, result: ToolResult, *, deterministic: bool = False) -> None:
        """Build the message; a ``deterministic`` tool is retryable only after a timeout."""
        reason = redact_text(str(result["error"]), max_chars=MAX_REASON_CHARS)
        self.error_class = str(result.get("code", "error"))
        """The error code of the tool."""
        self.retryable = not deterministic or self.error_class == "timeout"
        super().__init__(f"Tool {tool} failed ({self.error_class}): {reason}")


class ToolData(StepData):
    """The tool that a step calls, and its arguments."""

    tool: ToolName
    """Name of the tool, as listed by GET /tools."""
    args: ObjectField | None = None
    """Arguments for the tool. Default: the step's inputs, keyed by input handle."""
    requires_approval: bool = False
    """Whether a person must approve the call before it is made."""


class ToolNode:
    """Calls a step's tool, within the limits of the run."""

    def __init__(self, tools: ToolDispatch, *, timezone: str) -> None:
        """Create the node; ``timezone`` is the default time zone of runs."""
        self._tools = tools
        self._timezone = timezone

    async def execute(
        self, data: ToolData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Call the tool and put its result on ``default``.

        Raises:
            MissingValueError: an argument has no value.
            ToolFailedError: the tool returned an error, and no flow edge starts at ``error``.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        args = dict(inputs) if data.args is None else data.args.render(inputs, context.limits)
        request = ToolRequest(
            name=data.tool,
            args=args,
            key=_CALL,
            context=tool_context(context, self._timezone),
            requires_approval=data.requires_approval,
        )
        result = await self._tools.run(context, request)
        if not is_failure(result):
            return ExecutionResult({DEFAULT_HANDLE: result})
        awaited = context.runtime.outgoing_edges(
            context.node_id, channel=Channel.FLOW, source_handle=ERROR
        )
        if not awaited:
            tool = self._tools.tool(data.tool)
            deterministic = tool is not None and tool.spec.deterministic
            raise ToolFailedError(data.tool, result, deterministic=deterministic)
        return ExecutionResult({ERROR: result})


def tool_context(context: FlowContext, timezone: str) -> ToolContext:
    """Build the context for a run's tool calls; ``timezone`` is the default time zone."""
    facts = context.service(RunFacts)
    zone = facts.timezone or timezone
    now = facts.now.astimezone(ZoneInfo(zone))
    return ToolContext(run_id=context.run.run_id, timezone=zone, now=now)


def tool_type(tools: ToolDispatch, *, timezone: str) -> NodeType:
    """Return the step type that calls a tool; ``timezone`` is the default time zone of runs."""

    def faults(data: ToolData) -> list[Fault]:
        if data.tool not in tools:
            return [("tool", unknown_tool(data.tool, tools))]
        if data.args is None or not data.args.constant:
            return []
        problem = tools.problem(data.tool, data.args.render({}))
        return [] if problem is None else [("args", problem)]

    return NodeType(
        name="tool",
        description="Calls a tool. The output default has the result. An error is sent to the"
        " output error if an edge starts there; otherwise the step fails.",
        node=ToolNode(tools, timezone=timezone),
        data=ToolData,
        handles=Handles(
            flow_outputs=frozenset({DEFAULT_HANDLE, ERROR}), link_inputs=NONE, link_outputs=NONE
        ),
        faults=faults,
    )
