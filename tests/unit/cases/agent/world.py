"""A run of one case with real limits, calls, tools and journal; only the models are scripted."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.retry import ONE_ATTEMPT, RetryPolicy
from caseworker.core.budget.usage import NOTHING, Charge, ResourceUsage
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import WORKER_LOST
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.context import RunContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.ports import CallOutcome, Entry, Recorded
from caseworker.engine.report import GraphOutcome
from caseworker.engine.step_path import StepPath
from caseworker.models.gateway import ChatModel, ModelGateway, Tier
from caseworker.models.ports import ModelError, ModelReply, ModelRequest, TokenUsage
from caseworker.models.pricing import TokenPrice, no_list_price
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.node_type import RunFacts
from caseworker.nodes.toolset import toolset_type
from caseworker.runs.journal.replay import reopened
from caseworker.tools.ports import Tool, ToolContext, ToolResult, ToolSpec
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker_cases.agent.case import CaseDefaults
from caseworker_cases.agent.node import CaseNode, type_of
from caseworker_cases.agent.operation import Reading
from caseworker_cases.agent.verifier import DeterministicTools
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.dates.reader import DateReader
from caseworker_cases.tools.respond import Respond
from tests.support.graph_invariants import violations
from tests.support.limits import case_defaults, retry_policy, tier_model, tool_dispatch
from tests.support.planning import told

NOW = "2025-09-08T23:30:00+00:00"
TOKENS_IN, TOKENS_OUT = 100, 20
PRICE = TokenPrice(usd_per_million_in=Decimal(1000), usd_per_million_out=Decimal(1000))
"""At this price, a scripted call costs 0.12 dollars."""

Reply = str | ModelReply | Exception | Callable[[], Awaitable[str]]


def plan(*actions: tuple[str, Mapping[str, Any]]) -> str:
    """Return a planner's reply with these actions."""
    return json.dumps({"actions": [{"tool": tool, "args": args} for tool, args in actions]})


def calculate(expression: str) -> tuple[str, Mapping[str, Any]]:
    """Return a calculator action."""
    return "calculator", {"expression": expression}


def respond(answer: str) -> tuple[str, Mapping[str, Any]]:
    """Return a respond action."""
    return "respond", {"answer": answer}


def cannot(reason: str = "I do not understand the question.") -> str:
    """Return a planner's refusal."""
    return json.dumps({"cannot": reason})


def provider_down() -> ModelError:
    """Return a permanent failure of an attempt."""
    return ModelError("The provider refused.", retryable=False, status=500)


@dataclass
class ScriptedModel:
    """A ModelProvider that returns scripted replies and records its requests."""

    replies: list[Reply]
    external: bool = False
    name: str = "scripted"
    requests: list[ModelRequest] = field(default_factory=list)
    usage: TokenUsage = field(
        default_factory=lambda: TokenUsage(tokens_in=TOKENS_IN, tokens_out=TOKENS_OUT)
    )

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, ModelReply):
            return reply
        text = reply if isinstance(reply, str) else await reply()
        return ModelReply(text=text, model=model, usage=self.usage)

    async def aclose(self) -> None:
        """Do nothing; the model has no connection to close."""

    def document(self, index: int) -> dict[str, Any]:
        """Return the JSON document that a request shows to the planner."""
        return told((message.role, message.content) for message in self.requests[index].messages)

    @property
    def prompts(self) -> str:
        """All message texts that were sent to the model."""
        return "\n".join(m.content for request in self.requests for m in request.messages)


