"""Graphs in Python: nodes placed as steps, joined, checked and executed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.control.budget import Budget
from app.control.retry import ErrorPolicy
from app.engine.concurrency import NodeLock
from app.engine.context import DEFAULT_GRACE_SECONDS, ExecutionContext, FlowContext
from app.engine.driver import GraphExecution
from app.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from app.engine.report import GraphOutcome
from app.engine.step_path import check_step_id
from app.kernel.graph import DEFAULT_HANDLE, Channel, Edge, GraphError
from app.kernel.graph import Graph as Shape
from app.kernel.graph import Step as Placed
from app.kernel.problems import Traits
from app.kernel.validation import problems_of
from app.nodes.function import ContextNode, ContextualNode
from app.runtime_api.executing import GraphRun, ended, execute, results_of
from app.trace.execution_graph import ExecutionGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node placed in a graph."""

    id: str
    node: ContextualNode | BoundNode
    input: Any = None
    """What the node finds as ``context.input``; None: what the graph itself was given."""
    depends_on: tuple[str, ...] = ()
    error_policy: ErrorPolicy | None = None
    sub_budget: Budget | None = None


def prepared(step: Step) -> PreparedStep:
    """Return a step as the engine executes it."""
    policy = step.error_policy
    fallback = None if policy is None else policy.fallback_node
    return PreparedStep(
        step=Placed(id=step.id, type=type_of(step.node)),
        work=_bound(step.node, step.input),
        policy=policy,
        fallback=None if fallback is None else _bound(fallback, step.input),
        sub_budget=step.sub_budget,
    )


def _bound(node: ContextualNode | BoundNode, step_input: Any) -> BoundNode:
    if isinstance(node, BoundNode):
        return node
    return BoundNode(ContextNode(node, step_input), step_input, lock_of(node), node.id)


def type_of(node: ContextualNode | BoundNode) -> str:
    """Return what traces call the kind of a node."""
    return type(node.node if isinstance(node, BoundNode) else node).__name__


def lock_of(node: ContextualNode | BoundNode) -> NodeLock | None:
    """Return the lock of a persistent node, or raise TypeError if it has none."""
    if isinstance(node, BoundNode):
        return node.lock
    if not getattr(node, "persistent", False):
        return None
    lock = getattr(node, "lock", None)
    if not isinstance(lock, NodeLock):
        raise TypeError(
            f"Persistent node {node.id!r} has no lock: give it an attribute lock = NodeLock(id)."
        )
    return lock


class Graph:
    """Steps that are executed in the order of what they depend on.

    A graph is itself a node: it can be a step of another graph, and shares its limits then.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the public name
        max_parallel: int = 1,
        *,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
    ) -> None:
        """Begin an empty graph.

        ``max_parallel`` steps may work at once; ``grace_seconds`` is how long a node may go on
        after it was cancelled before it is abandoned.

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

    @property
    def steps(self) -> Mapping[str, Step]:
        """The steps by id, in the order in which they were added."""
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
        """Place a node.

        It is executed after all steps in ``depends_on``, whose results it finds in
        ``context.upstream``. A node of the graph runtime itself is placed as a
        ``BoundNode`` with its data.

        Raises:
            GraphError: the graph has a step of that id already.
            ValueError: the id is empty or holds a character that paths of steps are made with.
            TypeError: ``node`` can do neither, or is persistent and has no lock.
        """
        check_step_id(step_id)
        if step_id in self._steps:
            raise GraphError(f"The graph has a step {step_id!r} already.")
        if not callable(getattr(node, "execute", None)) and not isinstance(node, BoundNode):
            raise TypeError(f"A step needs a node with execute(), not {type(node).__name__}.")
        lock_of(node)
        step = Step(
            id=step_id,
            node=node,
            input=input,
            depends_on=tuple(depends_on),
            error_policy=error_policy,
            sub_budget=sub_budget,
        )
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
        """Join an output handle of a step to an input handle of another."""
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
        """Return everything that is wrong with the graph; it can be executed if nothing is.

        A step that would never be executed, because it waits for itself, is wrong too.
        """
        if not self._steps:
            return []
        problems = problems_of(self._shape(), lambda placed: self._traits(placed.id))
        return [problem.message for problem in problems]

    def execution_order(self) -> list[str]:
        """Return the ids of the steps, each after what it depends on, or raise GraphError."""
        return list(self._ready().topology.order()) if self._steps else []

    async def execute(self, context: ExecutionContext | None = None) -> dict[str, Any]:
        """Execute the graph and return the results of its steps, by step id.

        Steps that were skipped because nothing led to them are absent.

        Raises:
            GraphError: the graph is not valid; nothing was executed.
            Exception: what failed a step, as its node raised it.
            Stop: a limit (``BudgetExceededError``) or a cancel request (``CancelledError``) ended
                it; its ``partial_results`` are what the steps had produced. :meth:`run` returns
                them also after a failure.
        """
        context = context or ExecutionContext()
        if context.flow is not None:
            return await self._execute_inside(context.flow, context)
        ran = await self.run(context)
        if ran.stop is not None:
            ran.stop.partial_results = ran.results
            raise ran.stop
        if ran.error is not None:
            raise ran.error
        return ran.results

    async def run(self, context: ExecutionContext | None = None) -> GraphRun:
        """Execute the graph and return how it ended, whatever happened in it.

        Raises:
            GraphError: the graph is not valid; nothing was executed.
        """
        if not self._steps:
            calls = ExecutionGraph()
            calls.mark_success(calls.create_root(self.id), 0)
            return ended(GraphOutcome({}), calls)
        return await execute(
            self._ready(), context or ExecutionContext(), grace_seconds=self._grace_seconds
        )

    async def _execute_inside(self, flow: FlowContext, context: ExecutionContext) -> dict[str, Any]:
        """Execute as a step of another graph, within the limits of that step."""
        if not self._steps:
            return {}
        services = {**flow.run.services, ExecutionContext: context}
        run = replace(flow.run, services=services)
        inner = replace(flow, run=run, scope=context.own_scope())
        nested = GraphExecution.inside(inner, self._ready(), {})
        flow.keep(lambda: {DEFAULT_HANDLE: results_of(nested.outputs())})
        return results_of(await nested.result())

    def _ready(self) -> PreparedGraph:
        """Return the graph prepared, or raise GraphError with everything that is wrong."""
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
                Placed(id=step.id, type=type_of(step.node)) for step in self._steps.values()
            ),
            edges=(*dependencies, *self._edges),
            max_parallel=self.max_parallel,
        )

    def _traits(self, step_id: str) -> Traits:
        return Traits(holds=frozenset(_locks_in(self._steps[step_id].node)))


def _locks_in(node: ContextualNode | BoundNode) -> Iterator[NodeLock]:
    """Yield the locks that a node takes, also those inside a nested graph."""
    if isinstance(node, Graph):
        for step in node.steps.values():
            yield from _locks_in(step.node)
        return
    lock = lock_of(node)
    if lock is not None:
        yield lock
