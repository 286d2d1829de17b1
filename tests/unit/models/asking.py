"""A model gateway over real provider clients and the fake provider, all on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

from caseworker.core.budget.budget import Budget
from caseworker.core.trace.node import TraceNode
from caseworker.engine.context import FlowContext, RunContext
from caseworker.engine.ports import CallOutcome, Recorded
from caseworker.engine.step_path import StepPath
from caseworker.models.gateway import ChatModel, Completion, LogicalCall, ModelGateway, Tier
from caseworker.models.ports import Message
from caseworker.models.pricing import ListPrice, TokenPrice, no_list_price
from caseworker.models.table import ModelTable
from caseworker.models.turns import Turns
from caseworker.models.wires.anthropic import anthropic_provider
from caseworker.models.wires.openai import openai_provider
from tests.support.fake_provider.script import Step
from tests.support.fake_provider.virtual import VirtualProvider
from tests.support.limits import retry_policy, tier_model
from tests.support.seeded_loop import SeededLoop, play
from tests.unit.engine.gateway import Gateway, MemoryJournal

QUESTION = (Message(role="system", content="Plan."), Message(role="user", content="Why?"))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
ENDPOINT = "http://models.test/v1"


def priced(model: str, dollars: int = 1, **settings: Any) -> ChatModel:
    """Return a model that costs `dollars` per token, for input and for output."""
    million = Decimal(dollars) * 1_000_000
    price = TokenPrice(usd_per_million_in=million, usd_per_million_out=million)
    return unpriced(model, price=price, **settings)


def unpriced(model: str, **settings: Any) -> ChatModel:
    """Return a model without a configured price; the story sets its provider."""
    return tier_model(**{"provider": None, "model": model, **settings})


def chain(*models: ChatModel) -> ChatModel:
    """Return the first model with the other models as its fallbacks."""
    return replace(models[0], fallbacks=models[1:])


@dataclass
class Asking:
    """One run whose single step calls the small tier; create it inside a story."""

    tier: ChatModel
    flavour: str = "openai"
    budget: Budget = field(default_factory=Budget)
    draws: Sequence[float] = ()
    list_price: ListPrice = no_list_price
    provider: VirtualProvider = field(default_factory=VirtualProvider)
    turns: Turns | None = None

    def __post_init__(self) -> None:
        self.restart()
        self.begin()

    def restart(self) -> None:
        """Replace the gateway with a new one, as after a process restart."""
        build = openai_provider if self.flavour == "openai" else anthropic_provider
        models = (
            replace(model, provider=build(base_url=ENDPOINT, wire=self.provider.wire()))
            for model in self.tier.chain
        )
        tier = chain(*(replace(model, fallbacks=()) for model in models))
        tiers = ModelTable({Tier.SMALL: tier, Tier.BIG: tier})
        tiers.allow_unlisted = True
        self.models = ModelGateway(tiers, self.list_price, retry_policy(), turns=self.turns)

    def begin(self, journal: MemoryJournal | None = None) -> None:
        """Start the run, with the journal of an earlier execution if one is given."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        self.run = Gateway(loop, self.budget, list(self.draws))
        if journal is not None:
            self.run.journal.earlier = dict(_left_by(journal))
        shared = RunContext(
            run_id="run-1",
            root=self.run.root,
            trace=self.run.graph,
            scope=self.run.scope,
            token=self.run.token,
            calls=self.run.calls,
            journal=self.run.journal,
        )
        self.context = FlowContext(
            run=shared,
            view=cast(Any, SimpleNamespace()),
            node_id="step",
            path=StepPath("step"),
            trace_parent=self.run.root,
            scope=self.run.scope,
            keep=lambda _: None,
        )

    async def ask(self, **options: Any) -> Completion:
        """Ask the small tier once."""
        asked: dict[str, Any] = {"name": "plan", "key": "plan", "messages": QUESTION, **options}
        return await self.models.complete(self.context, LogicalCall(**asked))

    def calls(self) -> list[TraceNode]:
        """Return the model calls of the trace in order."""
        nodes = self.run.graph.snapshot()["nodes"].values()
        return [node for node in nodes if node["kind"] == "llm"]


def _left_by(journal: MemoryJournal) -> list[tuple[str, Recorded]]:
    return [
        (
            entry.call_key,
            Recorded(
                node_id=node_id,
                outcome=entry.outcome or CallOutcome.UNKNOWN,
                request_hash=entry.request_hash,
                value=entry.value,
            ),
        )
        for node_id, entry in journal.entries.items()
    ]


Story = Callable[[Asking], Awaitable[None]]


def asking_after(story: Story, tier: ChatModel, **settings: Any) -> Asking:
    """Run a story to its end and return the `Asking` it used."""
    made: list[Asking] = []

    async def main() -> None:
        made.append(Asking(tier, **settings))
        await story(made[0])
        assert made[0].run.settled()
        await made[0].models.aclose()

    play(main)
    return made[0]


def busy(**settings: Any) -> Step:
    """Return a step in which the provider is overloaded."""
    return Step(**{"status": 503, **settings})