class Journal:
    """The journal of one run; it survives a second execution."""

    def __init__(self) -> None:
        self.requests: dict[str, Mapping[str, Any]] = {}
        self._entries: dict[str, tuple[str, Entry]] = {}
        self._earlier: dict[str, Recorded] = {}

    def recorded(self, call_key: str) -> Recorded | None:
        return self._earlier.get(call_key)

    def recorded_below(self, prefix: str) -> Mapping[str, Recorded]:
        return {}

    def remember(self, key: str, outcome: CallOutcome, value: Any) -> None:
        """Store a record of an earlier execution."""
        self._earlier[key] = Recorded(
            node_id="n000009", outcome=outcome, request_hash="", value=value
        )

    def note(self, node_id: str, entry: Entry) -> None:
        self._entries[entry.call_key] = node_id, entry

    @property
    def resumes(self) -> bool:
        return bool(self._earlier)

    def spent_below(self, path: StepPath) -> Charge:
        return NOTHING

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        self.requests[node_id] = request

    def touch(self) -> None:
        """Do nothing; all entries are stored already."""

    async def barrier(self, *, external: bool) -> None:
        await asyncio.sleep(0)

    def reopen(self) -> None:
        """Prepare a second execution, as after losing the worker just before the step's end."""
        self._earlier = {
            key: Recorded(
                node_id=node_id,
                outcome=_outcome(key, entry),
                request_hash=entry.request_hash,
                value=entry.value,
            )
            for key, (node_id, entry) in self._entries.items()
        }

    def spent(self) -> ResourceUsage:
        """Return the usage of all recorded calls."""
        usage = ResourceUsage()
        for _, entry in self._entries.values():
            usage.add(entry.charge)
        return usage


def _outcome(key: str, entry: Entry) -> CallOutcome:
    if key.startswith("step:"):
        return CallOutcome.UNKNOWN
    return entry.outcome or CallOutcome.UNKNOWN


