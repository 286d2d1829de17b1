"""Test tools and agents under the rules of the service, without a server and a database.

Arguments are validated, calls are limited, and errors are hidden from models by the code that the
service executes. In a plain test function, call these coroutines with ``asyncio.run``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from caseworker.core.budget.budget import Budget
from caseworker.engine.context import ExecutionContext
from caseworker.models.ports import (
    ModelEndpoint,
    ModelError,
    ModelProvider,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolCall,
)
from caseworker.models.pricing import TokenPrice
from caseworker.models.recorded import RecordedProvider, streamed
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.function import FunctionNode
from caseworker.runtime_api.agents import AgentResult, dispatch_of, run_agent
from caseworker.runtime_api.graph import Graph
from caseworker.tools.dispatch import ToolRequest
from caseworker.tools.ports import Tool, ToolContext, ToolResult

__all__ = ["ScriptedModel", "calls", "recorded", "run_agent_test", "run_tool", "says"]

_PRICE = TokenPrice(usd_per_million_in=Decimal(3), usd_per_million_out=Decimal(15))


def says(text: str, *, tokens_in: int = 100, tokens_out: int = 20) -> ModelReply:
    """Return a reply with an answer."""
    usage = TokenUsage(tokens_in=tokens_in, tokens_out=tokens_out)
    return ModelReply(text=text, model="scripted", usage=usage, finish_reason="stop")


def calls(tool: str, arguments: Mapping[str, Any] | None = None) -> ModelReply:
    """Return a reply that requests a tool call."""
    call = ToolCall(id="", name=tool, arguments=json.dumps(arguments or {}))
    return replace(says(""), finish_reason="tool_calls", tool_calls=(call,))


class ScriptedModel:
    """A model that gives the replies of a script, one to each request."""

    name = "scripted"
    external = True
    model = "scripted"

    def __init__(self, script: Sequence[ModelReply | ModelError]) -> None:
        """Reply as in ``script``; raise the errors in it."""
        self._script = tuple(script)
        self.requests: list[ModelRequest] = []
        """The requests so far, with their messages and the tools that were offered."""

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Return the next reply of the script.

        Raises:
            ModelError: the script contains it, or has no more replies.
        """
        self.requests.append(request)
        number = len(self.requests)
        if number > len(self._script):
            raise ModelError(f"The script has no reply to request {number}.", retryable=False)
        reply = self._script[number - 1]
        if isinstance(reply, ModelError):
            raise reply
        named = (replace(call, id=f"call_{number}") for call in reply.tool_calls)
        return streamed(replace(reply, tool_calls=tuple(named)), request)

    async def aclose(self) -> None:
        """Do nothing."""


def recorded(file: str | Path) -> RecordedProvider:
    """Return the first model in a recording, which ``caseworker serve --record FILE`` makes.

    It replies to requests that equal the recorded ones, also in their model settings.

    Raises:
        RecordingError: the file is not a recording.
        OSError: the file cannot be read.
    """
    with Path(file).open(encoding="utf-8") as lines:
        models = json.loads(lines.readline()).get("models", [{}])
    return RecordedProvider(ModelEndpoint(model=models[0].get("model", ""), recording=str(file)))


async def run_tool(
    tool: Tool, arguments: Mapping[str, Any] | None = None, /, **more: Any
) -> ToolResult:
    """Call a tool as an agent would; a failure is ``{"error": message, "code": word}``.

    The arguments are those in ``arguments`` and the keyword arguments, as JSON values.
    """

    async def call(context: ExecutionContext) -> ToolResult:
        if context.flow is None:
            raise RuntimeError("The step has no context.")
        request = ToolRequest(
            name=tool.spec.name,
            args={**(arguments or {}), **more},
            key="call",
            context=ToolContext(run_id=context.flow.run_id, timezone="UTC", now=datetime.now(UTC)),
        )
        return await dispatch_of((tool,)).run(context.flow, request)

    graph = Graph("test")
    graph.add_step(FunctionNode("tool", call), "tool")
    found: ToolResult = (await graph.execute())["tool"]
    return found


async def run_agent_test(
    agent: AgentDefinition | Mapping[str, Any] | str | Path,
    input: str,  # noqa: A002 - the word of the HTTP API
    *,
    model: ModelProvider,
    tools: Iterable[Tool] = (),
    budget: Budget | None = None,
    **options: Any,
) -> AgentResult:
    """Run an agent and return its result, even if it failed or was stopped.

    ``agent`` is a definition, or the path of a YAML file with one. ``options`` are those of
    :func:`caseworker.run_agent`, such as ``inputs`` and ``context``.

    Raises:
        ValueError: the definition or the inputs are invalid.
        Stop: the budget was exceeded before the agent started.
    """
    definition = _read(agent) if isinstance(agent, str | Path) else agent
    options = {"context": ExecutionContext(budget=budget), "price": _PRICE, **options}
    options |= {"provider": model, "model": getattr(model, "model", model.name), "tools": tools}
    return await run_agent(definition, input=input, **options)


def _read(file: str | Path) -> AgentDefinition:
    return AgentDefinition.model_validate(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
