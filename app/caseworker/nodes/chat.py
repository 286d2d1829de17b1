"""Chat input for steps: the messages, the steps that receive them, and the type ``chat_start``.

The flow of the executed graph determines which agents receive the whole chat. An agent without an
agent before it is an *entry agent* and receives the chat. Every other agent receives the values
that flow to it.

An entry agent is offered the tools that a user provides only if a chat start comes before it, and
if every chat start before it permits them. Graphs nested in steps belong to the surrounding flow.
The agents of a map process its items, so they are not entry agents.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pydantic import Field

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.graph.validation import Handles
from caseworker.engine.context import ExecutionResult, FlowContext, Outputs
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.step_path import StepPath
from caseworker.models.message_log import PromptMemory
from caseworker.models.ports import Message, ToolCall
from caseworker.nodes.nesting import InnerGraph, InnerStep
from caseworker.nodes.node_type import NONE, NodeType
from caseworker.nodes.strict_parsing import StepData

CHAT_START = "chat_start"
INPUTS = "inputs"
"""Output handle for the values that a thread provides for its agent's variables."""

_Seen = frozenset[str]
"""The kinds of steps before a step in the flow."""

_NOTHING: _Seen = frozenset()
_AGENT, _TOOLS, _NO_TOOLS = (frozenset({seen}) for seen in ("agent", "tools", "no tools"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """The messages of a chat and its user's tools, provided to steps as a run service."""

    thread_id: str
    messages: tuple[Message, ...] = ()
    """Messages in chronological order; the last one is the user's new message. Empty in a stored
    run whose thread stores them. They are not stored then, even if they are known."""
    leaf: str | None = None
    """ID of the last message of the branch in its thread. None if the run itself stores the
    messages, as those that the previous release accepted do."""
    without: tuple[str, ...] = ()
    """IDs of the answers in the branch that had no text when the run was accepted. They stay out of
    the messages."""
    user_tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that the user provides, in the format of an agent's tool list. Agent references are
    already replaced by definitions."""
    reply: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """JSON with the messages that the database stores in the thread together with the new run; None
    in a stored run."""
    memory: PromptMemory = field(default_factory=PromptMemory, compare=False, repr=False)
    """Passes the prompt of an entry agent to the next answer in the branch, in this process."""

    def to_json(self) -> dict[str, Any]:
        """Return the chat input as JSON; :meth:`of_json` restores it.

        Messages that the thread stores are left out.
        """
        # With a question without text, the previous release executes nothing.
        in_thread = self.leaf is not None
        stored: dict[str, Any] = {
            "thread_id": self.thread_id,
            "messages": [_IN_THREAD] if in_thread else [one.to_json() for one in self.messages],
            "user_tools": [dict(tool) for tool in self.user_tools],
        }
        if in_thread:
            stored["leaf"] = self.leaf
            if self.without:
                stored["without"] = list(self.without)
        if self.reply is not None:
            stored["reply"] = self.reply
        return stored

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Restore a chat from the result of :meth:`to_json`."""
        said = stored["messages"]
        return cls(
            thread_id=stored["thread_id"],
            messages=() if said == [_IN_THREAD] else tuple(_message(one) for one in said),
            leaf=stored.get("leaf"),
            without=tuple(stored.get("without", ())),
            user_tools=tuple(stored["user_tools"]),
        )


_IN_THREAD: Final = {"role": "user", "content": ""}
"""Stored instead of messages that the thread stores."""


def _message(stored: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in stored.get("tool_calls", ()))
    return Message(**{**stored, "tool_calls": calls})


class ChatScope:
    """Determines, from the paths of steps, which of them receive the chat and the user's tools."""

    def __init__(self, graph: PreparedGraph) -> None:
        self._before: dict[tuple[str, ...], _Seen] = {}
        self._walk(graph, (), _NOTHING)

    def is_entry_agent(self, path: StepPath) -> bool:
        """Return whether no agent comes before the step in the flow."""
        seen = self._before.get(_place(path))
        return seen is not None and not seen & _AGENT

    def include_user_tools(self, path: StepPath) -> bool:
        """Return whether the step may use the user's tools.

        The step must be an entry agent with at least one chat start before it. All chat starts
        before it must permit the tools.
        """
        seen = self._before.get(_place(path), _NOTHING)
        return self.is_entry_agent(path) and bool(seen & _TOOLS) and not seen & _NO_TOOLS

    def _walk(self, graph: PreparedGraph, place: tuple[str, ...], before_graph: _Seen) -> _Seen:
        """Record the kinds of steps before each step; return those before the next step."""
        after: dict[str, _Seen] = {}
        incoming = graph.topology.incoming
        for step_id in graph.topology.order():
            sources = (after[edge.source] for edge in incoming.get(step_id, ()))
            before = before_graph.union(*sources)
            at = (*place, step_id)
            self._before[at] = before
            after[step_id] = before | self._marks_of(graph.steps[step_id], at, before)
        return before_graph.union(*after.values())

    def _marks_of(self, step: PreparedStep, place: tuple[str, ...], before: _Seen) -> _Seen:
        data = step.work.data
        marks = _AGENT if _has_agent(step.work) or _has_agent(step.fallback) else _NOTHING
        if isinstance(data, ChatStartData):
            marks |= _TOOLS if data.include_user_tools else _NO_TOOLS
        inner = getattr(data, "graph", None)
        if isinstance(inner, InnerGraph) and not hasattr(data, "over"):
            marks |= self._walk(inner.prepared, place, before)
        return marks


def _has_agent(work: BoundNode | InnerStep | None) -> bool:
    """Return whether a node is an agent or contains one."""
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
    """Return the IDs of the enclosing steps and the step itself, without attempt numbers."""
    return tuple(part.partition("~")[0] for part in path.text.split("/"))


def chat_services(chat: ChatInput, graph: PreparedGraph) -> Mapping[type, Any]:
    """Return the run services for a chat, keyed by type."""
    return {ChatInput: chat, ChatScope: ChatScope(graph)}


class ChatStartData(StepData):
    """Settings for the step at which a chat enters the graph."""

    include_user_tools: bool = Field(True, alias="includeUserTools")
    """Whether the tools that the user provides are offered to the agents after this step."""


class ChatStartNode:
    """Outputs the user's new message."""

    async def execute(
        self, data: ChatStartData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Return the newest chat message, or the step's input if the run is not part of a chat."""
        chat = context.services.get(ChatInput)
        text = inputs.get(DEFAULT_HANDLE) if chat is None else chat.messages[-1].content
        passed_inputs = {INPUTS: inputs[INPUTS]} if INPUTS in inputs else {}
        return ExecutionResult({DEFAULT_HANDLE: text, **passed_inputs})


def chat_start_type() -> NodeType:
    """Return the step type at which a chat enters a graph."""
    return NodeType(
        name=CHAT_START,
        description="The point at which a chat enters the graph. The output default has the user's"
        " newest message; inputs has the thread's values for the variables of its agent.",
        node=ChatStartNode(),
        data=ChatStartData,
        handles=Handles(
            flow_inputs=NONE,
            flow_outputs=frozenset({DEFAULT_HANDLE, INPUTS}),
            link_inputs=NONE,
            link_outputs=NONE,
        ),
    )
