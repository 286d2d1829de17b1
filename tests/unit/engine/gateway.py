"""The call gateway of one run, with a journal that tests can inspect."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.ledger import FreeAmounts, Reservation, Scope, Waiter
from caseworker.core.budget.usage import NOTHING, Charge, ResourceUsage
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import TraceNode
from caseworker.engine.call import AttemptError, Reply, Spent
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.ports import CallOutcome, Entry, Recorded
from caseworker.engine.step_path import StepPath
from tests.support.graph_invariants import violations
from tests.support.limits import retry_policy
from tests.support.scripted_call import ScriptedCall
from tests.support.seeded_loop import SeededLoop, now, play

ESTIMATE = Spent(tokens_in=80, tokens_out=20, cost_usd=Decimal("0.50"))


REAL = Spent(tokens_in=70, tokens_out=5, cost_usd=Decimal("0.30"))


class MemoryJournal:
    """Implement the engine's journal in memory; append each call to ``events``."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.entries: dict[str, Entry] = {}
        """The last entry of each CallNode, by node ID."""
        self.requests: dict[str, Mapping[str, Any]] = {}
        self.earlier: dict[str, Recorded] = {}
        self.earlier_charges: dict[str, Charge] = {}
        self.at_barrier: Callable[[], Awaitable[None]] | None = None
        self.refuses: object = None
        """A value that the journal refuses to store."""

    def recorded(self, call_key: str) -> Recorded | None:
        return self.earlier.get(call_key)

    def recorded_below(self, prefix: str) -> Mapping[str, Recorded]:
        return {}

    def note(self, node_id: str, entry: Entry) -> None:
        if entry.value is not None and entry.value is self.refuses:
            raise ValueError("Only JSON can be stored.")
        self.events.append(f"note {entry.outcome or 'in flight'}")
        self.entries[node_id] = entry

    @property
    def resumes(self) -> bool:
        return bool(self.earlier)

    def spent_below(self, path: StepPath) -> Charge:
        return self.earlier_charges.get(path.text, NOTHING)

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        self.requests[node_id] = request

    def touch(self) -> None:
        self.events.append("touch")

    async def barrier(self, *, external: bool) -> None:
        self.events.append("barrier" if external else "barrier inside")
        if self.at_barrier is not None:
            await self.at_barrier()

    def remember(
        self,
        key: str,
        outcome: CallOutcome,
        value: Any = None,
        hashed: str = "h",
        *,
        imported: bool = False,
    ) -> None:
        """Store a record of an earlier execution; ``imported``: one of another run."""
        self.earlier[key] = Recorded(
            node_id="n000009",
            outcome=outcome,
            request_hash=hashed,
            value=value,
            imported=imported,
        )


class WatchedGraph(ExecutionGraph):
    """An execution graph that records when a node begins, runs and ends."""

    def __init__(self, events: list[str], clock: Callable[[], float]) -> None:
        super().__init__("run-1", now_ms=lambda: round(clock() * 1000))
        self._events = events

    def begin_node(self, *arguments: Any, **options: Any) -> str:
        self._events.append("begin")
        return super().begin_node(*arguments, **options)

    def mark_running(self, node_id: str) -> bool:
        self._events.append("running")
        return super().mark_running(node_id)

    def mark_success(self, *arguments: Any, **options: Any) -> bool:
        self._events.append("success")
        return super().mark_success(*arguments, **options)


class WatchedScope(Scope):
    """A scope that records each reservation and settlement."""

    events: list[str]

    def ask(
        self,
        charge: Charge,
        wanted: Callable[[FreeAmounts], Charge] | None = None,
        *,
        tracked: bool = True,
    ) -> Reservation | Waiter:
        self.events.append("reserve")
        asked = super().ask(charge, wanted, tracked=tracked)
        return WatchedReservation(asked, self.events) if isinstance(asked, Reservation) else asked


class WatchedReservation(Reservation):
    """A reservation that records its settlement."""

    __slots__ = ("_events", "_inner")
    _events: list[str]
    _inner: Reservation

    def __init__(self, inner: Reservation, events: list[str]) -> None:
        super().__init__(inner.queue, (), inner.charge)
        self._inner = inner
        self._events = events

    def settle(self, used: Charge = NOTHING) -> None:
        self._events.append("settle")
        self._inner.settle(used)


