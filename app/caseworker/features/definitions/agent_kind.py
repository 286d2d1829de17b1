"""The kind of runs ``agent``: its bodies, its view and its admission."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.fields import AgentOrName
from caseworker.features.definitions.graph_kind import GraphAdmission
from caseworker.features.definitions.registration import (
    Definition,
    ResolvedDefinition,
    RunnableGraph,
)
from caseworker.models.gateway import ModelGateway
from caseworker.models.ports import Incomplete
from caseworker.nodes.agent.definition import (
    MAX_MESSAGES,
    MAX_TOOLS,
    AgentDefinition,
    AgentInputError,
    ClientTool,
)
from caseworker.nodes.agent.node import INPUTS, MESSAGES
from caseworker.nodes.chat import CHAT_START
from caseworker.nodes.model_spec import ModelSpec
from caseworker.platform.http.bodies import STORABLE, BodyModel, DocumentedAs, View
from caseworker.platform.http.problems import Violation
from caseworker.runs.http.admission import Fields, KindApi, require_none
from caseworker.runs.http.body import BudgetBody, OfGraphs, RunFields
from caseworker.runs.http.fields import NonBlankText
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.http.views import RunDetails, UsedModel
from caseworker.runs.kinds import AGENT_STEP
from caseworker.runs.run import RunKind, RunRequest

_CHAT: Final = "chat"


class ChatMessage(BodyModel):
    """A message of a conversation."""

    role: Literal["user", "assistant"]
    content: Annotated[NonBlankText, STORABLE]


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


class AgentRunBody(RunFields):
    """An agent to run."""

    contains_graph = True
    kind: Literal["agent"]
    """Kind of the run."""
    agent: AgentOrName
    """An agent included in the request, or a reference to a registered one. The run keeps the agent
    as it was when it was accepted, including all agents among its tools."""
    input: Any = None
    """Request of the user: text, or any JSON value, which is passed to the agent as text. It
    follows ``messages``."""
    messages: Messages | None = None
    """Messages of the previous conversation, oldest first."""
    inputs: dict[str, Any] | None = None
    """Values for the variables that the agent declares, by name."""
    model: ModelSpec | None = None
    """Model that replaces the agent's ``model`` completely."""
    client_tools: Annotated[list[ClientTool], Field(max_length=MAX_TOOLS)] | None = None
    """Tools that the client executes, in addition to those of the agent."""
    budget: BudgetBody | None = None
    """Limits for the run; each one defaults to the service's ceiling."""
    graph: OfGraphs = None


class AgentFields(BodyModel):
    """Fields of an agent that resumes from another one, and of a graph."""

    agent: AgentOrName | None = None
    """Agent to use instead of the source run's, for example with another model."""
    model: ModelSpec | None = None
    """Model to use instead of the agent's."""
    messages: Messages | None = None
    """Conversation to use instead of the source run's, for example with an edited message."""
    inputs: dict[str, Any] | None = None
    """Values to use instead of the source run's, by input handle or by agent variable."""


class AgentError(View):
    """The error or stop that ended an agent early."""

    class_: str = Field(alias="class")
    """Class of the error or stop, such as ``ModelUnavailable``."""
    message: str


class AgentResult(View):
    """The result of an agent."""

    success: bool
    """Whether the agent finished on its own, without an error or a stop."""
    output: Any
    """Answer of the agent: text, or JSON that follows its output schema."""
    output_valid: bool | None
    """Whether the answer follows the output schema; null if there is no schema or no answer."""
    raw_content: str
    """Text of the answer exactly as the model wrote it."""
    terminate_reason: (
        Literal[
            "goal",
            "error",
            "incomplete",
            "timeout",
            "max_turns",
            "aborted",
            "budget",
            "requires_action",
        ]
        | None
    )
    error: AgentError | None = None
    """Error or stop that ended the agent; null if it reached its ``goal``."""
    incomplete: Incomplete | None = None
    """Reason why ``raw_content`` is incomplete; null if it is complete."""
    incomplete_reason: str | None = None
    """Explanation by the provider or model, such as the text of a refusal; null if there is
    none."""
    turn_count: int
    models: list[UsedModel] = Field(default_factory=list)
    """Models that answered the agent's calls."""
    messages: list[dict[str, Any]]
    """Messages of the conversation, oldest first. The oldest ones are omitted if the conversation
    exceeds the size limits, and in a thread those before the question."""
    messages_left_out: int | None = None
    """Number of older messages that were omitted; absent if none were."""


class AgentRun(RunDetails):
    """A run of an agent, with its result."""

    kind: Literal[RunKind.AGENT]
    result: Annotated[dict[str, Any], DocumentedAs(AgentResult)] | None
    """Result of the agent; partial if the run ended early, null before there is one."""


