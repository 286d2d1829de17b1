"""Run agents from Python, without the service or a database."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from caseworker.core.budget.retry import RetryPolicy
from caseworker.core.budget.usage import ResourceUsage
from caseworker.core.graph.graph import DEFAULT_HANDLE, GraphStep, StepGraph
from caseworker.core.trace.payloads import REDACTED
from caseworker.engine.context import DEFAULT_GRACE_SECONDS, ExecutionContext
from caseworker.engine.events import Event
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.models.forms import StructuredOutput
from caseworker.models.gateway import ChatModel, ModelGateway, Tier
from caseworker.models.ports import ModelProvider
from caseworker.models.pricing import TokenPrice, no_list_price
from caseworker.models.speeds import DEFAULT_TOKENS_PER_SECOND
from caseworker.models.table import ModelTable
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.node import INPUTS, RESULT, AgentData, AgentNode
from caseworker.nodes.node_type import RunFacts
from caseworker.runtime_api.execution import EventCallback, GraphRun, execute
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import Tool
from caseworker.tools.registry import ToolPolicy, ToolRegistry

_STEP = "agent"
_RETRY = RetryPolicy(
    max_retries=2, initial_delay_seconds=0.5, backoff_factor=2.0, jitter=0.2, max_delay_seconds=30.0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The outcome of an agent. After a failure or stop, it holds the partial results."""

    success: bool
    output: Any
    """Answer of the agent: text, or JSON that follows its output schema."""
    output_valid: bool | None
    """Whether the answer follows the output schema; None if there is no schema or no answer."""
    raw_content: str
    """Text of the answer exactly as the model wrote it."""
    terminate_reason: str
    """Reason why the agent ended: ``goal``, ``error``, ``incomplete``, ``timeout``, ``max_turns``,
    ``aborted`` or ``budget``."""
    error: str | None
    """Message of the error or stop that ended the agent; None if it reached its ``goal``."""
    error_class: str | None
    """Class of the error or stop, such as ``ModelUnavailable``; None if the agent reached its
    ``goal``."""
    turn_count: int
    messages: list[dict[str, Any]]
    """Messages of the conversation, oldest first."""
    usage: ResourceUsage
    """Usage of the agent and of the agents that it called."""
    run: GraphRun
    """Run of the agent with its trace; ``run.explain()`` describes it."""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The agent's own tool calls in order, each as ``{name, arguments, result}``."""
        results = {one.get("tool_call_id"): one["content"] for one in self.messages}
        return [
            {
                "name": call["name"],
                "arguments": json.loads(call["arguments"] or "{}"),
                "result": json.loads(results.get(call["id"], "null")),
            }
            for message in self.messages
            for call in message.get("tool_calls", ())
        ]


async def run_agent(
    definition: AgentDefinition | Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    input: str | None = None,  # noqa: A002 - the word of the HTTP API
    provider: ModelProvider,
    model: str,
    price: TokenPrice | None = None,
    tools: Iterable[Tool] = (),
    context: ExecutionContext | None = None,
    on_event: Callable[[Event], None] | None = None,
    timeout_seconds: float = 120.0,
    max_output_tokens: int = 4096,
    temperature: float | None = None,
) -> AgentResult:
    """Run an agent and return its result, even if it failed or was stopped.

    ``inputs`` are the values of its prompt variables; ``input`` is the user's message. ``provider``
    serves ``model``, which is used if the definition names no model. A cost limit requires
    ``price``. ``context`` carries the budget, the deadline and the cancellation token. ``on_event``
    is called with each event as it happens: ``turn_start``, ``content_chunk``, ``tool_call_start``
    and so on, plus the events of steps and calls. ``timeout_seconds`` limits each model call.

    Raises:
        ValueError: the definition or the inputs are invalid.
        Stop: a limit or a cancellation took effect before the agent started.
    """
    if not isinstance(definition, AgentDefinition):
        definition = AgentDefinition.model_validate(definition)
    tier = ChatModel(
        provider=provider,
        model=model,
        max_output_tokens=max_output_tokens,
        largest_output_tokens=max_output_tokens,
        min_output_tokens=1,
        stream=True,
        tokens_per_second=DEFAULT_TOKENS_PER_SECOND,
        timeout_seconds=timeout_seconds,
        temperature=temperature,
        structured_output=StructuredOutput.AUTO,
        price=price,
        capabilities=(),
        provider_tools={},
    )
    table = ModelTable(dict.fromkeys(Tier, tier))
    table.allow_unlisted = True
    context = context or ExecutionContext()
    ran = await execute(
        _graph_of(definition, tools),
        context,
        grace_seconds=DEFAULT_GRACE_SECONDS,
        events=None if on_event is None else EventCallback(on_event),
        inputs={DEFAULT_HANDLE: input, INPUTS: dict(inputs or {})},
        services={
            ModelGateway: ModelGateway(table, no_list_price, _RETRY),
            RunFacts: RunFacts(now=datetime.now(UTC)),
        },
    )
    return _result_of(ran, context.usage)


def _graph_of(definition: AgentDefinition, tools: Iterable[Tool]) -> PreparedGraph:
    """Return a graph whose only step is an agent."""
    node = AgentNode(Agents(dispatch_of(tools), timezone="UTC", wrap_up_reserve=1))
    step = GraphStep(id=_STEP, type=_STEP)
    work = BoundNode(node, AgentData(agent=definition))
    shape = StepGraph(id=definition.name, steps=(step,))
    return PreparedGraph(shape, {_STEP: PreparedStep(step=step, work=work)})


def _result_of(ran: GraphRun, usage: ResourceUsage) -> AgentResult:
    result = ran.results.get(_STEP, {}).get(RESULT)
    if result is None:
        raise ran.error or ran.stop or RuntimeError("The agent has no result.")
    error = result["error"] or {"class": None, "message": None}
    values = {**result, "error": error["message"], "error_class": error["class"]}
    values |= {"run": ran, "usage": usage}
    return AgentResult(**{name: values[name] for name in AgentResult.__dataclass_fields__})


def dispatch_of(tools: Iterable[Tool]) -> ToolDispatch:
    """Return the dispatcher for tools, all of which are allowed."""
    return ToolDispatch(
        ToolRegistry(tuple(tools)),
        ToolPolicy(),
        payloads=REDACTED,
        retry=_RETRY,
        approval_timeout_seconds=0,
        wait_seconds=0,
        expose_errors=False,
    )
