"""The tools that an agent may call: local tools, tools of MCP servers, and other agents.

All are offered under names that every provider accepts. A server's tool list is journaled. A
repeated execution therefore sends its models the same requests even if the server has changed.
"""

import re
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from caseworker.core.budget.usage import NOTHING
from caseworker.core.trace.json_values import JSON
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome, Entry
from caseworker.engine.waiting_calls import NOT_ANSWERED
from caseworker.models.ports import ToolCall, ToolDefinition
from caseworker.nodes.agent.definition import FINISH, AgentDefinition, ClientTool, ToolUse
from caseworker.nodes.agent.functions import OfferedFunction
from caseworker.nodes.toolset import Toolset, tool_context
from caseworker.platform.logs.redaction import redact_text
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.dispatch import ToolDispatch, ToolRequest
from caseworker.tools.ports import ToolResult, ToolSpec, failure

MAX_NAME_CHARS = 64
INPUT = "input"
"""Name of the argument that holds the request when an agent is called as a tool."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class LinkedAgent:
    """An agent that other agents may call as a tool."""

    definition: AgentDefinition
    linked: Toolset | None = None
    """Tools and agents linked to the agent's step; None if there are none."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Input values that the agent's step provides."""

    @property
    def name(self) -> str:
        """The agent's name as a tool."""
        return self.definition.name


Perform = Callable[[FlowContext, str, str, Mapping[str, Any]], Awaitable[ToolResult]]
"""Function that runs a tool call. It takes the context, the call's key inside the step, the model's
ID for the call, and the arguments."""

CallAgent = Callable[[LinkedAgent, FlowContext, str, Mapping[str, Any]], Awaitable[ToolResult]]
"""Function that runs a call of an agent. It takes the agent, the context, the call's key inside the
step, and the arguments."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as offered to a model."""

    definition: ToolDefinition
    parallel_safe: bool
    perform: Perform
    journaled: bool = True
    """Whether the journal stores each result under the key of its call."""
    ends_unanswered: bool = False
    """Whether the agent ends if a call of the tool is not answered in time."""
    tool: str | None = None
    """Name of the tool that provides this function; None if this is a complete tool."""


