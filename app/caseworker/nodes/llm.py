"""The step type that calls a model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from caseworker.core.budget.budget import MAX_LIMIT
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.graph.validation import Handles
from caseworker.engine.context import ExecutionResult, FlowContext, Outputs
from caseworker.models.gateway import (
    Completion,
    LogicalCall,
    ModelAnswerIncomplete,
    ModelGateway,
)
from caseworker.models.ports import Message
from caseworker.models.table import ModelTable, Tier
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
from caseworker.nodes.reply_schema import ReplySchema, SchemaField, UnfitReplyError
from caseworker.nodes.strict_parsing import StepData, TextField
from caseworker.nodes.templates import compact
from caseworker.nodes.toolset import TOOLS, Toolset, linked_tools
from caseworker.platform.validation import refusal

MAX_TURNS = 10
"""Maximum number of turns of a step with tools. Use an agent for more."""

_ANSWER, _REPROMPT = "answer", "reprompt"
"""The names of the calls, also used in their keys."""


class LlmData(StepData):
    """The request that a step sends to a model."""

    prompt: TextField
    """Template of the user message."""
    system: TextField | None = None
    """Template of the system message; null means none."""
    model: ModelSpec | None = None
    """The model and its options, as in an agent: ``{name, options}`` or ``{tier, options}``."""
    tier: Literal["small", "big"] | None = None
    """Shorthand for ``model.tier``. Default: small."""
    output_schema: SchemaField | None = None
    """JSON Schema for the answer. A reply that violates it is requested once more. Null accepts any
    text."""
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """Shorthand for ``model.options.max_output_tokens``."""
    allow_incomplete: bool = False
    """Whether to accept an answer that is cut off, withheld, refused or empty."""
    seed: Annotated[int, Field(ge=-MAX_LIMIT - 1, le=MAX_LIMIT)] | None = None
    """Random seed that makes sampling repeatable if the provider supports it. Default: the run's
    seed."""

    @model_validator(mode="after")
    def _has_no_duplicate_settings(self) -> Self:
        if self.model is not None and (self.tier is not None or self.max_output_tokens is not None):
            raise refusal("tier and max_output_tokens must be set inside model if model is given.")
        return self

    @property
    def model_spec(self) -> ModelSpec:
        """The model to call, with its options."""
        longest = self.max_output_tokens
        return self.model or ModelSpec(tier=self.tier or "small", max_output_tokens=longest)

    @property
    def options_for_call(self) -> dict[str, Any]:
        """The model and its options as keyword arguments for the gateway."""
        if self.model is not None:
            return self.model.options_for_call
        return {"tier": Tier(self.tier or "small"), "max_output_tokens": self.max_output_tokens}

    def messages(self, inputs: Outputs, context: FlowContext) -> list[Message]:
        """Return the rendered messages.

        Raises:
            MissingValueError: the prompt refers to a value that does not exist.
            TooMuchTextError: the values are too large.
        """
        limits = context.limits
        user = [Message(role="user", content=self.prompt.render(inputs, limits))]
        if self.system is None:
            return user
        return [Message(role="system", content=self.system.render(inputs, limits)), *user]

    def agent(self) -> AgentDefinition:
        """Return the agent that executes the step if tools are linked to it."""
        schema = self.output_schema
        return AgentDefinition(
            name="llm",
            prompt=PromptSpec(),
            model=self.model_spec,
            limits=LimitsSpec(max_turns=MAX_TURNS),
            output=None
            if schema is None
            else OutputSpec.model_construct(json_schema=schema, strict=True),
        )


class LlmNode:
    """Calls a step's model through the gateway, within the limits of the run."""

    replays = True

    def __init__(self, agents: Agents) -> None:
        """Create the node; ``agents`` executes steps with linked tools."""
        self._agents = agents

    async def execute(
        self, data: LlmData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Call the model and put its answer on ``default``.

        With linked tools this may take several turns: the model is called again with the results of
        the tool calls that it requests.

        Raises:
            MissingValueError: the prompt refers to a value that does not exist.
            ModelAnswerIncomplete: the answer is cut off, withheld, refused or empty.
            UnfitReplyError: the answer violates its schema, even after it was requested again.
            CallFailedError: the provider failed after all retries.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        messages, schema = data.messages(inputs, context), data.output_schema
        linked = await linked_tools(context)
        if linked is not None:
            return await self._with_tools(data, messages, linked, context)
        reply = await _ask(data, context, messages, _ANSWER)
        if schema is None:
            return ExecutionResult({DEFAULT_HANDLE: reply})
        try:
            answer = schema.read(reply)
        except UnfitReplyError as unfit:
            correction = [*messages, *_complaint(reply, unfit, schema)]
            answer = schema.read(await _ask(data, context, correction, _REPROMPT))
        return ExecutionResult({DEFAULT_HANDLE: answer})

    async def _with_tools(
        self, data: LlmData, messages: Sequence[Message], linked: Toolset, context: FlowContext
    ) -> ExecutionResult:
        task = AgentTask(definition=data.agent(), inputs={}, messages=messages, linked=linked)
        states: list[AgentState] = []

        def on_start(state: AgentState) -> None:
            states.append(state)
            context.keep(lambda: _so_far(state, state.raw_content))

        try:
            await self._agents.run(task, context, on_start)
        except ModelAnswerIncomplete:
            if not data.allow_incomplete:
                raise
            return ExecutionResult({DEFAULT_HANDLE: states[0].raw_content})
        return ExecutionResult({DEFAULT_HANDLE: states[0].output})


async def _ask(data: LlmData, context: FlowContext, messages: Sequence[Message], name: str) -> str:
    options = data.options_for_call
    seed = context.service(RunFacts).seed if data.seed is None else data.seed
    schema = data.output_schema
    call = LogicalCall(
        name=name,
        key=name,
        messages=messages,
        json_schema=None if schema is None else schema.schema,
        seed=seed,
        **options,
    )
    completion = await context.service(ModelGateway).complete(context, call)
    if not data.allow_incomplete:
        context.keep(lambda: _so_far(completion, completion.text))
        completion.require_complete()
    return completion.text


def _so_far(of: Completion | AgentState, text: str) -> dict[str, Any]:
    """Return the partial result of a failed step, with the field names of an agent's result."""
    about = {
        "incomplete": of.incomplete and of.incomplete.value,
        "incomplete_reason": of.incomplete_reason,
    }
    return {RESULT: {"raw_content": text, **about}}


def _complaint(reply: str, unfit: UnfitReplyError, schema: ReplySchema) -> list[Message]:
    request = f"{unfit} Reply again, with nothing but JSON that follows {compact(schema.schema)}"
    return [Message(role="assistant", content=reply), Message(role="user", content=request)]


def _unknown(data: Mapping[str, Any], models: ModelTable | None) -> Iterator[Fault]:
    model = data.get("model") or {"tier": data.get("tier") or "small"}
    for place, message in unknown_models(model, models):
        yield place if data.get("model") else "tier", message


def llm_type(agents: Agents) -> NodeType:
    """Return the step type that calls a model; ``agents`` executes steps with linked tools."""
    return NodeType(
        name="llm",
        description="Calls a model. The output default has the answer: text, or JSON if"
        " output_schema is set. The model may call toolsets and agents linked to the input tools.",
        node=LlmNode(agents),
        data=LlmData,
        handles=Handles(
            flow_outputs=frozenset({DEFAULT_HANDLE}),
            link_inputs=frozenset({TOOLS}),
            link_outputs=NONE,
        ),
        unknown=_unknown,
    )