class AgentAdmission(GraphAdmission):
    """Validates request bodies of kind ``agent`` and converts them to runs."""

    kind = RunKind.AGENT

    def fields_of(self, request: RunRequest, overrides: Mapping[str, Any]) -> Fields:
        """Return the agent, its conversation and the values of its variables."""
        return {
            "agent": agent_of(request.graph or {}),
            "input": request.inputs.get(DEFAULT_HANDLE),
            "messages": request.inputs.get(MESSAGES),
            "inputs": request.inputs.get(INPUTS),
        }

    def chat_graph(
        self,
        definition: Mapping[str, Any],
        stored_definition: Definition | None,
        *,
        with_inputs: bool,
    ) -> dict[str, Any]:
        """Return a graph whose first step is the agent and whose second step provides the thread.

        An unknown agent raises no error here; graph validation reports it with all other problems.
        """
        ref = None if stored_definition is None else stored_definition.head
        agent = dict(definition) if ref is None else {"name": ref.name, "version": ref.version}
        edges = [
            {
                "source": _CHAT,
                "target": AGENT_STEP,
                "source_handle": handle,
                "target_handle": handle,
                "data": {"channel": "flow"},
            }
            for handle in (DEFAULT_HANDLE, *((INPUTS,) if with_inputs else ()))
        ]
        steps = [
            {"id": AGENT_STEP, "type": AGENT_STEP, "data": {AGENT_STEP: agent}},
            {"id": _CHAT, "type": CHAT_START, "data": {}},
        ]
        return {"steps": steps, "edges": edges}

    def by_handle(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the agent's variables as one dict on the ``inputs`` handle."""
        return {INPUTS: inputs} if inputs else {}

    def unfit_values(
        self, graph: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> Iterator[Violation]:
        """Yield a violation for each of the ``inputs`` that the graph's agent does not accept."""
        if not inputs and not agent_of(graph).get("inputs"):
            return
        try:
            _parsed(graph).values_of(inputs)
        except AgentInputError as error:
            for place, message in error.faults:
                yield Violation(f"inputs.{place}", message)

    def _inputs(self, body: Any) -> Mapping[str, Any]:
        messages = [message.model_dump() for message in body.messages or ()]
        return {**super()._inputs(body), **({MESSAGES: messages} if messages else {})}

    async def _runnable(
        self, body: Any, tenant: str, *, remembers: bool
    ) -> tuple[RunnableGraph, ResolvedDefinition | None]:
        runnable, resolved = await super()._runnable(body, tenant, remembers=remembers)
        require_none(list(self._input_violations(body, runnable.graph)))
        return runnable, resolved

    def _changed(self, body: Any, definition: Mapping[str, Any]) -> Mapping[str, Any]:
        changed = dict(definition)
        if body.model is not None:
            changed["model"] = body.model.model_dump(exclude_unset=True)
        if body.client_tools:
            tools = [{"client": tool.model_dump(exclude_unset=True)} for tool in body.client_tools]
            changed["tools"] = [*(definition.get("tools") or ()), *tools]
        return changed

    def _violations(self, body: Any) -> Iterator[Violation]:
        yield from super()._violations(body)
        if body.model is not None:
            yield from (Violation(*fault) for fault in body.model.faults(self._models))

    def _input_violations(
        self, body: AgentRunBody, graph: Mapping[str, Any]
    ) -> Iterator[Violation]:
        """Yield violations in the input, messages and variables."""
        messages, input_ = body.messages or [], body.input
        if isinstance(input_, str) and not input_.strip():
            yield Violation("input", "The input must not be blank.")
        elif input_ is None and not messages:
            yield Violation("input", "An agent run requires input or messages.")
        elif input_ is None and "user" not in (
            *(each.role for each in messages),
            *(each.role for each in _parsed(graph).prompt.messages),
        ):
            yield Violation("messages", "At least one message must have the role user.")
        yield from self.unfit_values(graph, body.inputs or {})


def agent_of(graph: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the agent in the first step of a graph."""
    agent: Mapping[str, Any] = graph["steps"][0]["data"][AGENT_STEP]
    return agent


def _parsed(graph: Mapping[str, Any]) -> AgentDefinition:
    return AgentDefinition.model_validate(agent_of(graph))


AGENT_EXAMPLE: Final[Mapping[str, Any]] = {
    "name": "cashier",
    "description": "Calculates the cost of an order.",
    "prompt": {"system": "You are the cashier of ${shop}. Calculate with tools, never by heart."},
    "inputs": {"shop": {"type": "string", "description": "The name of the shop."}},
    "tools": ["calculator"],
    "limits": {"max_turns": 6, "timeout_ms": 60_000, "budget": {"max_cost_usd": 0.05}},
}

_EXAMPLES: Final = {
    "agent": {
        "summary": "An inline agent",
        "value": {
            "kind": "agent",
            "agent": AGENT_EXAMPLE,
            "input": "What do 3 at 4.20 and 2 at 11.50 cost together?",
            "inputs": {"shop": "Corner Books"},
        },
    },
    "registered agent": {
        "summary": "A registered agent, referenced by name, with conversation history",
        "value": {
            "kind": "agent",
            "agent": {"name": "cashier", "version": 2},
            "messages": [
                {"role": "user", "content": "What do 3 at 4.20 cost?"},
                {"role": "assistant", "content": "12.60"},
                {"role": "user", "content": "And 2 more?"},
            ],
            "inputs": {"shop": "Corner Books"},
        },
    },
}

AGENT_API: Final = KindApi(
    kind=RunKind.AGENT,
    body=AgentRunBody,
    view=AgentRun,
    admission=lambda services: AgentAdmission(
        services.service(ApiLimits),
        services.service(Definitions),
        services.service(ModelGateway).table,
    ),
    resume=AgentFields,
    examples=_EXAMPLES,
)
