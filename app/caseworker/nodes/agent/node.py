"""The step type ``agent``."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.graph.validation import Handles
from caseworker.core.trace.frozen_json import ValueLimits
from caseworker.engine.context import ExecutionResult, FlowContext, Outputs
from caseworker.models.ports import Message
from caseworker.models.table import ModelTable
from caseworker.nodes.agent.definition import (
    MAX_MESSAGES,
    AgentDefinition,
    AgentInputError,
    ToolUse,
)
from caseworker.nodes.agent.execution import Agents, AgentTask, task_text
from caseworker.nodes.agent.state import AgentState
from caseworker.nodes.agent.tools import LinkedAgent
from caseworker.nodes.agent.unknown import unknown_names
from caseworker.nodes.chat import ChatInput, ChatScope
from caseworker.nodes.node_type import Fault, NodeType
from caseworker.nodes.strict_parsing import JsonField, ObjectField, StepData
from caseworker.nodes.toolset import TOOLS, Toolset, linked_tools

RESULT = "result"
"""Output handle for the full result. The default handle has only the agent's answer."""
INPUTS, MESSAGES = "inputs", "messages"
"""Input handles for the variable values by name, and for the earlier messages."""

MESSAGES_SHARE = 0.5
"""Maximum size of the messages in the result, as a fraction of the maximum size of a value."""


class AgentData(StepData):
    """The agent that a step executes, and its input."""

    agent: AgentDefinition
    """The agent definition. A reference to a registered agent is replaced by its definition when
    the graph is accepted."""
    input: JsonField | None = None
    """Input for the agent: text, or JSON that is sent as text. Default: the step's input
    ``default``."""
    inputs: ObjectField | None = None
    """Values for the agent's variables. The step's input ``inputs`` overrides them. Null means
    none."""

    def task(self, inputs: Outputs, limits: ValueLimits, linked: Toolset | None) -> AgentTask:
        """Build the agent's task from the step's inputs.

        Raises:
            AgentInputError: an input has the wrong type.
            MissingValueError: a template refers to a value that does not exist.
            TooMuchTextError: the values are too large.
        """
        rendered = {} if self.inputs is None else self.inputs.render(inputs, limits)
        run_inputs = inputs.get(INPUTS)
        if run_inputs is not None and not isinstance(run_inputs, Mapping):
            raise AgentInputError([(INPUTS, "This must be a JSON object.")])
        input_ = inputs.get(DEFAULT_HANDLE)
        if self.input is not None:
            input_ = self.input.render(inputs, limits)
        history = _history(inputs.get(MESSAGES))
        if input_ is not None and (text := task_text(input_)).strip():
            history.append(Message(role="user", content=text))
        return AgentTask(
            definition=self.agent,
            inputs={**rendered, **(run_inputs or {})},
            messages=history,
            linked=linked,
        )


class _HistoryMessage(StepData):
    role: Literal["user", "assistant"]
    content: Annotated[str, Field(min_length=1)]


def _history(value: Any) -> list[Message]:
    """Validate the messages from the input handle.

    Raises:
        AgentInputError: the value is not a list of messages.
    """
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_MESSAGES:
        raise AgentInputError([(MESSAGES, f"This must be a list of at most {MAX_MESSAGES}.")])
    try:
        history = [_HistoryMessage.model_validate(one) for one in value]
    except ValueError:
        problem = "Each message has a role, user or assistant, and a content, which is a text."
        raise AgentInputError([(MESSAGES, problem)]) from None
    return [Message(role=one.role, content=one.content) for one in history]


