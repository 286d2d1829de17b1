"""What steps are handed: what their run shares, where they stand in it, what their graph offers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from caseworker.control.budget import UNLIMITED, Budget
from caseworker.control.ledger import Reservation, Scope
from caseworker.control.usage import BudgetExceededError, Charge, ResourceUsage
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.concurrency import StepSlots
from caseworker.engine.events import EventSink
from caseworker.engine.ports import Journal
from caseworker.engine.reserving import reserved
from caseworker.engine.step_path import StepPath
from caseworker.kernel.graph import Channel, Edge, Step
from caseworker.observability.errors import is_ours
from caseworker.trace.execution_graph import ExecutionGraph
from caseworker.trace.execution_trace import ExecutionTrace
from caseworker.trace.frozen_json import USUAL_LIMITS, ValueLimits


class Runtime(Protocol):
    """The graph as one of its steps sees it. Nothing here knows any domain."""

    def get_node(self, node_id: str) -> Step:
        """Return a step, or raise LookupError if the graph has none of that id."""
        ...

    def incoming_edges(
        self, node_id: str, *, channel: Channel | None = None, target_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the edges that lead to a step, in the order of the graph."""
        ...

    def outgoing_edges(
        self, node_id: str, *, channel: Channel | None = None, source_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the edges that lead away from a step, in the order of the graph."""
        ...

    async def resolve_links(self, node_id: str, target_handle: str) -> list[Any]:
        """Return what is linked to a handle of a step, in the order of the edges.

        Raises:
            LinkCycleError: something depends on itself; the message names the way.
            TypeError: a linked step cannot be materialised.
        """
        ...

    async def materialize_output(self, node_id: str, output_handle: str) -> Any:
        """Return what a step makes for its links, once; raises as :meth:`resolve_links` does."""
        ...

    def cache_get(self, key: str, default: Any = None) -> Any:
        """Return what a step of this graph has put into the cache of its execution."""
        ...

    def cache_set(self, key: str, value: Any) -> None:
        """Keep something for the other steps of this execution; it does not outlive it."""
        ...


MAX_TRACEBACKS = 20
"""Of one execution of a run, in the log."""

DEFAULT_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all steps of one run share."""

    run_id: str
    root: str
    """The CallNode of the run."""
    trace: ExecutionGraph
    scope: Scope
    token: CancellationToken
    calls: Calls
    journal: Journal | None = None
    """None where nothing outlives the process: no step is replayed, no barrier is passed."""
    events: EventSink | None = None
    services: Mapping[type, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """What the steps of the run share with one another; it does not outlive its execution."""
    tenant: str = ""
    """To whom the run belongs; empty where there are no tenants."""
    chat_id: str | None = None
    limits: ValueLimits | None = None
    """How large values may be; None where nothing is stored: they need not even be JSON."""
    slots: StepSlots = field(default_factory=StepSlots)
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """How long cancelled work may take to end before it is abandoned."""
    begun: dict[StepPath, str] = field(default_factory=dict)
    """The CallNodes, by path, of the steps whose start was emitted and whose end was not."""
    over: Callable[[], None] = lambda: None
    """Called when work that was abandoned has come to its end."""
    traced: list[Any] | None = None
    """Executions of graphs whose steps a trace reads (``StepRecords``), if any."""
    tracebacks: Iterator[int] = field(default_factory=lambda: iter(range(MAX_TRACEBACKS)))
    """Those that may still be logged: each takes milliseconds to be made fit to be shown."""

    def logged_with(self, error: Exception) -> Exception | None:
        """Return an error that is to be logged with its traceback; None if that says no more.

        Our own errors say all there is to say, and after many others it is enough.
        """
        return None if is_ours(error) or next(self.tracebacks, None) is None else error


Service = TypeVar("Service")

Outputs = Mapping[str, Any]
"""Values by handle."""


@dataclass(slots=True)
class ExecutionContext:
    """The context of a node in Python, which knows no service around it."""

    session: Any = None
    """Whatever the caller wants its nodes to see; passed through untouched."""
    input: Any = None
    upstream: dict[str, Any] = field(default_factory=dict)
    """The results of the steps that this one depends on, by step id."""
    budget: Budget | None = None
    usage: ResourceUsage = field(default_factory=ResourceUsage.unstarted)
    """Counts seconds from the first execution on, if it is not given."""
    cancellation: CancellationToken | None = None
    trace: ExecutionTrace | None = None
    """Pass one to get the details of every step."""
    scope: Scope | None = None
    """The scope that ``budget`` and ``usage`` belong to, and through it those around it. Reserve in
    it what several nodes could otherwise spend twice."""
    flow: "FlowContext | None" = None
    """Where the step stands in its run; None outside of one."""
    deadline: datetime | None = None
    """An instant with a zone that ends the execution, whatever is left of the budget."""

    def __post_init__(self) -> None:
        if self.deadline is not None and self.deadline.tzinfo is None:
            raise ValueError("deadline must have a zone, such as datetime.now(UTC) has.")

    def check_budget(self) -> None:
        """Raise BudgetExceededError if nothing is left for a further charge, here or above."""
        if self.scope is not None:
            self.own_scope().require_something_left()
        elif self.budget is not None:
            tripped = self.usage.tripped_by(self.budget)
            if tripped is not None:
                reason = self.usage.describe(*tripped)
                raise BudgetExceededError(self.usage, self.budget, reason, dimension=tripped[0])

    async def reserve(self, charge: Charge) -> Reservation:
        """Hold what several nodes could otherwise spend twice; settle it with what was used.

        Where others have reserved what it needs, it waits for them, those who came first first. It
        ends with the step that makes it, if it is not settled before.

        Raises:
            BudgetExceededError: a limit, here or above, leaves no room for it.
        """
        return await reserved(self.own_scope(), charge)

    def check_cancelled(self) -> None:
        """Raise CancelledError if someone wants the run to end."""
        if self.cancellation is not None:
            self.cancellation.check()

    def with_input(self, input: Any) -> "ExecutionContext":  # noqa: A002 - the public name
        """Return a context with another input that shares everything else."""
        return replace(self, input=input)

    def with_upstream(self, upstream: Mapping[str, Any]) -> "ExecutionContext":
        """Return a context that also knows these results; the old one stays as it was."""
        return replace(self, upstream={**self.upstream, **upstream})

    def with_sub_budget(self, sub_budget: Budget) -> "ExecutionContext":
        """Return a context whose spending counts here and in everything around it.

        Whichever limit is reached first stops it.
        """
        child = self.own_scope().child("sub_budget", sub_budget)
        return replace(self, budget=sub_budget, usage=child.usage, scope=child)

    def own_scope(self) -> Scope:
        """Return the scope of this context's budget and usage, made now if there is none yet.

        If its budget or its usage was replaced since, it gets another one in the same place.
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
    """The execution of the graph that a step belongs to."""

    def upstream(self, step_id: str) -> Mapping[str, Outputs]:
        """Return what the steps produced from which flow edges lead to this one, by step."""
        ...

    def runtime(self, context: "FlowContext") -> Runtime:
        """Return what the step may ask of its graph."""
        ...


@dataclass(slots=True)
class FlowContext:
    """Where a step stands inside its run.

    Domain dependencies come in ``services``, by their type; the engine never looks at them.
    """

    run: RunContext
    """What all steps of the run share."""
    view: GraphView
    node_id: str
    """The id of the step that is executed."""
    path: StepPath
    """Where the step, or this attempt of it, stands in its run; the calls made here are in it."""
    trace_parent: str
    """The CallNode of the step, or of the call whose result asks for what is made here."""
    scope: Scope
    """What the step may spend."""
    keep: Callable[[Callable[[], Outputs]], None]
    """Register what gives the step's partial outputs, asked for if the step is stopped or fails."""

    @property
    def run_id(self) -> str:
        """The run."""
        return self.run.run_id

    @property
    def chat_id(self) -> str | None:
        """The conversation that the run belongs to, if any."""
        return self.run.chat_id

    @property
    def token(self) -> CancellationToken:
        """Through which the run is stopped."""
        return self.run.token

    @property
    def calls(self) -> Calls:
        """The gateway that every call passes."""
        return self.run.calls

    @property
    def state(self) -> dict[str, Any]:
        """Belongs to the run's execution and is shared by its steps."""
        return self.run.state

    @property
    def limits(self) -> ValueLimits:
        """How large the values may be that the step makes."""
        return self.run.limits or USUAL_LIMITS

    @property
    def services(self) -> Mapping[type, Any]:
        """What nodes of some domain need, by type."""
        return self.run.services

    @property
    def runtime(self) -> Runtime:
        """What the step may ask of its graph."""
        return self.view.runtime(self)

    @property
    def upstream(self) -> Mapping[str, Outputs]:
        """What the steps produced from which flow edges lead here, by step."""
        return self.view.upstream(self.node_id)

    def service(self, kind: type[Service]) -> Service:
        """Return the service of a type, or raise LookupError if the run has none."""
        try:
            return self.run.services[kind]  # type: ignore[no-any-return]
        except KeyError:
            raise LookupError(f"This run has no {kind.__name__}.") from None
