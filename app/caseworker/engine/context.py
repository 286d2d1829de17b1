"""The interface of nodes, which implement step types: the contexts they get, and their results.

A context gives access to the state of the run, to the step's position in the run, and to the graph.

See docs/internals.md, "How a graph is executed".
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar, final, runtime_checkable

from caseworker.core.budget.budget import UNLIMITED, Budget
from caseworker.core.budget.ledger import Reservation, Scope
from caseworker.core.budget.usage import BudgetExceededError, Charge, ResourceUsage
from caseworker.core.graph.graph import Channel, Edge, GraphStep
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.execution_trace import ExecutionTrace
from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS, ValueLimits
from caseworker.engine.budget_wait import reserved
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.concurrency import StepSlots
from caseworker.engine.events import EventSink
from caseworker.engine.ports import Journal
from caseworker.engine.step_path import StepPath
from caseworker.platform.logs.errors import is_ours, is_readable


class Runtime(Protocol):
    """Lets a step query the graph that it belongs to."""

    def get_node(self, node_id: str) -> GraphStep:
        """Return a step, or raise LookupError if the graph has no step with this ID."""
        ...

    def incoming_edges(
        self, node_id: str, *, channel: Channel | None = None, target_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the incoming edges of a step, in the order of the graph."""
        ...

    def outgoing_edges(
        self, node_id: str, *, channel: Channel | None = None, source_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the outgoing edges of a step, in the order of the graph."""
        ...

    async def resolve_links(self, node_id: str, target_handle: str) -> list[Any]:
        """Materialise all links to an input handle and return the values in edge order.

        Raises:
            LinkCycleError: a linked step depends on itself; the message names the cycle.
            TypeError: a linked step cannot be materialised.
        """
        ...

    async def materialize_output(self, node_id: str, output_handle: str) -> Any:
        """Return a step's output.

        It is computed by the node's ``materialize``, once per execution of the graph.

        Raises:
            LinkCycleError: the step depends on itself; the message names the cycle.
            TypeError: the step cannot be materialised.
        """
        ...

    def cache_get(self, key: str, default: Any = None) -> Any:
        """Return a value from a cache that all steps of this graph execution share."""
        ...

    def cache_set(self, key: str, value: Any) -> None:
        """Cache a value for all steps of this graph execution; it is not persisted."""
        ...


MAX_TRACEBACKS = 20
"""Maximum number of tracebacks that one execution of a run logs."""

DEFAULT_GRACE_SECONDS = 5.0


class TokenRatio(NamedTuple):
    """How a provider's counts compare to the near bounds of the texts that it counted."""

    ratio: float
    """The largest count of a prompt relative to the near bound of its text."""
    near_tokens: int
    """The largest of these near bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The state that all steps of one run share."""

    run_id: str
    root: str
    """ID of the CallNode that represents the run."""
    trace: ExecutionGraph
    scope: Scope
    token: CancellationToken
    calls: Calls
    journal: Journal | None = None
    """Journal of the run; None if the run is not persisted. Then no step is replayed, and barriers
    have no effect."""
    events: EventSink | None = None
    services: Mapping[type, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """Mutable values that the run's steps share; not persisted."""
    tenant: str = ""
    """Tenant that owns the run; empty if the installation has no tenants."""
    chat_id: str | None = None
    limits: ValueLimits | None = None
    """Size limits for values; None if values are not stored and need not be JSON."""
    slots: StepSlots = field(default_factory=StepSlots)
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """Time in seconds that cancelled work has to end before it is abandoned."""
    started_steps: dict[StepPath, str] = field(default_factory=dict)
    """CallNode IDs, by path, of the steps that have emitted their start event but no end event."""
    on_abandoned_done: Callable[[], None] = lambda: None
    """Called each time abandoned work (work that the run stopped waiting for) has ended, so that
    its cost can still be recorded."""
    token_ratios: dict[str, TokenRatio] = field(default_factory=dict)
    """For each model that the run has called, what its provider counted for the prompts."""
    traced: list[Any] | None = None
    """List that collects the ``StepRecords`` of executed graphs for a trace; None if no trace is
    needed."""
    tracebacks: Iterator[int] = field(default_factory=lambda: iter(range(MAX_TRACEBACKS)))
    """Iterator with one element per traceback that may still be logged. Tracebacks are limited,
    because redacting one takes milliseconds."""

    def logged_with(self, error: BaseException) -> BaseException | None:
        """Return ``error`` if its traceback should be logged, else None.

        Tracebacks are omitted for Caseworker's own errors, for errors whose text cannot be read,
        and once ``MAX_TRACEBACKS`` were logged.
        """
        if is_ours(error) or next(self.tracebacks, None) is None or not is_readable(error):
            return None
        return error


Service = TypeVar("Service")

Outputs = Mapping[str, Any]
"""Output or input values by handle."""


@dataclass(slots=True)
class ExecutionContext:
    """The context of a node in the Python API, which works without the service."""

    session: Any = None
    """Any object that the caller passes to its nodes; it reaches them unchanged."""
    input: Any = None
    upstream: dict[str, Any] = field(default_factory=dict)
    """Results of the steps that this step depends on, by step ID."""
    budget: Budget | None = None
    usage: ResourceUsage = field(default_factory=ResourceUsage.unstarted)
    """Usage so far. By default it is empty, and its time starts with the first execution."""
    cancellation: CancellationToken | None = None
    trace: ExecutionTrace | None = None
    """Trace that records every step; None records nothing."""
    scope: Scope | None = None
    """Budget scope with ``budget`` and ``usage``, and its ancestors. Reserve amounts in it that
    parallel nodes must not spend twice."""
    flow: "FlowContext | None" = None
    """Position of the step in its run; None outside a run."""
    deadline: datetime | None = None
    """Time, with a time zone, at which the execution is stopped, regardless of the budget."""

    def __post_init__(self) -> None:
        if self.deadline is not None and self.deadline.tzinfo is None:
            raise ValueError("deadline must have a time zone, as in datetime.now(UTC).")

    def check_budget(self) -> None:
        """Check that neither this context nor an ancestor has exhausted a limit.

        Raises:
            BudgetExceededError: a limit is exhausted.
        """
        if self.scope is not None:
            self.own_scope().require_something_left()
        elif self.budget is not None:
            tripped = self.usage.tripped_by(self.budget)
            if tripped is not None:
                reason = self.usage.describe(*tripped)
                raise BudgetExceededError(self.usage, self.budget, reason, dimension=tripped[0])

    async def reserve(self, charge: Charge) -> Reservation:
        """Reserve an amount, so that parallel nodes cannot spend it; settle it with actual usage.

        If other reservations hold the needed capacity, this waits in order of arrival. An unsettled
        reservation is released at the end of the step that made it.

        Raises:
            BudgetExceededError: a limit of this context or an ancestor does not allow it.
        """
        return await reserved(self.own_scope(), charge)

    def check_cancelled(self) -> None:
        """Raise the stop if the run is being stopped; for a cancel request, a CancelledError."""
        if self.cancellation is not None:
            self.cancellation.check()

    def with_input(self, input: Any) -> "ExecutionContext":  # noqa: A002 - the public name
        """Return a copy of the context with a different input."""
        return replace(self, input=input)

    def with_upstream(self, upstream: Mapping[str, Any]) -> "ExecutionContext":
        """Return a copy of the context with ``upstream`` added to the results of earlier steps."""
        return replace(self, upstream={**self.upstream, **upstream})

    def with_sub_budget(self, sub_budget: Budget) -> "ExecutionContext":
        """Return a context whose budget scope is a child of this context's scope.

        Spending in it also counts here and in all ancestors. The first limit that is reached, in
        any of them, stops it.
        """
        child = self.own_scope().child("sub_budget", sub_budget)
        return replace(self, budget=sub_budget, usage=child.usage, scope=child)

    def own_scope(self) -> Scope:
        """Return the scope of this context's budget and usage; create it on first use.

        If ``budget`` or ``usage`` has been replaced, create a new scope below the same parent.
        """
        scope = self.scope
        if scope is None:
            self.usage.start()
            self.scope = scope = Scope("run", self.budget, usage=self.usage)
        elif scope.usage is not self.usage or (
            scope.budget is not self.budget and scope.budget != (self.budget or UNLIMITED)
        ):
            self.scope = scope = Scope(
                scope.name, self.budget, parent=scope.parent, usage=self.usage
            )
        return scope


class GraphView(Protocol):
    """Gives a step access to the graph execution that it belongs to."""

    def upstream(self, step_id: str) -> Mapping[str, Outputs]:
        """Return the outputs of the step's predecessors along flow edges, by step ID."""
        ...

    def runtime(self, context: "FlowContext") -> Runtime:
        """Return an object through which a step can query its graph."""
        ...


@dataclass(slots=True)
class FlowContext:
    """The context of a step in its run.

    ``services`` holds objects that domain nodes depend on, by type; the engine does not use them.
    """

    run: RunContext
    """State that all steps of the run share."""
    view: GraphView
    node_id: str
    """ID of the step in its graph."""
    path: StepPath
    """Path of the step, or of this attempt at it; the paths of its calls start with it."""
    trace_parent: str
    """ID of the CallNode that is the parent of new calls: the node of the step, or of the call that
    requests them."""
    scope: Scope
    """Budget scope of the step."""
    keep: Callable[[Callable[[], Outputs]], None]
    """Registers a function that returns the step's outputs so far; the engine calls it if the step
    is stopped or fails."""

    @property
    def run_id(self) -> str:
        """ID of the run that the step belongs to."""
        return self.run.run_id

    @property
    def chat_id(self) -> str | None:
        """ID of the thread that the run belongs to; None if the run belongs to no thread."""
        return self.run.chat_id

    @property
    def token(self) -> CancellationToken:
        """Cancellation token of the run."""
        return self.run.token

    @property
    def calls(self) -> Calls:
        """Gateway through which the step makes its calls."""
        return self.run.calls

    @property
    def state(self) -> dict[str, Any]:
        """Mutable values that the steps of this execution of the run share."""
        return self.run.state

    @property
    def limits(self) -> ValueLimits:
        """Size limits for the step's values."""
        return self.run.limits or DEFAULT_VALUE_LIMITS

    @property
    def services(self) -> Mapping[type, Any]:
        """Objects that domain nodes depend on, by type."""
        return self.run.services

    @property
    def runtime(self) -> Runtime:
        """Object through which this step can query its graph."""
        return self.view.runtime(self)

    @property
    def upstream(self) -> Mapping[str, Outputs]:
        """Outputs of this step's predecessors along flow edges, by step ID."""
        return self.view.upstream(self.node_id)

    def service(self, kind: type[Service]) -> Service:
        """Return the service of a type.

        Raises:
            LookupError: the run has no service of this type.
        """
        try:
            return self.run.services[kind]  # type: ignore[no-any-return]
        except KeyError:
            raise LookupError(f"This run has no {kind.__name__}.") from None


@final
@dataclass(slots=True)
class ExecutionResult:
    """The result of a step: JSON values by output handle.

    Not frozen, because a frozen dataclass takes three times as long to construct.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the outputs here, so that the traceback shows the node that is at fault.

        Raises:
            TypeError: the outputs are not a mapping.
        """
        if type(self.outputs) is not dict and not isinstance(self.outputs, Mapping):
            kind = type(self.outputs).__name__
            raise TypeError(f"outputs must be a mapping from output handles to values, not {kind}.")


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A progress report that a node emits while it runs.

    Lifecycle events, such as ``step.started``, are emitted by the engine only.
    """

    type: str
    """Event type: a dotted name that the node chooses, such as ``text.delta``."""
    data: Mapping[str, Any] = field(default_factory=dict)


Execution = (
    ExecutionResult | Awaitable[ExecutionResult] | AsyncIterator[NodeEvent | ExecutionResult]
)
"""Return type of ``Node.execute``: a result, an awaitable result, or a stream of events that ends
with a result."""


class Node(Protocol):
    """Implements one step type.

    The code of a plugin's node is recorded until its step ends, unless an attribute
    ``records_code`` is true: the calls of its steps then record their own code.
    """

    def execute(self, data: Any, inputs: Mapping[str, Any], context: FlowContext) -> Execution:
        """Execute a step; may be a plain function, a coroutine or an async generator.

        ``data`` is the step's configuration; ``inputs`` are the values of its input handles. Any
        Exception fails the step. A stop is a BaseException and must not be caught.
        """
        ...


@runtime_checkable
class Materializing(Protocol):
    """A node whose steps can be linked: they provide a value that other steps depend on."""

    async def materialize(self, data: Any, output_handle: str, context: FlowContext) -> Any:
        """Return the value for the step that the link leads to; the engine passes it on unchanged.

        ``context.runtime`` resolves links that lead to this step itself.
        """
        ...