class BrokenTool:
    """A tool that raises."""

    spec = ToolSpec(
        name="broken",
        description="Breaks.",
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        raise RuntimeError("the disk of alice@example.org is full")


class WaitingTool:
    """A tool that signals its call and then waits forever."""

    spec = ToolSpec(
        name="waiting",
        description="Waits.",
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
    )

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.called.set()
        await asyncio.Event().wait()
        return {}


@dataclass
class CaseRun:
    """One run with its models, tools, limits and journal."""

    small: ScriptedModel
    big: ScriptedModel
    fallback: ScriptedModel | None = None
    """The fallback of the small tier's model."""
    has_big: bool = True
    price: TokenPrice = PRICE
    models: ModelGateway | None = None
    """Replaces the scripted models and their prices."""
    budget: Budget = field(default_factory=Budget)
    view: Budget | None = None
    """The budget of a scope around the run's."""
    used_by_others: Charge = field(default_factory=dict)
    more_tools: Sequence[Tool] = ()
    deny: frozenset[str] = frozenset()
    tool_retry: RetryPolicy = ONE_ATTEMPT
    """The retry policy of tools with transient failures."""
    recomputed: Sequence[Tool] = field(default_factory=lambda: [Calculator()])
    reading: Reading = lambda question, expected: None
    """The built-in planner; by default it reads no question."""
    defaults: CaseDefaults = field(default_factory=lambda: case_defaults(timezone="UTC"))
    journal: Journal = field(default_factory=Journal)
    token: CancellationToken = field(default_factory=CancellationToken)
    trace: ExecutionGraph = field(default_factory=lambda: ExecutionGraph("run-1"))
    facts: RunFacts = field(default_factory=lambda: RunFacts(now=datetime.fromisoformat(NOW)))
    toolsets: Sequence[Sequence[str]] = ()
    """The tool names of each toolset that is linked to the case."""
    scope: Scope = field(init=False)

    async def run(
        self,
        question: str = "What is 6 times 7?",
        inputs: Mapping[str, Any] | None = None,
        **data: Any,
    ) -> GraphOutcome:
        """Execute the run; ``data`` holds further fields of the case's step.

        With ``inputs``, the inputs of the step, the question is a template.
        """
        asked = question.replace("${", "$${") if inputs is None else question
        view = Scope("around", self.view) if self.view else None
        name = "around/run" if view else "run"
        self.scope = Scope(name, self.budget, parent=view, usage=self.journal.spent())
        self.scope.add(self.used_by_others)
        root = self.trace.root_id or self.trace.create_root("run")
        self.trace.mark_running(root)
        context = RunContext(
            run_id="run-1",
            root=root,
            trace=self.trace,
            scope=self.scope,
            token=self.token,
            journal=self.journal,
            calls=Calls(
                graph=self.trace, journal=self.journal, token=self.token, jitter=lambda: 0.0
            ),
            services={RunFacts: self.facts},
        )
        graph = self._graph({"input": asked, **data})
        catalog = NodeCatalog([type_of(self._node()), toolset_type(self._tools())])
        prepared = catalog.prepare(graph, graph_id="g")
        outcome = await GraphExecution(prepared, inputs or {}, context).run()
        assert violations(self.trace.snapshot()) == []
        return outcome

    async def run_again(self, question: str = "What is 6 times 7?", **data: Any) -> GraphOutcome:
        """Execute the run again, as after losing its worker."""
        self.journal.reopen()
        self.trace.close_open(WORKER_LOST)
        self.trace = reopened(self.trace, str(self.trace.root_id))
        return await self.run(question, **data)

    def _graph(self, case: Mapping[str, Any]) -> dict[str, Any]:
        steps: list[Any] = [{"id": "answer", "type": "case", "data": case}]
        edges: list[Any] = []
        for number, names in enumerate(self.toolsets):
            steps.append({"id": f"t{number}", "type": "toolset", "data": {"tools": [*names]}})
            edges.append(
                {
                    "source": f"t{number}",
                    "source_handle": "tools",
                    "target": "answer",
                    "target_handle": "tools",
                    "data": {"channel": "link"},
                }
            )
        return {"steps": steps, "edges": edges}

    def _tools(self) -> list[str]:
        return ["calculator", "respond", *(tool.spec.name for tool in self.more_tools)]

    def _node(self) -> CaseNode:
        registry = ToolRegistry([Calculator(), Respond(), *self.more_tools])
        return CaseNode(
            models=self.models or self._gateway(),
            tools=tool_dispatch(registry, ToolPolicy(deny=self.deny), retry=self.tool_retry),
            recomputation=DeterministicTools(self.recomputed),
            reading=self.reading,
            dates=DateReader(),
            defaults=self.defaults,
            clock=lambda: datetime.now(UTC),
        )

    def _gateway(self) -> ModelGateway:
        def model(provider: ScriptedModel, name: str) -> ChatModel:
            return tier_model(provider=provider, model=f"{name}-1", price=self.price)

        stand_ins = () if self.fallback is None else (model(self.fallback, "fallback"),)
        small = replace(model(self.small, "small"), fallbacks=stand_ins)
        models: dict[str, ChatModel] = {Tier.SMALL: small}
        if self.has_big:
            models[Tier.BIG] = model(self.big, "big")
        return ModelGateway(
            models,
            no_list_price,
            retry_policy(max_retries=0),
        )


def world(small: Sequence[Reply] = (), big: Sequence[Reply] = (), **settings: Any) -> CaseRun:
    """Return a world in which the two models give these replies."""
    external = settings.pop("external", False)
    return CaseRun(
        small=ScriptedModel(list(small), external=external),
        big=ScriptedModel(list(big), external=external),
        **settings,
    )


def result_of(outcome: GraphOutcome) -> dict[str, Any]:
    """Return the result of the case, complete or partial."""
    result: dict[str, Any] = outcome.steps["answer"].outputs["result"]
    json.dumps(result)  # raises unless it can be stored
    return result


def events(result: Mapping[str, Any]) -> list[str]:
    """Return the events of the log, in order."""
    return [entry["event"] for entry in result["logs"] if "event" in entry]


def decisions(result: Mapping[str, Any]) -> list[str]:
    """Return the gate's decisions with their reasons, in order."""
    return [
        f"{entry['decision']}: {entry['reason']}" for entry in result["logs"] if "decision" in entry
    ]


class Source:
    """A tool that returns one of the given results per attempt and records the times."""

    def __init__(self, *results: ToolResult | None, **spec: Any) -> None:
        """Store the results; None makes an attempt wait forever."""
        settings = {"transient": frozenset({"source_unavailable"}), "timeout_seconds": 2.0, **spec}
        self.spec = ToolSpec(
            name="source",
            description="Looks a number up.",
            parameters={"type": "object", "additionalProperties": False, "properties": {}},
            **settings,
        )
        self._results = list(results)
        self.asked_at: list[float] = []

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the next result."""
        self.asked_at.append(asyncio.get_running_loop().time())
        result = self._results.pop(0)
        if result is None:
            await asyncio.Event().wait()
        return result or {}
