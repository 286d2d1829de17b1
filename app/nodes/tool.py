"""A step that uses one tool."""

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from app.engine.context import FlowContext
from app.engine.node import ExecutionResult
from app.kernel.graph import DEFAULT_HANDLE, Channel
from app.kernel.validation import Handles
from app.nodes.node_type import NONE, Fault, NodeType, RunFacts
from app.nodes.reading import ObjectField, StepData
from app.nodes.toolset import ToolName, ToolNames
from app.observability.redaction import redact_text
from app.tools.arguments import ArgumentChecks
from app.tools.dispatch import ToolDispatch
from app.tools.ports import ToolContext, ToolResult

ERROR = "error"
"""The handle on which a tool's error leaves, where somebody waits for it there."""

MAX_REASON_CHARS = 300
_CALL = "call"
"""Ends the key of the call."""


class ToolFailedError(Exception):
    """A tool returned an error, and no edge leads on from there."""

    def __init__(self, tool: str, result: ToolResult) -> None:
        reason = redact_text(str(result["error"]), max_chars=MAX_REASON_CHARS)
        super().__init__(f"Tool {tool} failed ({result.get('code', 'error')}): {reason}")


class ToolData(StepData):
    """Which tool, and what for."""

    tool: ToolName
    """Its name, as GET /tools lists it."""
    args: ObjectField | None = None
    """Its arguments; left out, they are the inputs of the step by handle."""


class ToolNode:
    """Uses the tool of its step, inside the limits of the run."""

    def __init__(self, tools: ToolDispatch, *, timezone: str) -> None:
        """Use ``tools``; ``timezone`` is the zone of runs that ask for none."""
        self._tools = tools
        self._timezone = timezone

    async def execute(
        self, data: ToolData, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        """Use the tool; what it returns is the output ``default``.

        Raises:
            MissingValueError: an argument has no value.
            ToolFailedError: the tool returned an error, and no flow edge leaves from ``error``.
            Stop: a limit or a cancel request keeps it from being used, or ended it.
        """
        args = dict(inputs) if data.args is None else data.args.render(inputs)
        result = await self._tools.run(
            context, name=data.tool, args=args, key=_CALL, tool_context=self._context(context)
        )
        if "error" not in result:
            return ExecutionResult({DEFAULT_HANDLE: result})
        awaited = context.runtime.outgoing_edges(
            context.node_id, channel=Channel.FLOW, source_handle=ERROR
        )
        if not awaited:
            raise ToolFailedError(data.tool, result)
        return ExecutionResult({ERROR: result})

    def _context(self, context: FlowContext) -> ToolContext:
        facts = context.service(RunFacts)
        timezone = facts.timezone or self._timezone
        return ToolContext(
            run_id=context.run_id, timezone=timezone, now=facts.now.astimezone(ZoneInfo(timezone))
        )


def tool_type(
    tools: ToolDispatch, checks: ArgumentChecks, known: ToolNames, *, timezone: str
) -> NodeType:
    """Return the type of steps that use a tool; ``known`` are those that may be used."""

    def faults(data: ToolData) -> list[Fault]:
        if data.tool not in known:
            return [("tool", known.problem(data.tool))]
        if data.args is None or not data.args.constant:
            return []
        problem = checks.problem(data.tool, data.args.render({}))
        return [] if problem is None else [("args", problem)]

    return NodeType(
        name="tool",
        description="Uses a tool. Its result leaves on default; an error leaves on error if an edge"
        " leads on from there, and otherwise is a failure of the step.",
        node=ToolNode(tools, timezone=timezone),
        data=ToolData,
        handles=Handles(
            flow_outputs=frozenset({DEFAULT_HANDLE, ERROR}), link_inputs=NONE, link_outputs=NONE
        ),
        faults=faults,
    )
