"""Which step runs next: facts in, orders out.

Each active step counts the flow edges that lead to it and are not decided yet. A finished step
decides its outgoing edges: those on a handle that got a value become live, the others dead. A step
whose edges are all decided is started if one of them is live, and skipped if all are dead; a
skipped step decides its own edges as dead, so a dead path ends where a live one joins it. A step
does not wait for its level, only for what leads to it (seed 000, P2), and for a free place.

There is no clock, no I/O and no task here: the same facts in the same order give the same orders.
"""

from collections import deque
from collections.abc import Set as AbstractSet

from app.kernel.errors import GraphError, UnexpectedFactError
from app.kernel.facts import Fact, Order, SkipStep, StepFailed
from app.kernel.topology import Topology

_NO_HANDLES: AbstractSet[str] = frozenset()


class Scheduler:
    """Orders the steps of one execution of one graph."""

    __slots__ = (
        "_begun",
        "_failed",
        "_left",
        "_limit",
        "_live",
        "_outgoing",
        "_ready",
        "_running",
        "_topology",
        "_undecided",
    )

    def __init__(self, topology: Topology, *, max_parallel: int | None = None) -> None:
        """Prepare to order the active steps of ``topology``.

        ``max_parallel`` replaces the graph's own limit.

        Raises:
            GraphError: no step may run.
        """
        self._limit = topology.graph.max_parallel if max_parallel is None else max_parallel
        if self._limit < 1:
            raise GraphError("max_parallel must be at least 1.")
        self._topology = topology
        self._outgoing = topology.outgoing
        self._undecided = dict(topology.undecided)
        self._left = len(self._undecided)
        self._live: set[str] = set()
        self._running: set[str] = set()
        self._ready: deque[str] = deque()
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
        self._ready.extend(self._topology.entries)
        return self._start_ready([])

    def tell(self, fact: Fact) -> list[Order]:
        """Absorb one fact and return the orders it makes possible.

        After a failure there are none, whatever the steps still running come to; each of them is
        told all the same: finished, or failed if it was cut off.

        Raises:
            UnexpectedFactError: the step was not running.
        """
        step_id = fact.step_id
        if step_id not in self._running:
            raise UnexpectedFactError(f"Step {step_id!r} was not running.")
        self._running.remove(step_id)
        self._left -= 1
        if self._failed or isinstance(fact, StepFailed):
            self._failed = True
            self._ready.clear()
            return []
        dead: list[str] = []
        self._decide(step_id, fact.handles, dead)
        orders: list[Order] = []
        for skipped in dead:  # grows while it is walked
            orders.append(SkipStep(skipped))
            self._left -= 1
            self._decide(skipped, _NO_HANDLES, dead)
        return self._start_ready(orders)

    def _decide(self, step_id: str, produced: AbstractSet[str], dead: list[str]) -> None:
        """Decide the edges of a step; their targets become ready, or are added to ``dead``."""
        undecided = self._undecided
        for edge in self._outgoing.get(step_id, ()):
            target = edge.target
            if edge.source_handle in produced:
                self._live.add(target)
            left = undecided[target] = undecided[target] - 1
            if left == 0:
                (self._ready if target in self._live else dead).append(target)

    def _start_ready(self, orders: list[Order]) -> list[Order]:
        """Add the starts for which there is a place to ``orders``, and return it."""
        ready, running = self._ready, self._running
        while ready and len(running) < self._limit:
            step_id = ready.popleft()
            running.add(step_id)
            orders.append(self._topology.start[step_id])
        return orders
