"""Decides which step runs next. It receives facts and returns orders.

Each active step counts its incoming flow edges that are not decided yet. A finished step decides
its outgoing edges: an edge whose source handle has a value is live, any other edge is dead. Once
all incoming edges of a step are decided, the step is started if at least one of them is live;
otherwise it is skipped. A skipped step makes its own outgoing edges dead, so a dead path ends where
a live path joins it. A step waits for its own predecessors and a free slot only, not for a whole
layer of the graph.

The scheduler has no clock, no I/O and no tasks: the same facts in the same order always return the
same orders.
"""

from collections.abc import Container, Iterable

from caseworker.core.graph.facts import Fact, Order, SkipStep, StepFinished
from caseworker.core.graph.graph import Edge, GraphError
from caseworker.core.graph.topology import Topology

_NO_HANDLES: Container[str] = ()


class UnexpectedFactError(RuntimeError):
    """A fact refers to a step that is not running: it was never ordered, or has already ended."""


class Scheduler:
    """Schedules the steps of one execution of a graph."""

    def __init__(self, topology: Topology) -> None:
        """Prepare to schedule the active steps of ``topology``.

        Raises:
            GraphError: ``max_parallel`` is below 1.
        """
        self._limit = topology.graph.max_parallel
        if self._limit < 1:
            raise GraphError("max_parallel must be at least 1.")
        self._topology = topology
        self._outgoing, self._start = topology.outgoing, topology.start
        self._undecided = dict(topology.undecided)
        self._unfinished = len(self._undecided)
        self._live: set[str] = set()
        self._running: set[str] = set()
        self._ready: list[str] = []
        self._is_started = False
        self._failed = False

    @property
    def done(self) -> bool:
        """Whether no step is running and no further step will be ordered."""
        return not self._running and (self._failed or self._unfinished == 0)

    def begin(self) -> list[Order]:
        """Start the graph: return the orders to start its entries.

        Raises:
            UnexpectedFactError: the graph was started before.
        """
        if self._is_started:
            raise UnexpectedFactError("The graph was already started.")
        self._is_started = True
        self._ready.extend(self._topology.entries)
        return self._start_ready([])

    def apply(self, fact: Fact) -> list[Order]:
        """Apply one fact and return the orders that result from it.

        After a failure there are no further orders. The caller must still report the end of every
        running step: as finished, or as failed if it was interrupted.

        Raises:
            UnexpectedFactError: the step was not running.
        """
        if type(fact) is StepFinished:
            return self.finished(fact.step_id, fact.handles)
        if fact.step_id in self._running:
            self._failed = True
            self._ready.clear()
        return self.finished(fact.step_id, _NO_HANDLES)

    def finished(self, step_id: str, handles: Container[str]) -> list[Order]:
        """Apply the end of a step like :meth:`apply`, without the cost of constructing a fact.

        Raises:
            UnexpectedFactError: the step was not running.
        """
        running = self._running
        if step_id not in running:
            raise UnexpectedFactError(f"Step {step_id!r} was not running.")
        running.remove(step_id)
        self._unfinished -= 1
        if self._failed:
            return []
        edges = self._outgoing.get(step_id, ())
        if len(edges) == 1 and not self._ready:  # fast path of a chain: the next step gets the slot
            (edge,) = edges
            if self._undecided[edge.target] == 1 and edge.source_handle in handles:
                running.add(edge.target)
                return [self._start[edge.target]]
        orders: list[Order] = []
        dead = self._decide(edges, handles)
        for skipped in dead:  # grows while it is walked
            orders.append(SkipStep(skipped))
            self._unfinished -= 1
            dead += self._decide(self._outgoing.get(skipped, ()), _NO_HANDLES)
        return self._start_ready(orders)

    def _decide(self, edges: Iterable[Edge], produced: Container[str]) -> list[str]:
        """Decide the outgoing ``edges`` of a step; queue ready targets and return the dead ones."""
        undecided, live, dead = self._undecided, self._live, list[str]()
        for edge in edges:
            target = edge.target
            edges_left = undecided[target] = undecided[target] - 1
            if edge.source_handle in produced:
                live.add(target)
            if edges_left == 0:
                (self._ready if target in live else dead).append(target)
        return dead

    def _start_ready(self, orders: list[Order]) -> list[Order]:
        """Append start orders to ``orders`` while slots are free, and return the list."""
        ready, running, start = self._ready, self._running, self._start
        while ready and len(running) < self._limit:
            step_id = ready.pop(0)
            running.add(step_id)
            orders.append(start[step_id])
        return orders