class AgentNode:
    """Executes the agent of a step, or offers it as a tool to other steps."""

    replays = True

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def execute(
        self, data: AgentData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Execute the agent; put its result on ``result`` and its output on ``default``.

        Raises:
            AgentInputError: its inputs do not match its definition.
            MissingValueError: a template refers to a value that does not exist.
            Exception: the agent failed.
            Stop: a limit or a cancel request ended it. The result so far is kept.
        """
        task = data.task(inputs, context.limits, await linked_tools(context))
        task = _in_chat(task, data, context)
        max_bytes = int(context.limits.max_value_bytes * MESSAGES_SHARE)
        outputs = partial(
            _outputs,
            max_bytes=max_bytes,
            with_references=_is_for_readers(context),
            only_new=_keeps_own(context),
        )
        state = await self._agents.run(
            task, context, lambda final_state: context.keep(lambda: outputs(final_state))
        )
        return ExecutionResult(outputs(state))

    async def materialize(
        self, data: AgentData, output_handle: str, context: FlowContext
    ) -> Toolset:
        """Return a toolset with the agent as a tool."""
        inputs = {} if data.inputs is None else data.inputs.render({}, context.limits)
        agent = LinkedAgent(data.agent, await linked_tools(context), inputs)
        return Toolset(agents=(agent,))


def _in_chat(task: AgentTask, data: AgentData, context: FlowContext) -> AgentTask:
    """Pass the whole chat to an entry agent, and the user's tools if the step permits them.

    If the step sets ``input``, it replaces the newest message.
    """
    chat = context.services.get(ChatInput)
    if chat is None or not context.service(ChatScope).is_entry_agent(context.path):
        return task
    history = chat.messages if data.input is None else (*chat.messages[:-1], *task.messages[-1:])
    definition = task.definition
    if chat.user_tools and context.service(ChatScope).include_user_tools(context.path):
        brought = [ToolUse.model_validate(tool) for tool in chat.user_tools]
        definition = definition.model_copy(update={"tools": [*definition.tools, *brought]})
    return replace(task, definition=definition, messages=history, memory=chat.memory)


def _is_for_readers(context: FlowContext) -> bool:
    """Return whether the step's outputs are used only in the result of a stored run.

    The reader of such a result resolves messages that refer to journaled calls.
    """
    alone = not context.runtime.outgoing_edges(context.node_id)
    return alone and context.run.journal is not None and "/" not in context.path.text


def _keeps_own(context: FlowContext) -> bool:
    """Return whether the full result of the step is used only in the result of the run."""
    edges = context.runtime.outgoing_edges(context.node_id, source_handle=RESULT)
    return not edges and "/" not in context.path.text


def _outputs(
    state: AgentState, *, max_bytes: int, with_references: bool, only_new: bool
) -> dict[str, Any]:
    outputs: dict[str, Any] = {
        RESULT: state.result(max_bytes, with_references=with_references, only_new=only_new)
    }
    if state.output_valid is False:
        outputs[DEFAULT_HANDLE] = state.raw_content
    elif state.output is not None:
        outputs[DEFAULT_HANDLE] = state.output
    return outputs


def agent_type(
    agents: Agents,
    tools: Collection[str],
    servers: Collection[str] = (),
) -> NodeType:
    """Return the step type that executes agents.

    ``tools`` contains the names of the permitted tools, ``servers`` those of the configured tool
    servers.
    """

    def unknown(data: Mapping[str, Any], models: ModelTable | None) -> list[Fault]:
        problems = unknown_names(
            data.get("agent"), tools=tools, servers=servers, models=models, code=agents.code
        )
        return [(f"agent.{place}", message) for place, message in problems]

    return NodeType(
        name="agent",
        description="Runs an agent: calls a model and the tools that the model requests, until"
        " the model answers. A code agent runs its function instead. The output default has the"
        " answer, result has the full result. If the step is linked to another step, it is a tool"
        " for that step. Toolsets and agents linked to its input tools are its own tools.",
        node=AgentNode(agents),
        data=AgentData,
        handles=Handles(
            flow_outputs=frozenset({RESULT, DEFAULT_HANDLE}),
            link_inputs=frozenset({TOOLS}),
            link_outputs=frozenset({TOOLS}),
        ),
        unknown=unknown,
    )
