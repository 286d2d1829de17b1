"""Chats as steps see them: what was said so far, who may see it, and the step type ``chat_start``.

Who sees the whole chat follows from the flow of the graph that is executed. An agent with no agent
before it is an *entry agent*: it is given the chat. Every other agent is given what flows to it.
The tools that a user brings along are offered to entry agents behind chat starts that let them
through: all of them must, and without any chat start none are offered. Graphs inside steps belong
to the flow around them. The agents of a map work on its items, so they are no entry agents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field

from caseworker.engine.context import FlowContext, Outputs
from caseworker.engine.node import ExecutionResult
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.step_path import StepPath
from caseworker.kernel.graph import DEFAULT_HANDLE
from caseworker.kernel.validation import Handles
from caseworker.llm.ports import Message, ToolCall
from caseworker.nodes.nesting import InnerGraph, InnerStep
from caseworker.nodes.node_type import NONE, NodeType
from caseworker.nodes.reading import StepData

CHAT_START = "chat_start"
INPUTS = "inputs"
"""The output handle of the values that a thread gives to the variables of its agent."""

_Seen = frozenset[str]
"""What stands before a step in the flow."""

_NOTHING: _Seen = frozenset()
_AGENT, _TOOLS, _NO_TOOLS = (frozenset({seen}) for seen in ("agent", "tools", "no tools"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """What was said in a chat, and what its user brings along; a service of runs in chats."""

    thread_id: str
    messages: tuple[Message, ...]
    """Oldest first; the last one is what the user says now."""
    user_tools: tuple[Mapping[str, Any], ...] = ()
    """As the tools of an agent are named, agents among them in full."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        said = [{"role": one.role, "content": one.content, **one.extras()} for one in self.messages]
        return {
            "thread_id": self.thread_id,
            "messages": said,
            "user_tools": [dict(tool) for tool in self.user_tools],
        }

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_json` has made JSON of."""
        return cls(
            thread_id=stored["thread_id"],
            messages=tuple(_message(one) for one in stored["messages"]),
            user_tools=tuple(stored["user_tools"]),
        )


def _message(stored: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in stored.get("tool_calls", ()))
    return Message(**{**stored, "tool_calls": calls})


class ChatScope:
    """Which steps of a graph see the chat, and whose user's tools they may use; by their paths."""

    def __init__(self, graph: PreparedGraph) -> None:
        self._before: dict[tuple[str, ...], _Seen] = {}
        self._walk(graph, (), _NOTHING)

    def is_entry_agent(self, path: StepPath) -> bool:
        """Return whether no agent stands before the step in the flow."""
        seen = self._before.get(_place(path))
        return seen is not None and not seen & _AGENT

    def include_user_tools(self, path: StepPath) -> bool:
        """Return whether chat starts stand before the step, and all let the user's tools through.

        An agent behind another one is given none.
        """
        seen = self._before.get(_place(path), _NOTHING)
        return self.is_entry_agent(path) and bool(seen & _TOOLS) and not seen & _NO_TOOLS

    def _walk(self, graph: PreparedGraph, place: tuple[str, ...], around: _Seen) -> _Seen:
        """Note what stands before each step; return what stands before whatever comes next."""
        after: dict[str, _Seen] = {}
        incoming = graph.topology.incoming
        for step_id in graph.topology.order():
            sources = (after[edge.source] for edge in incoming.get(step_id, ()))
            before = around.union(*sources)
            at = (*place, step_id)
            self._before[at] = before
            after[step_id] = before | self._own(graph.steps[step_id], at, before)
        return around.union(*after.values())

    def _own(self, step: PreparedStep, place: tuple[str, ...], before: _Seen) -> _Seen:
        data = step.work.data
        own = _AGENT if _has_agent(step.work) or _has_agent(step.fallback) else _NOTHING
        if isinstance(data, ChatStartData):
            own |= _TOOLS if data.include_user_tools else _NO_TOOLS
        inner = getattr(data, "graph", None)
        if isinstance(inner, InnerGraph) and not hasattr(data, "over"):
            own |= self._walk(inner.prepared, place, before)
        return own


def _has_agent(work: BoundNode | InnerStep | None) -> bool:
    """Return whether something that works is an agent, or contains one."""
    if isinstance(work, InnerStep):
        work = work.work
    if work is None:
        return False
    data = work.data
    inner = getattr(data, "graph", None)
    return (
        getattr(data, "agent", None) is not None
        or _has_agent(getattr(data, "step", None))
        or (isinstance(inner, InnerGraph) and any(_has_agent(it) for it in _active(inner)))
    )


def _active(inner: InnerGraph) -> list[BoundNode]:
    return [inner.prepared.steps[step_id].work for step_id in inner.prepared.topology.active]


def _place(path: StepPath) -> tuple[str, ...]:
    """Return the ids of the steps around a step and its own, whichever attempt it is."""
    return tuple(part.partition("~")[0] for part in path.text.split("/"))


def chat_services(chat: ChatInput | None, graph: PreparedGraph) -> Mapping[type, Any]:
    """Return the services of a run of a graph, none outside of chats."""
    return {} if chat is None else {ChatInput: chat, ChatScope: ChatScope(graph)}


class ChatStartData(StepData):
    """How a chat enters the graph."""

    include_user_tools: bool = Field(True, alias="includeUserTools")
    """Whether the tools that the user brings along are offered to the agents behind it."""


class ChatStartNode:
    """Gives what the user says now."""

    async def execute(
        self, data: ChatStartData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Return the newest message of the chat; outside of chats, what the step is given."""
        chat = context.services.get(ChatInput)
        said = inputs.get(DEFAULT_HANDLE) if chat is None else chat.messages[-1].content
        given = {INPUTS: inputs[INPUTS]} if INPUTS in inputs else {}
        return ExecutionResult({DEFAULT_HANDLE: said, **given})


def chat_start_type() -> NodeType:
    """Return the type of steps at which a chat enters a graph."""
    return NodeType(
        name=CHAT_START,
        description="Where a chat enters the graph: the newest message of the user leaves on"
        " default, and on inputs what the thread gives to the variables of its agent.",
        node=ChatStartNode(),
        data=ChatStartData,
        handles=Handles(
            flow_inputs=NONE,
            flow_outputs=frozenset({DEFAULT_HANDLE, INPUTS}),
            link_inputs=NONE,
            link_outputs=NONE,
        ),
    )
