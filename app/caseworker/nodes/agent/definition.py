"""The agent definition that API clients submit, and its validation.

A definition is parsed strictly, once. Its prompt may contain ``${variable}``; the variables are the
inputs that the definition declares. Substituted values are never parsed as templates.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails

from caseworker.core.budget.budget import MAX_LIMIT, UNLIMITED, Budget
from caseworker.core.graph.problems import listed, quoted
from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS, ValueLimits
from caseworker.models.ports import Role
from caseworker.nodes.model_spec import ModelSpec
from caseworker.nodes.nesting import is_reference
from caseworker.nodes.node_type import Fault
from caseworker.nodes.reply_schema import SchemaField
from caseworker.nodes.strict_parsing import HandleName, StepData, TextField, read_by
from caseworker.nodes.templates import TextTemplate
from caseworker.platform.validation import refusal, validation_message
from caseworker.tools.caller_schema import CallerSchema

MAX_REPORTED = 100
"""Maximum number of invalid fields that are reported: comparing an unknown name takes 0.1 ms."""
MAX_DEPTH = 8
"""Maximum nesting depth of agents, including the outermost one."""
DEFAULT_MAX_TURNS = 20
MAX_TOOLS = 128
MAX_MESSAGES = 1000
MIN_WINDOW_TOKENS = 256
FINISH = "finish"
"""Name of the tool that a model calls to give its answer and end its work."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def _agent_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise refusal(
            "An agent name has 1 to 64 of the characters A-Z a-z 0-9 _ - and starts with a"
            " letter or a digit."
        )
    return value


AgentName = Annotated[
    str, AfterValidator(_agent_name), Field(json_schema_extra={"pattern": f"^{_NAME.pattern}$"})
]
"""Name of an agent, which is also its name as a tool."""


class PromptMessage(StepData):
    """A message that precedes the agent's input in the prompt."""

    role: Literal["user", "assistant"]
    content: TextField


class PromptSpec(StepData):
    """The messages at the start of each of the agent's conversations."""

    system: TextField | None = None
    messages: Annotated[list[PromptMessage], Field(max_length=MAX_MESSAGES)] = Field(
        default_factory=list
    )

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], TextTemplate]]:
        """Yield each prompt template with its path in the definition."""
        if self.system is not None:
            yield ("system",), self.system
        for index, message in enumerate(self.messages):
            yield ("messages", index, "content"), message.content


class _SystemText(PromptSpec):
    """A prompt that was given as the text of its system message."""

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], TextTemplate]]:
        if self.system is not None:
            yield (), self.system


def _as_prompt(value: Any) -> Any:
    """Read a text as the system message of a prompt."""
    if isinstance(value, str):
        try:
            return _SystemText.model_validate({"system": value})
        except ValidationError as error:
            raise refusal(validation_message(error.errors(include_url=False)[0])) from None
    if not isinstance(value, Mapping | PromptSpec):
        raise refusal(
            "This must be the text of the system message, or an object such as"
            ' {"system": "You are …", "messages": []}.'
        )
    return value


class LimitsSpec(StepData):
    """Limits for one execution of the agent; the limits of its run apply as well."""

    max_turns: Annotated[int, Field(ge=0, le=MAX_LIMIT)] | None = DEFAULT_MAX_TURNS
    """Maximum number of turns. A turn is one model call with the tool calls that it requests. Null
    means that only the run limits the turns."""
    timeout_ms: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """Time limit in milliseconds. Work in progress when it expires is cut off. Null means no time
    limit."""
    budget: Budget | None = None

    @property
    def total_budget(self) -> Budget:
        """All limits except ``max_turns`` as one budget, including the time limit.

        ``max_turns`` counts only the agent's own turns. A turn limit in the budget also counts the
        turns of the agents that it calls.
        """
        seconds = None if self.timeout_ms is None else self.timeout_ms / 1000
        limits = self.budget or UNLIMITED
        return limits if seconds is None else limits.merged_with(Budget(max_seconds=seconds))