@dataclass
class Gateway:
    """The gateway of one run; create it on a seeded loop."""

    loop: SeededLoop
    budget: Budget = field(default_factory=Budget)
    draws: list[float] = field(default_factory=list)
    """Jitter values of the next attempts; 0 once the list is empty."""
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = self.loop.time
        self.graph = WatchedGraph(self.events, clock)
        self.root = self.graph.create_root("run")
        self.graph.mark_running(self.root)
        self.scope = WatchedScope("run", self.budget, usage=ResourceUsage(clock=clock))
        self.scope.events = self.events
        self.token = CancellationToken()
        self.journal = MemoryJournal(self.events)
        self.calls = Calls(
            graph=self.graph,
            journal=self.journal,
            token=self.token,
            jitter=lambda: self.draws.pop(0) if self.draws else 0.0,
        )
        self.events.clear()

    async def perform(
        self,
        attempt: Callable[[], Awaitable[Reply]],
        *,
        key: str = "step/llm",
        parent: str | None = None,
        **settings: Any,
    ) -> Any:
        """Make a call below ``parent`` or the root; ``settings`` override an ordinary LLM call."""
        ordinary: dict[str, Any] = {
            "kind": "llm",
            "name": "plan",
            "model": "m-1",
            "request_hash": "h",
            "per_call": {Dimension.LLM_CALLS_SMALL: 1},
            "per_attempt": {Dimension.API_CALLS: 1},
            "cost": ESTIMATE,
            "attempt": attempt,
            "retry": retry_policy(),
        }
        call = ScriptedCall(**(ordinary | settings | {"key": StepPath(key)}))
        made = await self.calls.perform(call, parent=parent or self.root, scope=self.scope)
        return made.value

    def node(self, number: int = 2) -> TraceNode:
        """Return a node of the graph; the first call is node number 2."""
        return self.graph.node(f"n{number:06}")

    def entry(self, number: int = 2) -> Entry:
        """Return the last journal entry of a node."""
        return self.journal.entries[f"n{number:06}"]

    def children(self) -> list[TraceNode]:
        """Return the attempts of the first call, in order."""
        nodes = self.graph.snapshot()["nodes"].values()
        return [node for node in nodes if node["parent_id"] == "n000002"]

    def spent(self) -> dict[str, Any]:
        """Return the nonzero usage of the scope."""
        counted = self.scope.usage.amounts.items()
        return {dimension.value: amount for dimension, amount in counted if amount}

    def settled(self) -> bool:
        """Return whether nothing is reserved; fail on a graph that violates its invariants."""
        assert violations(self.graph.snapshot()) == []
        return not any(self.scope.reserved(dimension) for dimension in Dimension)


Story = Callable[[Gateway], Coroutine[Any, Any, None]]


def gateway_after(story: Story, **settings: Any) -> Gateway:
    """Run a story against a new gateway and return the gateway."""
    made: list[Gateway] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        made.append(Gateway(loop, **settings))
        await story(made[0])
        assert made[0].settled()

    play(main)
    return made[0]


async def answers() -> Reply:
    """An attempt that succeeds at once."""
    return Reply({"text": "four"}, REAL)


async def must_not_be_made() -> Reply:
    """An attempt that fails the test if it is made."""
    pytest.fail("the call was made")


class Attempts:
    """An attempt that raises the given failures, then succeeds; records its start times."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.made_at: list[float] = []

    async def __call__(self) -> Reply:
        self.made_at.append(now())
        await asyncio.sleep(0.1)
        if self.failures:
            raise self.failures.pop(0)
        return Reply({"text": "four"}, REAL)


def busy(retry_after: float | None = None, spent: Spent | None = None) -> AttemptError:
    """Return a retryable provider failure."""
    return AttemptError(
        "The provider is busy.",
        error_class="ProviderBusy",
        retryable=True,
        retry_after_seconds=retry_after,
        spent=spent,
    )
