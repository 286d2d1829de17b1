"""A graph run with the real engine, gateway and tools; only models and tools are scripted."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.ledger import Scope
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.frozen_json import ValueLimits
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.context import RunContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.events import Event
from caseworker.engine.report import GraphOutcome
from caseworker.main.agents import built_in_types
from caseworker.models.gateway import ModelGateway, Tier
from caseworker.models.pricing import no_list_price
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.function import BlockingPool, Function, FunctionNode
from caseworker.nodes.node_type import NodeType, RunFacts
from caseworker.tools.ports import Tool, ToolContext, ToolResult, ToolSpec
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker_cases.agent.node import CaseNode, type_of
from caseworker_cases.agent.verifier import DeterministicTools
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.dates.reader import DateReader
from caseworker_cases.tools.respond import Respond
from tests.support.graph_invariants import violations
from tests.support.limits import case_defaults, retry_policy, tier_model, tool_dispatch
from tests.unit.cases.agent.world import Journal, ScriptedModel

NOW = datetime(2025, 9, 8, 23, 30, tzinfo=UTC)


def step(step_id: str, kind: str, data: Mapping[str, Any] | None = None, **more: Any) -> Any:
    return {"id": step_id, "type": kind, "data": dict(data or {}), **more}


def flow(source: str, target: str, handle: str = "default", into: str = "default") -> Any:
    return {
        "source": source,
        "source_handle": handle,
        "target": target,
        "target_handle": into,
        "data": {"channel": "flow"},
    }


def link(source: str, target: str, handle: str = "tools", into: str = "tools") -> Any:
    return {**flow(source, target, handle, into), "data": {"channel": "link"}}


def graph(*parts: Any, **more: Any) -> dict[str, Any]:
    """Return a graph of these steps and edges."""
    steps = [part for part in parts if "id" in part]
    return {"steps": steps, "edges": [part for part in parts if "id" not in part], **more}


class EchoTool:
    """A Tool that returns its arguments and its run context."""

    spec = ToolSpec(
        name="echo",
        description="Says what it was told.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "properties": {"say": {"type": "string"}, "times": {"type": "integer"}},
            "required": ["say"],
        },
    )

    def __init__(self) -> None:
        self.contexts: list[ToolContext] = []

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.contexts.append(context)
        if args["say"] == "fail":
            return {"error": "It would not say so to alice@example.org.", "code": "unsaid"}
        return {"said": args["say"], "times": args.get("times", 1)}


@dataclass
class NodeRun:
    """A process and the one run that it executes."""

    small: ScriptedModel = field(default_factory=lambda: ScriptedModel([]))
    big: ScriptedModel = field(default_factory=lambda: ScriptedModel([]))
    functions: Sequence[FunctionNode] = ()
    more_tools: Sequence[Tool] = ()
    deny: frozenset[str] = frozenset()
    budget: Budget = field(default_factory=Budget)
    facts: RunFacts = field(default_factory=lambda: RunFacts(now=NOW))
    services: dict[type, Any] = field(default_factory=dict)
    echo: EchoTool = field(default_factory=EchoTool)
    journal: Journal = field(default_factory=Journal)
    limits: ValueLimits | None = None
    wrap_up_reserve: int = 1
    expose_errors: bool = False
    token: CancellationToken = field(default_factory=CancellationToken)
    told: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        registry = ToolRegistry([Calculator(), Respond(), self.echo, *self.more_tools])
        self.tools = tool_dispatch(
            registry, ToolPolicy(deny=self.deny), expose_errors=self.expose_errors
        )
        models = {Tier.SMALL: self.small, Tier.BIG: self.big}
        self.gateway = ModelGateway(
            {tier: tier_model(provider=model, model=tier.value) for tier, model in models.items()},
            no_list_price,
            retry_policy(max_retries=0),
        )
        self.types = self._types()
        self.catalog = NodeCatalog(self.types)

    def _types(self) -> tuple[NodeType, ...]:
        case = CaseNode(
            models=self.gateway,
            tools=self.tools,
            recomputation=DeterministicTools([Calculator()]),
            reading=lambda question, expected: None,
            dates=DateReader(),
            defaults=case_defaults(timezone="UTC"),
            clock=lambda: datetime.now(UTC),
        )
        built_in = built_in_types(
            self.tools,
            self.functions,
            timezone="Europe/Berlin",
            wrap_up_reserve=self.wrap_up_reserve,
        )
        return (*built_in, type_of(case))

    def context(self) -> RunContext:
        """Return the context that the steps of the run share."""
        self.trace = ExecutionGraph("run-1")
        root = self.trace.create_root("run")
        self.trace.mark_running(root)
        self.scope = Scope("run", self.budget)
        return RunContext(
            run_id="run-1",
            root=root,
            trace=self.trace,
            scope=self.scope,
            token=self.token,
            journal=self.journal,
            limits=self.limits,
            calls=Calls(
                graph=self.trace, journal=self.journal, token=self.token, jitter=lambda: 0.0
            ),
            events=self,
            services={
                RunFacts: self.facts,
                ModelGateway: self.gateway,
                BlockingPool: BlockingPool(2),
                **self.services,
            },
        )

    def emit(self, event: Event) -> None:
        self.told.append(event)

    def execution(self, of: Mapping[str, Any], **inputs: Any) -> GraphExecution:
        """Return an execution of the graph; ``inputs`` are those of the run."""
        return GraphExecution(self.catalog.prepare(of, graph_id="g"), inputs, self.context())

    async def run(self, of: Mapping[str, Any], **inputs: Any) -> GraphOutcome:
        """Execute a graph."""
        outcome = await self.execution(of, **inputs).run()
        assert violations(self.trace.snapshot()) == []
        return outcome

    async def value(self, of: Mapping[str, Any], step_id: str, **inputs: Any) -> Any:
        """Execute a graph and return the default output of a step."""
        return (await self.run(of, **inputs)).steps[step_id].outputs["default"]

    async def failure(self, of: Mapping[str, Any], **inputs: Any) -> Exception:
        """Execute a graph that fails, and return its error."""
        outcome = await self.run(of, **inputs)
        assert outcome.error is not None, outcome
        return outcome.error

    def places(self, of: Any) -> list[str]:
        """Return the paths of a graph's problems."""
        return [problem.place for problem in self.catalog.examine(of)[1]]

    def began(self) -> list[str]:
        """Return the paths of the started steps, in order."""
        return [e.step_id or "" for e in self.told if e.type == "step.started"]


def function(name: str, **settings: Any) -> Callable[[Function], FunctionNode]:
    """Register a function as a node: ``@function("twice")``."""
    return lambda fn: FunctionNode(name, fn, **settings)


async def settle_down() -> None:
    """Let all tasks that are ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
