"""Build, validate and execute graphs of nodes in Python."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.graph.graph import DEFAULT_HANDLE, Channel, Edge, GraphError
from caseworker.core.graph.graph import GraphStep as Placed
from caseworker.core.graph.graph import StepGraph as Shape
from caseworker.core.graph.problems import Traits
from caseworker.core.graph.validation import problems_of
from caseworker.engine.concurrency import NodeLock
from caseworker.engine.context import DEFAULT_GRACE_SECONDS, ExecutionContext, FlowContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.events import Event, EventSink
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.step_path import check_step_id
from caseworker.engine.supervision import until_done
from caseworker.nodes.function import ContextNode, ContextualNode
from caseworker.runtime_api.execution import EventCallback, GraphRun, ended, execute, results_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node that was added to a graph, with its dependencies and policies."""

    id: str
    node: ContextualNode | BoundNode
    input: Any = None
    """Value of ``context.input`` for the node; None passes the graph's own input."""
    depends_on: tuple[str, ...] = ()
    error_policy: ErrorPolicy | None = None
    sub_budget: Budget | None = None


def nodes_of(step: Step) -> Iterator[ContextualNode | BoundNode]:
    """Yield the node of a step, and then the fallback node of its error policy if there is one."""
    yield step.node
    if step.error_policy is not None and step.error_policy.fallback_node is not None:
        yield step.error_policy.fallback_node


def prepared(step: Step) -> PreparedStep:
    """Return a step in the form that the engine executes."""
    policy = step.error_policy
    fallback = None if policy is None else policy.fallback_node
    return PreparedStep(
        step=Placed(id=step.id, type=node_class_name(step.node)),
        work=_bound(step.node, step.input),
        policy=policy,
        fallback=None if fallback is None else _bound(fallback, step.input),
        sub_budget=step.sub_budget,
    )


def _bound(node: ContextualNode | BoundNode, step_input: Any) -> BoundNode:
    if isinstance(node, BoundNode):
        return node
    return BoundNode(ContextNode(node, step_input), step_input, lock_of(node), node.id)


def node_class_name(node: ContextualNode | BoundNode) -> str:
    """Return the name of the node's class, which traces show as the type of the step."""
    return type(node.node if isinstance(node, BoundNode) else node).__name__


def lock_of(node: ContextualNode | BoundNode) -> NodeLock | None:
    """Return the lock of a persistent node, which serializes its executions; None for other nodes.

    A missing attribute ``lock`` is created.

    Raises:
        TypeError: its ``lock`` is not a NodeLock, or the node accepts no attributes.
    """
    if isinstance(node, BoundNode):
        return node.lock
    if not getattr(node, "persistent", False):
        return None
    lock = getattr(node, "lock", None)
    if lock is None:
        lock = NodeLock(node.id)
        try:
            node.lock = lock  # type: ignore[attr-defined]
        except AttributeError:
            lock = None
    if not isinstance(lock, NodeLock):
        raise TypeError(f"Persistent node {node.id!r} needs an attribute lock = NodeLock(id).")
    return lock


