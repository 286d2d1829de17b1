"""A run of an agent with the real engine and scripted models."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caseworker.engine.report import GraphOutcome
from caseworker.models.ports import (
    Delta,
    Incomplete,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolCall,
)
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from tests.unit.nodes.world import NodeRun, graph, step

Line = str | ModelReply | Exception | Callable[[ModelRequest], Awaitable[ModelReply]]


def model_reply(text: str = "", *calls: ToolCall, thinking: str = "", **more: Any) -> ModelReply:
    """Return a complete model reply."""
    usage = TokenUsage(tokens_in=10, tokens_out=5)
    return ModelReply(
        text=text, model="m", usage=usage, tool_calls=calls, thinking=thinking, **more
    )


def cut(text: str = "", *calls: ToolCall, why: str = "length", said_so: str = "") -> ModelReply:
    """Return an incomplete reply."""
    return model_reply(text, *calls, incomplete=Incomplete(why), incomplete_reason=said_so or None)


def wants(name: str, /, call_id: str = "c1", **args: Any) -> ToolCall:
    """Return a call of a tool."""
    return ToolCall(id=call_id, name=name, arguments=json.dumps(args))


@dataclass
class Lines:
    """A ModelProvider that replays scripted replies, in parts if the request streams."""

    lines: list[Line]
    external: bool = False
    name: str = "scripted"
    requests: list[ModelRequest] = field(default_factory=list)

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        line = self.lines.pop(0)
        if isinstance(line, Exception):
            raise line
        reply = model_reply(line) if isinstance(line, str) else line
        if not isinstance(reply, ModelReply):
            reply = await reply(request)
        if request.on_delta is not None:
            for word in reply.thinking.split(" ") if reply.thinking else ():
                request.on_delta(Delta("thinking", word))
            for at in range(0, len(reply.text), 7):
                request.on_delta(Delta("content", reply.text[at : at + 7]))
                await asyncio.sleep(0)
        return reply

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


class Gate:
    """A tool that waits until it is released and records its arguments."""

    def __init__(self, name: str = "gate", *, parallel_safe: bool = True) -> None:
        self.spec = ToolSpec(
            name=name,
            description="Waits.",
            parameters={
                "type": "object",
                "additionalProperties": False,
                "properties": {"n": {"type": "integer"}},
            },
            parallel_safe=parallel_safe,
        )
        self.began: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.open = False

    def let(self, number: int) -> None:
        self.gates.setdefault(number, asyncio.Event()).set()

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        number = args["n"]
        self.began.append(number)
        try:
            if not self.open:
                await self.gates.setdefault(number, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        self.ended.append(number)
        return {"n": number}


def result(outcome: GraphOutcome) -> dict[str, Any]:
    """Return the result of the agent in step ``a``."""
    found: dict[str, Any] = outcome.steps["a"].outputs["result"]
    return found


def agent(**more: Any) -> dict[str, Any]:
    """Return an agent definition."""
    return {"name": "helper", "prompt": {"system": "Help."}, **more}


def asking(definition: Mapping[str, Any], *parts: Any, **data: Any) -> dict[str, Any]:
    """Return a graph whose step ``a`` is an agent."""
    return graph(step("a", "agent", {"agent": definition, **data}), *parts)


def scripted_agent(*lines: Line, **settings: Any) -> NodeRun:
    """Return a run of agents whose model gives these replies."""
    return NodeRun(small=Lines(list(lines)), **settings)  # type: ignore[arg-type]


def events(here: NodeRun, step_id: str | None = "a") -> list[tuple[str, Mapping[str, Any]]]:
    """Return the events of the turns of a step."""
    known = ("turn_", "thinking", "content_", "tool_", "usage", "error", "conversation.")
    return [
        (event.type, event.data)
        for event in here.told
        if event.type.startswith(known) and step_id in (None, event.step_id)
    ]


def kinds(here: NodeRun, step_id: str | None = "a") -> list[str]:
    return [kind for kind, _ in events(here, step_id)]


def text_of(found: Sequence[tuple[str, Mapping[str, Any]]], turn: int) -> str:
    """Return the text that a client shows for a turn."""
    text = ""
    for kind, data in found:
        if kind == "content_chunk" and data["turn_number"] == turn:
            text = text[: data["offset"]] + data["content"]
    return text


def calculate(expression: str, call_id: str = "c1") -> ToolCall:
    return wants("calculator", call_id, expression=expression)
