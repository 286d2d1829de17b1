"""The step type ``agent``."""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from caseworker.engine.context import FlowContext, Outputs
from caseworker.engine.node import ExecutionResult
from caseworker.kernel.graph import DEFAULT_HANDLE
from caseworker.kernel.validation import Handles
from caseworker.llm.ports import Message
from caseworker.llm.table import ModelTable
from caseworker.nodes.agent.definition import (
    MAX_MESSAGES,
    AgentDefinition,
    AgentInputError,
    ToolUse,
)
from caseworker.nodes.agent.execution import Agents, AgentTask, text_of
from caseworker.nodes.agent.state import AgentState
from caseworker.nodes.agent.tools import LinkedAgent
from caseworker.nodes.agent.unknown import unknown_names
from caseworker.nodes.chat import ChatInput, ChatScope
from caseworker.nodes.node_type import Fault, NodeType
from caseworker.nodes.reading import JsonField, ObjectField, StepData
from caseworker.nodes.toolset import TOOLS, Toolset, linked_tools
from caseworker.trace.frozen_json import ValueLimits

RESULT = "result"
"""The output handle of the whole result; the output of the agent alone leaves on the default."""
INPUTS, MESSAGES = "inputs", "messages"
"""Input handles: the values of variables by name, and what was said before."""

MESSAGES_SHARE = 0.5
"""Of the largest value: as much of the messages is in the result."""


class AgentData(StepData):
    """Which agent, and what it is given."""

    agent: AgentDefinition
    """In full; one that is only named is put here when the graph is accepted."""
    input: JsonField | None = None
    """What it is asked; left out, the input ``default`` of the step. Text, or JSON as text."""
    inputs: ObjectField | None = None
    """The values of its variables; those of the input ``inputs`` of the step come before them."""

    def task(self, inputs: Outputs, limits: ValueLimits, linked: Toolset | None) -> AgentTask:
        """Return what the agent is to do; raises as templates do."""
        own = {} if self.inputs is None else self.inputs.render(inputs, limits)
        given = inputs.get(INPUTS)
        if given is not None and not isinstance(given, Mapping):
            raise AgentInputError([(INPUTS, "This must be a JSON object.")])
        asked = inputs.get(DEFAULT_HANDLE)
        if self.input is not None:
            asked = self.input.render(inputs, limits)
        said = _history(inputs.get(MESSAGES))
        if asked is not None and (text := text_of(asked)).strip():
            said.append(Message(role="user", content=text))
        return AgentTask(
            definition=self.agent, inputs={**own, **(given or {})}, messages=said, linked=linked
        )


class _Said(StepData):
    role: Literal["user", "assistant"]
    content: Annotated[str, Field(min_length=1)]


def _history(given: Any) -> list[Message]:
    """Return the messages that came on the handle.

    Raises:
        AgentInputError: they are none.
    """
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > MAX_MESSAGES:
        raise AgentInputError([(MESSAGES, f"This must be a list of at most {MAX_MESSAGES}.")])
    try:
        said = [_Said.model_validate(one) for one in given]
    except ValueError:
        problem = "Each message has a role, user or assistant, and a content, which is a text."
        raise AgentInputError([(MESSAGES, problem)]) from None
    return [Message(role=one.role, content=one.content) for one in said]


class AgentNode:
    """Executes the agent of its step, or makes it a tool for others."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def execute(
        self, data: AgentData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Let the agent work: its result is the output ``result``, its own output ``default``.

        Raises:
            AgentInputError: its inputs do not fit its definition.
            MissingValueError: a template has a place for which there is no value.
            Exception: what made it fail.
            Stop: a limit or a cancel request ended it. What it had by then is kept.
        """
        task = data.task(inputs, context.limits, await linked_tools(context))
        task = _in_chat(task, data, context)
        most = int(context.limits.max_value_bytes * MESSAGES_SHARE)
        named = _is_for_readers(context)
        state = await self._agents.run(
            task, context, lambda begun: context.keep(lambda: _outputs(begun, most, named=named))
        )
        return ExecutionResult(_outputs(state, most, named=named))

    async def materialize(
        self, data: AgentData, output_handle: str, context: FlowContext
    ) -> Toolset:
        """Return the agent as a tool."""
        inputs = {} if data.inputs is None else data.inputs.render({}, context.limits)
        agent = LinkedAgent(data.agent, await linked_tools(context), inputs)
        return Toolset(agents=(agent,))


def _in_chat(task: AgentTask, data: AgentData, context: FlowContext) -> AgentTask:
    """Give an entry agent the whole chat, and the user's tools if they are let through.

    What its step says that it is asked takes the place of the newest message.
    """
    chat = context.services.get(ChatInput)
    if chat is None or not context.service(ChatScope).is_entry_agent(context.path):
        return task
    said = chat.messages if data.input is None else (*chat.messages[:-1], *task.messages[-1:])
    definition = task.definition
    if chat.user_tools and context.service(ChatScope).include_user_tools(context.path):
        brought = [ToolUse.model_validate(tool) for tool in chat.user_tools]
        definition = definition.model_copy(update={"tools": [*definition.tools, *brought]})
    return replace(task, definition=definition, messages=said)


def _is_for_readers(context: FlowContext) -> bool:
    """Return whether nothing but the result of a stored run takes the outputs of a step.

    Readers of that get the messages that are named by their calls put back.
    """
    alone = not context.runtime.outgoing_edges(context.node_id)
    return alone and context.run.journal is not None and "/" not in context.path.text


def _outputs(state: AgentState, max_bytes: int, *, named: bool) -> dict[str, Any]:
    outputs: dict[str, Any] = {RESULT: state.result(max_bytes, named=named)}
    if state.output_valid is False:
        outputs[DEFAULT_HANDLE] = state.raw_content
    elif state.output is not None:
        outputs[DEFAULT_HANDLE] = state.output
    return outputs


def agent_type(
    agents: Agents,
    tools: Container[str],
    servers: Container[str] = (),
) -> NodeType:
    """Return the type of steps that execute agents.

    ``tools`` are those that may be used, ``servers`` the tool servers that are configured.
    """

    def unknown(data: Mapping[str, Any], models: ModelTable | None) -> list[Fault]:
        found = unknown_names(data.get("agent"), tools=tools, servers=servers, models=models)
        return [(f"agent.{place}", message) for place, message in found]

    return NodeType(
        name="agent",
        description="Lets an agent work: it asks a model, makes the calls of tools that the model"
        " wants, and so on until there is an answer. Its output leaves on default, everything known"
        " about it on result. Linked to others, it is a tool of theirs; toolsets and agents linked"
        " to tools are tools of its own.",
        node=AgentNode(agents),
        data=AgentData,
        handles=Handles(
            flow_outputs=frozenset({RESULT, DEFAULT_HANDLE}),
            link_inputs=frozenset({TOOLS}),
            link_outputs=frozenset({TOOLS}),
        ),
        unknown=unknown,
    )
