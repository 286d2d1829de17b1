"""Which step runs next: facts in, orders out.

Each step counts the flow edges that lead to it and are not decided yet. A finished step decides
its outgoing edges: those on a handle that got a value become live, the others dead. A step whose
edges are all decided is started if one of them is live (or if it has none), and skipped if all are
dead; a skipped step decides its own edges as dead, so a dead path ends where a live one joins it.

There is no clock, no I/O and no task here: the same facts in the same order give the same orders.
"""

from collections import deque
from collections.abc import Iterable

from app.kernel.errors import GraphError, UnexpectedFactError
from app.kernel.facts import Fact, Order, SkipStep, StartStep, StepFailed, StepFinished
from app.kernel.graph import Channel, Edge, Graph


class Scheduler:
    """Orders the steps of one execution of one graph."""

    def __init__(self, graph: Graph) -> None:
        """Prepare to order ``graph``.

        Raises:
            GraphError: two steps share an id, an edge names a step that does not exist, or no step
                may run.
        """
        if graph.max_parallel < 1:
            raise GraphError(f"max_parallel must be at least 1, not {graph.max_parallel}.")
        self._undecided: dict[str, int] = {step.id: 0 for step in graph.steps}
        if len(self._undecided) != len(graph.steps):
            raise GraphError("Two steps have the same id.")
        self._outgoing: dict[str, list[Edge]] = {step.id: [] for step in graph.steps}
        for edge in graph.edges:
            self._add(edge)
        self._live: set[str] = {step for step, count in self._undecided.items() if not count}
        self._entries = tuple(self._live_in_order(graph))
        self._running: set[str] = set()
        self._ready: deque[str] = deque()
        self._free = graph.max_parallel
        self._left = len(graph.steps)
        self._begun = False
        self._failed = False

    @property
    def done(self) -> bool:
        """True once nothing runs and nothing more will be ordered."""
        return not self._running and (self._failed or self._left == 0)

    def begin(self) -> list[Order]:
        """Return the first orders.

        Raises:
            UnexpectedFactError: it was called before.
        """
        if self._begun:
            raise UnexpectedFactError("The graph was begun before.")
        self._begun = True
        self._ready.extend(self._entries)
        return self._start_ready()

    def tell(self, fact: Fact) -> list[Order]:
        """Absorb one fact and return the orders it makes possible.

        Raises:
            UnexpectedFactError: the step was not running.
        """
        if fact.step_id not in self._running:
            raise UnexpectedFactError(f"Step {fact.step_id!r} was not running.")
        self._running.discard(fact.step_id)
        self._free += 1
        self._left -= 1
        match fact:
            case StepFailed():
                self._failed = True
                self._ready.clear()
                return []
            case StepFinished(step_id, handles):
                skipped = self._decide(step_id, handles)
                return [*skipped, *self._start_ready()]

    def _add(self, edge: Edge) -> None:
        for end in (edge.source, edge.target):
            if end not in self._undecided:
                raise GraphError(f"An edge names step {end!r}, which does not exist.")
        if edge.channel is Channel.FLOW:
            self._outgoing[edge.source].append(edge)
            self._undecided[edge.target] += 1

    def _live_in_order(self, graph: Graph) -> Iterable[str]:
        return (step.id for step in graph.steps if step.id in self._live)

    def _decide(self, step_id: str, handles: frozenset[str]) -> list[Order]:
        skipped: list[Order] = []
        decided = deque([(step_id, handles)])
        while decided:
            source, produced = decided.popleft()
            for edge in self._outgoing[source]:
                if edge.source_handle in produced:
                    self._live.add(edge.target)
                self._undecided[edge.target] -= 1
                if self._undecided[edge.target]:
                    continue
                if edge.target in self._live:
                    self._ready.append(edge.target)
                    continue
                self._left -= 1
                skipped.append(SkipStep(edge.target))
                decided.append((edge.target, frozenset()))
        return skipped

    def _start_ready(self) -> list[Order]:
        started: list[Order] = []
        while self._ready and self._free > 0 and not self._failed:
            step_id = self._ready.popleft()
            self._free -= 1
            self._running.add(step_id)
            started.append(StartStep(step_id))
        return started