class ToolOffer:
    """All tools offered to a model, keyed by the name that the model sees."""

    def __init__(self, tools: Iterable[OfferedTool]) -> None:
        self._tools: dict[str, OfferedTool] = {}
        for tool in tools:
            name = self._free_name(tool.definition.name)
            renamed = replace(tool, definition=replace(tool.definition, name=name))
            self._tools[name] = renamed

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Definitions of the offered tools, as sent to the model."""
        return tuple(tool.definition for tool in self._tools.values())

    def is_alone(self, name: str) -> bool:
        """Return whether calls to a tool must not run concurrently with other calls."""
        tool = self._tools.get(name)
        return tool is not None and not tool.parallel_safe

    def is_journaled(self, name: str) -> bool:
        """Return whether the journal stores the tool's results under the keys of their calls."""
        tool = self._tools.get(name)
        return tool is not None and tool.journaled

    def is_end(self, name: str, result: ToolResult) -> bool:
        """Return whether the agent ends because a call of a tool was not answered in time."""
        tool = self._tools.get(name)
        unanswered = result.get("code") == NOT_ANSWERED
        return tool is not None and tool.ends_unanswered and unanswered

    def tool_of(self, name: str) -> str:
        """Return the tool's own name for an offered name; for a function, the name of its tool."""
        tool = self._tools.get(name)
        return name if tool is None or tool.tool is None else tool.tool

    async def call(self, context: FlowContext, key: str, call: ToolCall) -> ToolResult:
        """Run a tool call that a model requested; an invalid call returns an error result.

        Raises:
            Stop: a limit or a cancel request prevented or ended the call.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools) or "none"
            name = redact_text(call.name, max_chars=60)
            return failure(f"There is no tool {name!r}. The tools are: {names}.", "unknown_tool")
        args = arguments_of(call)
        if args is None:
            problem = "The arguments are not a JSON object. Call the tool again with one."
            return failure(problem, "invalid_arguments")
        return await tool.perform(context, key, call.id, args)

    def _free_name(self, name: str) -> str:
        safe = free = _UNSAFE.sub("_", name)[:MAX_NAME_CHARS]
        number = 1
        while free in self._tools or free == FINISH:
            number += 1
            free = f"{safe[: MAX_NAME_CHARS - 4]}_{number}"
        return free


def arguments_of(call: ToolCall) -> dict[str, Any] | None:
    """Parse the arguments of a call; None if they are not a JSON object."""
    if not call.arguments.strip():
        return {}
    try:
        args = JSON.decode(call.arguments)
    except (ValueError, RecursionError):
        return None
    return args if isinstance(args, dict) else None


class AgentTools:
    """Resolves the tools that an agent may call."""

    def __init__(
        self,
        dispatch: ToolDispatch,
        call_agent: CallAgent,
        *,
        functions: Mapping[str, Sequence[OfferedFunction]],
        timezone: str,
    ) -> None:
        """Create a resolver for the tools of ``dispatch``; ``call_agent`` runs agents.

        ``functions`` are offered instead of the tools that they belong to. ``timezone`` is the
        default time zone of runs.
        """
        self._dispatch = dispatch
        self._functions = functions
        self._call_agent = call_agent
        self._timezone = timezone

    async def offer(
        self, uses: Iterable[ToolUse], linked: Toolset | None, context: FlowContext
    ) -> ToolOffer:
        """Resolve the tools that a definition names, followed by the tools linked to the step.

        Raises:
            LookupError: a tool does not exist or is not permitted.
            ServerUnavailableError: a server's tool list is unavailable.
        """
        local_specs = {spec.name: spec for spec in self._dispatch.usable()}
        tools_by_name: dict[str, Sequence[OfferedTool]] = {}
        for use in [*uses, *_uses_in(linked)]:
            if use.definition is not None:
                agent = LinkedAgent(use.definition)
                tools_by_name.setdefault(f"agent {agent.name}", (self._agent(agent),))
                continue
            if use.client is not None:
                tool = self._of_client(use.client, use.requires_approval)
                tools_by_name.setdefault(f"client {use.client.name}", (tool,))
                continue
            for spec in await self._specs(use, local_specs, context):
                if use.requires_approval or spec.name not in tools_by_name:
                    tools_by_name[spec.name] = self._offered(spec, use.requires_approval)
        for linked_agent in linked.agents if linked else ():
            if isinstance(linked_agent, LinkedAgent):
                tools_by_name.setdefault(f"agent {linked_agent.name}", (self._agent(linked_agent),))
        return ToolOffer(tool for tools in tools_by_name.values() for tool in tools)

    async def _specs(
        self, use: ToolUse, local_specs: Mapping[str, ToolSpec], context: FlowContext
    ) -> Iterable[ToolSpec]:
        if use.toolset is not None:
            return local_specs.values()
        if use.mcp is not None:
            offered = await self._listed(use.mcp, context)
            names = None if use.allow is None else {f"{use.mcp}.{name}" for name in use.allow}
            return [spec for spec in offered if names is None or spec.name in names]
        name = str(use.tool)
        if name in local_specs:
            return [local_specs[name]]
        server, joint, _ = name.partition(".")
        if joint and server in self._dispatch.servers:
            of_server = await self._listed(server, context)
            matches = [spec for spec in of_server if spec.name == name]
            if matches:
                return matches
        raise LookupError(
            f"There is no tool {name!r} that may be used; a test or a program passes it in `tools`."
        )

    async def _listed(self, server: str, context: FlowContext) -> list[ToolSpec]:
        """Return the tool list of a server as of the first execution of the run."""
        key = context.path.call("tools", server).text
        journal = context.calls.journal
        recorded = journal.recorded(key)
        if recorded is not None and recorded.outcome is CallOutcome.RESULT:
            return [ToolSpec(**each) for each in recorded.value]
        specs = list(await self._dispatch.tools_of(server, context.run.tenant))
        trace = context.run.trace
        node = trace.begin_node(context.trace_parent, "system", f"tools of {server}", running=True)
        value = [_as_json(spec) for spec in specs]
        entry = Entry(
            call_key=key, request_hash="", charge=NOTHING, outcome=CallOutcome.RESULT, value=value
        )
        journal.note(node, entry)
        trace.mark_success(node, 0)
        return specs

    def _offered(self, spec: ToolSpec, requires_approval: bool) -> Sequence[OfferedTool]:
        """Return the offers of a tool: the whole tool, or its functions."""
        safe, run = spec.parallel_safe, partial(self._run, spec.name, requires_approval)
        if functions := self._functions.get(spec.name):
            return [
                OfferedTool(one.definition, safe, partial(_run_function, one, run), tool=spec.name)
                for one in functions
            ]
        return (OfferedTool(_definition_of(spec), safe, run),)

    async def _run(
        self,
        name: str,
        requires_approval: bool,
        context: FlowContext,
        key: str,
        call_id: str,
        args: Mapping[str, Any],
    ) -> ToolResult:
        request = ToolRequest(
            name=name,
            args=args,
            key=key,
            call_id=call_id,
            context=tool_context(context, self._timezone),
            requires_approval=requires_approval,
        )
        return await self._dispatch.run(context, request)

    def _of_client(self, tool: ClientTool, requires_approval: bool) -> OfferedTool:
        """Return the offer of a tool that the client of the run executes."""
        spec = ToolSpec(
            name=tool.name, description=tool.description, parameters=dict(tool.parameters)
        )
        check = ArgumentCheck(spec, foreign=True)

        async def call(
            context: FlowContext, key: str, call_id: str, args: Mapping[str, Any]
        ) -> ToolResult:
            request = ToolRequest(
                name=spec.name,
                args=args,
                key=key,
                call_id=call_id,
                context=tool_context(context, self._timezone),
                requires_approval=requires_approval,
            )
            return await self._dispatch.run_by_client(
                context, spec, check, request, tool.wait_seconds
            )

        ends = tool.on_expiry == "complete"
        return OfferedTool(_definition_of(spec), True, call, ends_unanswered=ends)

    def _agent(self, agent: LinkedAgent) -> OfferedTool:
        definition = agent.definition
        offered = ToolDefinition(
            name=definition.name,
            description=definition.description or f"The agent {definition.name}.",
            parameters=parameters_of(definition, agent.inputs),
        )

        async def call(
            context: FlowContext, key: str, _: str, args: Mapping[str, Any]
        ) -> ToolResult:
            return await self._call_agent(agent, context, key, args)

        return OfferedTool(offered, True, call, journaled=False)


def _definition_of(spec: ToolSpec) -> ToolDefinition:
    return ToolDefinition(name=spec.name, description=spec.description, parameters=spec.parameters)


def _uses_in(linked: Toolset | None) -> Iterator[ToolUse]:
    if linked is not None:
        yield from (ToolUse(tool=name) for name in linked.names)
        for one in linked.servers:
            asks, allow = one.requires_approval, None if one.allow is None else list(one.allow)
            yield ToolUse(mcp=one.server, allow=allow, requires_approval=asks)


def parameters_of(agent: AgentDefinition, values: Container[str] = ()) -> dict[str, Any]:
    """Return the argument schema for calling an agent as a tool.

    The arguments are the request and the agent's inputs, except the inputs in ``values``.
    """
    task = {"type": "string", "description": "What the agent is asked to do."}
    inputs = {name: spec for name, spec in agent.inputs.items() if name not in values}
    needed = (name for name, spec in inputs.items() if spec.required and not spec.has_default)
    return {
        "type": "object",
        "properties": {
            INPUT: task,
            **{name: spec.schema_of_value for name, spec in inputs.items()},
        },
        "required": list(dict.fromkeys((INPUT, *needed))),
        "additionalProperties": False,
    }


async def _run_function(
    called: OfferedFunction,
    run: Perform,
    context: FlowContext,
    key: str,
    call_id: str,
    arguments: Mapping[str, Any],
) -> ToolResult:
    """Call a tool through one of its functions."""
    args = called.arguments(arguments)
    if isinstance(args, str):
        return failure(args, "invalid_arguments")
    return await run(context, key, call_id, args)


def _as_json(spec: ToolSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
        "parallel_safe": spec.parallel_safe,
    }