class AgentReference(StepData):
    """A reference to a registered agent."""

    name: AgentName
    version: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """Version number of the agent; null means the newest version."""


def _read_agent(value: Any) -> "AgentDefinition | AgentReference":
    if not isinstance(value, Mapping):
        raise refusal("This must be an agent, or a reference of the form {name, version}.")
    kind = AgentReference if is_reference(value) else AgentDefinition
    return kind.model_validate(dict(value))


def as_use(value: Any) -> Any:
    """Normalise an entry in the tool list; a string becomes an entry that names a tool."""
    return {"tool": value} if isinstance(value, str) else value


_AGENT_SCHEMA = WithJsonSchema({"type": "object", "description": "An agent, or its name."})


def _client_tool_name(value: str) -> str:
    if not _TOOL_NAME.fullmatch(value) or value == FINISH:
        raise refusal(
            "The name of a client's tool has 1 to 64 of the characters A-Z a-z 0-9 _ -, and is not"
            f" {FINISH}."
        )
    return value


def _parameters(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("type") != "object":
        raise refusal("This must be a JSON Schema with type object.")
    try:
        CallerSchema(value)
    except ValueError as error:
        raise refusal(str(error)) from None
    return value


class ClientTool(StepData):
    """A tool that the client executes that created the run.

    A call of it waits until the client posts its result to
    ``/runs/{run_id}/calls/{call_id}/result``.
    """

    name: Annotated[str, AfterValidator(_client_tool_name)]
    description: Annotated[str, Field(max_length=10_000)] = ""
    """Description for the model: the purpose of the tool and its result."""
    parameters: Annotated[dict[str, Any], AfterValidator(_parameters)] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """JSON Schema (type object) for the arguments; calls with other arguments are returned to the
    model. Default: no arguments are described."""
    wait_seconds: Annotated[float, Field(gt=0, le=MAX_LIMIT)] | None = None
    """Time limit for a result in seconds. Default: ``tools.wait_seconds``."""
    on_expiry: Literal["error", "complete"] = "error"
    """Effect of a result that is not sent in time. With ``error`` the model reads that there is
    none; with ``complete`` the agent ends, with the terminate reason ``requires_action``."""


class ToolUse(StepData):
    """A tool list entry: one of ``tool``, ``toolset``, ``agent``, ``mcp``, ``client``."""

    tool: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of a tool, as listed by GET /tools."""
    toolset: Literal["all"] | None = None
    """Name of a predefined set of tools; ``all`` is every permitted tool."""
    agent: Annotated[Any, read_by(_read_agent), _AGENT_SCHEMA] = None
    """An agent to use as a tool: a definition, or ``{name, version}`` of a registered agent."""
    mcp: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Name of a configured MCP server whose tools the agent may call."""
    allow: Annotated[list[str], Field(max_length=MAX_TOOLS)] | None = None
    """Allowlist for the MCP server's tools, by the names that the server uses. Null allows all of
    its tools."""
    client: ClientTool | None = None
    """A tool that the client of the run executes."""
    requires_approval: bool = False
    """Whether a person must approve each call of the entry's tools before it is made."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> "ToolUse":
        choices = ("tool", "toolset", "agent", "mcp", "client")
        if sum(getattr(self, name) is not None for name in choices) != 1:
            raise refusal("Set exactly one of tool, toolset, agent, mcp and client.")
        if self.allow is not None and self.mcp is None:
            raise refusal("allow is only permitted together with mcp.")
        if self.requires_approval and self.agent is not None:
            raise refusal(
                "requires_approval applies to tools: set it in the agent's own tool list."
            )
        return self

    @property
    def definition(self) -> "AgentDefinition | None":
        """The embedded agent definition; None if this entry has none."""
        return self.agent if isinstance(self.agent, AgentDefinition) else None


ToolUses = Annotated[list[Annotated[ToolUse, BeforeValidator(as_use)]], Field(max_length=MAX_TOOLS)]

Kind = Literal["string", "number", "integer", "boolean", "array", "object"]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class InputSpec(StepData):
    """Declaration of a prompt variable."""

    type: Kind
    description: Annotated[str, Field(max_length=1000)] = ""
    required: bool = True
    """Whether a value must be given. An optional variable without a value is empty in the
    prompt."""
    default: Any = None
    """Value of the variable if none is given; null means no default."""

    @property
    def has_default(self) -> bool:
        """Whether there is a default; null counts as no default."""
        return self.default is not None

    def fits(self, value: Any) -> bool:
        """Return whether a value has the declared type."""
        if isinstance(value, bool) and self.type != "boolean":
            return False
        return isinstance(value, _TYPES[self.type])

    @property
    def schema_of_value(self) -> dict[str, Any]:
        """JSON Schema for the variable's value."""
        described = {"description": self.description} if self.description else {}
        return {"type": self.type, **described}


class OutputSpec(StepData):
    """The required format of the answer."""

    json_schema: SchemaField = Field(alias="schema")
    strict: bool = False
    """Whether the run fails if the answer still violates the schema after it was requested
    again."""


class ConversationSpec(StepData):
    """How to handle conversations that exceed a token limit."""

    max_tokens: Annotated[int, Field(ge=MIN_WINDOW_TOKENS, le=MAX_LIMIT)] | None = None
    """Maximum estimated number of tokens to send in one call; null means unlimited."""
    policy: Literal["trim", "summarise", "refuse"] = "trim"
    """What to do if the limit is exceeded: ``trim`` drops the oldest messages, ``summarise`` has
    the model summarise them, and ``refuse`` fails."""


class AgentInputError(ValueError):
    """The inputs for an agent do not match its definition."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{place}: {message}" for place, message in faults[:3]))
        self.faults = tuple(faults)
        """Pairs of a field in the inputs and a message."""


class AgentDefinition(StepData):
    """The definition of an agent."""

    name: AgentName
    description: Annotated[str, Field(max_length=2000)] = ""
    """Description for people, and for models that may call the agent as a tool."""
    prompt: Annotated[
        PromptSpec, BeforeValidator(_as_prompt, json_schema_input_type=str | PromptSpec)
    ]
    """The text of the system message, or an object with ``system`` and ``messages``."""
    model: ModelSpec = Field(default_factory=ModelSpec)
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    tools: ToolUses = Field(default_factory=list)
    inputs: dict[HandleName, InputSpec] = Field(default_factory=dict)
    output: OutputSpec | None = None
    conversation: ConversationSpec = Field(default_factory=ConversationSpec)
    code: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of an installed code agent, which is run instead of a model with tools; null means
    none."""
    version: Annotated[int, Field(ge=1)] | None = None
    """Version of the registered agent whose definition was copied here. It has no effect. Null if
    the definition was not copied."""

    @model_validator(mode="wrap")
    @classmethod
    def _holds_together(cls, data: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate the fields, then the references between them, even if fields are invalid."""
        faults: list[_Fault] = []
        try:
            agent = read(data)
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            fields = {one["loc"][0] for one in wrong if one["loc"]}
            if not isinstance(data, Mapping) or "inputs" in fields:
                raise
            faults = [(one["loc"], validation_message(one)) for one in wrong[:MAX_REPORTED]]
            readable = {name: value for name, value in data.items() if name not in fields}
            agent = read({"name": "unreadable", "prompt": {}, **readable})
        faults += [*agent._unknown_variables(), *agent._unfit_defaults(), *agent._repeated_tools()]
        if agent.code is not None:
            faults += agent._without_effect()
        if agent.depth > MAX_DEPTH:
            message = f"At most {MAX_DEPTH} levels of nested agents are allowed."
            faults.append((("tools",), message))
        if faults:
            raise _refused(faults)
        return agent

    @property
    def depth(self) -> int:
        """Nesting depth of agents: 1 for an agent that embeds no other agent."""
        return 1 + max((inner.depth for inner in self.sub_agents()), default=0)

    def sub_agents(self) -> "Iterator[AgentDefinition]":
        """Yield the agents that are embedded as tools."""
        yield from (one.definition for one in self.tools if one.definition is not None)

    def _without_effect(self) -> "Iterator[_Fault]":
        for name in ("model", "tools", "output", "conversation"):
            if name in self.model_fields_set:
                yield (name,), "This field has no effect on a code agent: leave it out."
        if any(True for _ in self.prompt.texts()):
            yield ("prompt",), "A code agent has no prompt: set it to {}."

    def _unknown_variables(self) -> "Iterator[_Fault]":
        for place, text in self.prompt.texts():
            unknown = dict.fromkeys(name for name in text.names if name not in self.inputs)
            if unknown:
                declared = listed(self.inputs) or "none"
                names = ", ".join(map(quoted, unknown))
                message = (
                    f"The variables {names} are not declared in inputs, which declares: {declared}."
                )
                yield ("prompt", *place), message

    def _unfit_defaults(self) -> "Iterator[_Fault]":
        for name, spec in self.inputs.items():
            if spec.has_default and not spec.fits(spec.default):
                yield ("inputs", name, "default"), f"This must be of type {spec.type}."

    def _repeated_tools(self) -> "Iterator[_Fault]":
        seen: set[str] = set()
        for index, use in enumerate(self.tools):
            name = use.tool or use.toolset or _name_of(use)
            if name in seen:
                yield (
                    ("tools", index),
                    f"Two tools have the name {quoted(name)}. Rename one of them.",
                )
            seen.add(name)

    def values_of(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for all prompt variables, from the given inputs and the defaults.

        Raises:
            AgentInputError: a value is missing, has the wrong type, or is not declared.
        """
        faults = [
            (name, f"The agent has no input {quoted(name)}; leave it out.")
            for name in inputs
            if name not in self.inputs
        ]
        values: dict[str, Any] = {}
        for name, spec in self.inputs.items():
            value = inputs.get(name)
            if value is not None and not spec.fits(value):
                faults.append((name, f"This must be of type {spec.type}."))
            elif value is None and spec.required and not spec.has_default:
                faults.append((name, "This input is required."))
            else:
                values[name] = _value(spec, value)
        if faults:
            raise AgentInputError(faults)
        return values

    def rendered(
        self, values: Mapping[str, Any], limits: ValueLimits = DEFAULT_VALUE_LIMITS
    ) -> list[tuple[Role, str]]:
        """Return role and text of each prompt message with the values inserted.

        Raises:
            MissingValueError: a template refers to a value that does not exist.
            TooMuchTextError: the values are too large.
        """
        prompt = self.prompt
        texts: list[tuple[Role, str]] = []
        if prompt.system is not None:
            texts.append(("system", prompt.system.render(values, limits)))
        texts += ((one.role, one.content.render(values, limits)) for one in prompt.messages)
        return texts


_Fault = tuple[tuple[str | int, ...], str]


def _name_of(use: ToolUse) -> str:
    """Return the name of an entry's agent, client's tool or MCP server."""
    if tool := use.agent or use.client:
        return str(tool.name)
    return f"mcp:{use.mcp}"


def _value(spec: InputSpec, value: Any) -> Any:
    if value is not None:
        return value
    return spec.default if spec.has_default else ""


def _refused(faults: Sequence[_Fault]) -> ValidationError:
    """Build a validation error with several locations, which pydantic preserves."""
    details: list[InitErrorDetails] = [
        {"type": refusal(message), "loc": place, "input": None} for place, message in faults
    ]
    return ValidationError.from_exception_data("agent", details)