class Graph:
    """A graph of steps that are executed in dependency order.

    A graph is also a node: as a step of another graph, it shares that graph's limits.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the public name
        max_parallel: int = 1,
        *,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
    ) -> None:
        """Create an empty graph.

        Up to ``max_parallel`` steps execute at once. A cancelled node that is still running after
        ``grace_seconds`` is abandoned.

        Raises:
            ValueError: ``max_parallel`` is below 1.
        """
        if max_parallel < 1:
            raise ValueError(f"max_parallel must be at least 1, not {max_parallel}.")
        self.id = id
        self.max_parallel = max_parallel
        self._grace_seconds = grace_seconds
        self._steps: dict[str, Step] = {}
        self._edges: list[Edge] = []
        self._prepared: PreparedGraph | None = None

    def __repr__(self) -> str:
        return f"Graph({self.id!r}, steps={list(self._steps)}, max_parallel={self.max_parallel})"

    @property
    def steps(self) -> Mapping[str, Step]:
        """Steps by ID, in the order in which they were added."""
        return dict(self._steps)

    def add_step(
        self,
        node: ContextualNode | BoundNode,
        step_id: str,
        *,
        input: Any = None,  # noqa: A002 - the public name
        depends_on: Iterable[str] = (),
        error_policy: ErrorPolicy | None = None,
        sub_budget: Budget | None = None,
    ) -> Step:
        """Add a node to the graph as a step.

        It executes after all steps in ``depends_on`` and finds their results in
        ``context.upstream``. To add an engine ``Node``, wrap it and its configuration in a
        ``BoundNode``.

        Raises:
            GraphError: the graph already has a step with this ID.
            ValueError: the ID is empty or contains a character reserved for step paths.
            TypeError: the ID is not a string, ``depends_on`` is a single string, ``node`` or the
                policy's ``fallback_node`` is not a node, or a persistent node has no valid lock.
        """
        check_step_id(step_id)
        if step_id in self._steps:
            raise GraphError(f"The graph has a step {step_id!r} already.")
        if isinstance(depends_on, str):
            raise TypeError(f"depends_on is a list of step ids: write [{depends_on!r}].")
        step = Step(
            id=step_id,
            node=node,
            input=input,
            depends_on=tuple(depends_on),
            error_policy=error_policy,
            sub_budget=sub_budget,
        )
        _require_nodes(step)
        self._steps[step_id] = step
        self._prepared = None
        return step

    def add_edge(
        self,
        source: str,
        target: str,
        *,
        source_handle: str = DEFAULT_HANDLE,
        target_handle: str = DEFAULT_HANDLE,
        channel: Channel | Literal["flow", "link"] = Channel.FLOW,
    ) -> None:
        """Connect an output handle of a step to an input handle of another step."""
        self._edges.append(
            Edge(
                source=source,
                target=target,
                source_handle=source_handle,
                target_handle=target_handle,
                channel=Channel(channel),
            )
        )
        self._prepared = None

    def validate(self) -> list[str]:
        """Return all problems of the graph. An empty list means that it can be executed.

        Steps that could never execute because they depend on themselves are also reported.
        """
        if not self._steps:
            return []
        if (way := _way_to(self, self)) is not None:
            return [f"The graph {self.id!r} is inside itself, as step {'/'.join(way)}."]
        problems = problems_of(self._shape(), lambda placed: self._traits(placed.id))
        return [problem.message for problem in problems]

    def execution_order(self) -> list[str]:
        """Return the step IDs in dependency order, or raise GraphError."""
        return list(self._ready().topology.order()) if self._steps else []

    async def execute(self, context: ExecutionContext | None = None) -> dict[str, Any]:
        """Execute the graph and return the results of its steps, by step ID.

        Steps that were skipped because no edge to them was taken are absent.

        Raises:
            GraphError: the graph is invalid; nothing was executed.
            Exception: the error of a failed step, as its node raised it.
            Stop: a limit (``BudgetExceededError``) or a cancel request (``CancelledError``) ended
                the graph; its ``partial_results`` hold the results so far. Use :meth:`run` to get
                partial results after a failure as well.
        """
        ran = await self.run(context)
        if ran.stop is not None:
            ran.stop.partial_results = ran.results
            raise ran.stop
        if ran.error is not None:
            raise ran.error
        return ran.results

    async def run(self, context: ExecutionContext | None = None) -> GraphRun:
        """Execute the graph and return its outcome, also after a failure or stop.

        Raises:
            GraphError: the graph is invalid; nothing was executed.
        """
        context = context or ExecutionContext()
        if context.flow is not None:
            return await self._run_inside(context.flow, context)
        return await self._run(context, None)

    async def stream(
        self, context: ExecutionContext | None = None
    ) -> AsyncGenerator[Event | GraphRun, None]:
        """Execute the graph; yield its events as they happen, then its outcome.

        Closing the iterator early cancels the graph. The events are those that the service emits
        for a run, such as ``step.started`` and ``step.completed``, and those that nodes report.

        Raises:
            GraphError: the graph is invalid; nothing was executed.
        """
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        sink = EventCallback(events.put_nowait)
        run = asyncio.create_task(self._run(context or ExecutionContext(), sink), name=self.id)
        run.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield run.result()
        finally:
            run.cancel()
            await until_done((run,), 2 * self._grace_seconds)

    async def _run(self, context: ExecutionContext, events: EventSink | None) -> GraphRun:
        grace = self._grace_seconds
        return await execute(self._ready(), context, grace_seconds=grace, events=events)

    async def _run_inside(self, flow: FlowContext, context: ExecutionContext) -> GraphRun:
        """Execute as a step of another graph, within its limits; a stop propagates to it."""
        services = {**flow.run.services, ExecutionContext: context}
        run = replace(flow.run, services=services)
        inner = replace(flow, run=run, scope=context.own_scope())
        nested = GraphExecution.inside(inner, self._ready(), {})
        flow.keep(lambda: {DEFAULT_HANDLE: results_of(nested.outputs())})
        outcome = await nested.run()
        if outcome.stop is not None:
            raise outcome.stop
        return ended(outcome, flow.run.trace)

    def _ready(self) -> PreparedGraph:
        """Return the prepared graph, or raise GraphError with all its problems."""
        if self._prepared is None:
            problems = self.validate()
            if problems:
                raise GraphError("\n".join(problems))
            steps = {step_id: prepared(step) for step_id, step in self._steps.items()}
            self._prepared = PreparedGraph(self._shape(), steps)
        return self._prepared

    def _shape(self) -> Shape:
        dependencies = (
            Edge(source=source, target=step.id, channel=Channel.FLOW)
            for step in self._steps.values()
            for source in step.depends_on
        )
        return Shape(
            id=self.id,
            steps=tuple(
                Placed(id=step.id, type=node_class_name(step.node)) for step in self._steps.values()
            ),
            edges=(*dependencies, *self._edges),
            max_parallel=self.max_parallel,
        )

    def _traits(self, step_id: str) -> Traits:
        return Traits(holds=frozenset(_locks_in(self._steps[step_id])))


def _require_nodes(step: Step) -> None:
    """Raise TypeError if a node of a step cannot be executed, or has no valid lock."""
    for node in nodes_of(step):
        if not callable(getattr(node, "execute", None)) and not isinstance(node, BoundNode):
            role = "A step" if node is step.node else "fallback_node"
            raise TypeError(f"{role} needs a node with execute(), not {type(node).__name__}.")
        lock_of(node)


def _locks_in(step: Step) -> Iterator[NodeLock]:
    """Yield the locks that a step acquires, including those in nested graphs."""
    for node in nodes_of(step):
        if isinstance(node, Graph):
            for inner in node.steps.values():
                yield from _locks_in(inner)
        elif (lock := lock_of(node)) is not None:
            yield lock


def _way_to(nested: Graph, within: Graph, seen: frozenset[int] = frozenset()) -> list[str] | None:
    """Return the step IDs that lead from ``within`` to the ``nested`` nested graph, or None."""
    for step in within.steps.values():
        for node in nodes_of(step):
            if node is nested:
                return [step.id]
            if isinstance(node, Graph) and id(node) not in seen:
                way = _way_to(nested, node, seen | {id(node)})
                if way is not None:
                    return [step.id, *way]
    return None
