"""A step that asks a model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from caseworker.control.budget import MAX_LIMIT
from caseworker.engine.context import FlowContext, Outputs
from caseworker.engine.node import ExecutionResult
from caseworker.kernel.graph import DEFAULT_HANDLE
from caseworker.kernel.validation import Handles
from caseworker.llm.gateway import Completion, ModelAnswerIncomplete, ModelGateway
from caseworker.llm.ports import Message
from caseworker.llm.table import ModelTable
from caseworker.nodes.agent.definition import (
    AgentDefinition,
    LimitsSpec,
    OutputSpec,
    PromptSpec,
)
from caseworker.nodes.agent.execution import Agents, AgentTask
from caseworker.nodes.agent.node import RESULT
from caseworker.nodes.agent.state import AgentState
from caseworker.nodes.agent.unknown import unknown_models
from caseworker.nodes.model_spec import ModelSpec
from caseworker.nodes.node_type import NONE, Fault, NodeType, RunFacts
from caseworker.nodes.reading import StepData, TextField, refusal
from caseworker.nodes.reply_schema import ReplySchema, SchemaField, UnfitReplyError
from caseworker.nodes.templates import compact
from caseworker.nodes.toolset import TOOLS, Toolset, linked_tools
from caseworker.trace.frozen_json import ValueLimits

MAX_TURNS = 10
"""Of a step with tools: more is for agents."""

_ANSWER, _REPROMPT = "answer", "reprompt"
"""What the calls are named; their keys end so."""


class LlmData(StepData):
    """What a model is asked."""

    prompt: TextField
    """The user message."""
    system: TextField | None = None
    """The system message."""
    model: ModelSpec | None = None
    """Which model is asked, and how, as of an agent: ``{name, options}`` or ``{tier, options}``."""
    tier: Literal["small", "big"] | None = None
    """Short for ``model.tier``: small if left out."""
    output_schema: SchemaField | None = None
    """The answer is then JSON that follows this; a reply that does not is asked for once more."""
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """Short for ``model.options.max_output_tokens``."""
    allow_incomplete: bool = False
    """Whether an answer that is cut off, withheld, refused or empty is taken as it is."""
    seed: Annotated[int, Field(ge=-MAX_LIMIT - 1, le=MAX_LIMIT)] | None = None
    """Makes sampling repeatable where the provider supports it; left out, the run's own."""

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> Self:
        if self.model is not None and (self.tier is not None or self.max_output_tokens is not None):
            raise refusal("tier and max_output_tokens belong into model, where there is one.")
        return self

    @property
    def asked(self) -> ModelSpec:
        """Which model is asked, and how."""
        longest = self.max_output_tokens
        return self.model or ModelSpec(tier=self.tier or "small", max_output_tokens=longest)

    def messages(self, inputs: Outputs, limits: ValueLimits) -> list[Message]:
        """Return the messages with the values of the inputs; raises as templates do."""
        asked = [Message(role="user", content=self.prompt.render(inputs, limits))]
        if self.system is None:
            return asked
        return [Message(role="system", content=self.system.render(inputs, limits)), *asked]

    def agent(self) -> AgentDefinition:
        """Return the agent that the step is where tools are linked to it."""
        schema = self.output_schema
        return AgentDefinition(
            name="llm",
            prompt=PromptSpec(),
            model=self.asked,
            limits=LimitsSpec(max_turns=MAX_TURNS),
            output=None
            if schema is None
            else OutputSpec.model_construct(json_schema=schema, strict=True),
        )


class LlmNode:
    """Asks the model of its step, through the gateway and inside the limits of the run."""

    def __init__(self, agents: Agents) -> None:
        """Let ``agents`` work where tools are linked."""
        self._agents = agents

    async def execute(
        self, data: LlmData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Ask the model; its answer is the output ``default``.

        With tools that are linked it may take some turns: the model is asked again with the results
        of the calls that it wants.

        Raises:
            MissingValueError: the prompt has a place for which there is no value.
            ModelAnswerIncomplete: the answer is cut off, withheld, refused or empty.
            UnfitReplyError: the answer does not follow its schema, also when it was asked again.
            CallFailedError: the provider failed, its retries included.
            Stop: a limit or a cancel request keeps it from being asked, or ended it.
        """
        messages, schema = data.messages(inputs, context.limits), data.output_schema
        linked = await linked_tools(context)
        if linked is not None:
            return await self._with_tools(data, messages, linked, context)
        reply = await _ask(data, context, messages, _ANSWER)
        if schema is None:
            return ExecutionResult({DEFAULT_HANDLE: reply})
        try:
            answer = schema.read(reply)
        except UnfitReplyError as unfit:
            again = [*messages, *_complaint(reply, unfit, schema)]
            answer = schema.read(await _ask(data, context, again, _REPROMPT))
        return ExecutionResult({DEFAULT_HANDLE: answer})

    async def _with_tools(
        self, data: LlmData, messages: Sequence[Message], linked: Toolset, context: FlowContext
    ) -> ExecutionResult:
        task = AgentTask(definition=data.agent(), inputs={}, messages=messages, linked=linked)
        states: list[AgentState] = []

        def begun(state: AgentState) -> None:
            states.append(state)
            context.keep(lambda: _so_far(state, state.raw_content))

        try:
            await self._agents.run(task, context, begun)
        except ModelAnswerIncomplete:
            if not data.allow_incomplete:
                raise
            return ExecutionResult({DEFAULT_HANDLE: states[0].raw_content})
        return ExecutionResult({DEFAULT_HANDLE: states[0].output})


async def _ask(data: LlmData, context: FlowContext, messages: Sequence[Message], name: str) -> str:
    seed = context.service(RunFacts).seed if data.seed is None else data.seed
    schema = data.output_schema
    completion = await context.service(ModelGateway).complete(
        context,
        name=name,
        key=name,
        messages=messages,
        json_schema=None if schema is None else schema.schema,
        seed=seed,
        **data.asked.asked,
    )
    if not data.allow_incomplete:
        context.keep(lambda: _so_far(completion, completion.text))
        completion.require_complete()
    return completion.text


def _so_far(of: Completion | AgentState, text: str) -> dict[str, Any]:
    """Return what a step that fails has to show: its text, named as that of an agent."""
    about = {
        "incomplete": of.incomplete and of.incomplete.value,
        "incomplete_reason": of.incomplete_reason,
    }
    return {RESULT: {"raw_content": text, **about}}


def _complaint(reply: str, unfit: UnfitReplyError, schema: ReplySchema) -> list[Message]:
    asked = f"{unfit} Reply again, with nothing but JSON that follows {compact(schema.schema)}"
    return [Message(role="assistant", content=reply), Message(role="user", content=asked)]


def _unknown(data: Mapping[str, Any], models: ModelTable | None) -> Iterator[Fault]:
    model = data.get("model") or {"tier": data.get("tier") or "small"}
    for place, message in unknown_models(model, models):
        yield place if data.get("model") else "tier", message


def llm_type(agents: Agents) -> NodeType:
    """Return the type of steps that ask a model; ``agents`` work for those with linked tools."""
    return NodeType(
        name="llm",
        description="Asks a model. Its answer leaves on default: text, or JSON"
        " if there is an output_schema. Toolsets and agents linked to tools may be called by it.",
        node=LlmNode(agents),
        data=LlmData,
        handles=Handles(
            flow_outputs=frozenset({DEFAULT_HANDLE}),
            link_inputs=frozenset({TOOLS}),
            link_outputs=NONE,
        ),
        unknown=_unknown,
    )
