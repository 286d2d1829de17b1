"""A run: one accepted request, and its life.

    queued -> running -> completed | failed | halted | cancelled
    queued -> cancelled | halted            running -> waiting -> queued | cancelled
    running -> queued                       (its worker died or gave it up)

A terminal status never changes. ``waiting`` is a run that waits for an approval; nobody owns it.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from caseworker.control.budget import Budget
from caseworker.control.stops import CancelledError
from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.quotas import Queueing, Quota

DEFAULT_TENANT: Final = "default"
"""The tenant of callers without a key, of the operator, and of agents in the operator's folder."""


class RunStatus(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    """A limit stopped it."""
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.HALTED, RunStatus.CANCELLED})

NEXT: Mapping[RunStatus, frozenset[RunStatus]] = MappingProxyType(
    {
        RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.HALTED}),
        RunStatus.RUNNING: frozenset({RunStatus.WAITING, RunStatus.QUEUED, *TERMINAL}),
        RunStatus.WAITING: frozenset({RunStatus.QUEUED, *TERMINAL}),
        **{status: frozenset() for status in TERMINAL},
    }
)


class RunKind(StrEnum):
    """What a run executes."""

    CASE = "case"
    GRAPH = "graph"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """Identifies a run: ids are chosen by callers and belong to their tenant."""

    tenant: str
    run_id: str


@dataclass(frozen=True, slots=True)
class DefinitionRef:
    """The name of something that is registered."""

    name: str
    version: int | None = None
    """None is the newest version there is."""
    kind: DefinitionKind = DefinitionKind.GRAPH


@dataclass(frozen=True, slots=True)
class RunSource:
    """The run that another one goes on from."""

    run_id: str
    until: str | None = None
    """The last of its CallNodes that is taken over; None takes over all that had ended well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a caller asked for, defaults filled in; enough to execute the run again."""

    kind: RunKind
    input: str = ""
    """The question of a case."""
    graph: Mapping[str, Any] | None = None
    """The graph of a run that is no case, in full: what was accepted is what is executed, whatever
    becomes of the definitions that it came from. That of an agent run has one step."""
    definition_ref: DefinitionRef | None = None
    """The version that ``graph`` was taken from, if its caller named one."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """What the first steps of a graph get, by input handle."""
    expected_tools: tuple[str, ...] = ()
    gold_answer: str | None = None
    """For the verifier alone: never shown to a planner, a prompt or a log."""
    mode: str | None = None
    """None is the configured mode, and so on for what follows."""
    budget: Budget = field(default_factory=Budget)
    requires_prices: bool = True
    """False if nobody has set the limit of cost: it is the service's own default then, and models
    without a known price are let through."""
    deadline: datetime | None = None
    start_at: datetime | None = None
    """Before this it is not begun; None is at once."""
    seed: int | None = None
    timezone: str | None = None
    source: RunSource | None = None
    """None begins at the beginning."""
    chat: ChatInput | None = None
    """None outside of chats."""
    traceparent: str | None = None
    """The span that the run stands below, as the header of its request named it."""
    models: tuple[str, ...] | None = None
    """The only models that it may use, by their names; None: any."""


END_TYPES: tuple[str, ...] = tuple(f"run.{status.value}" for status in sorted(TERMINAL))
"""What a webhook can be notified of, by the status in which a run ends."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where the end of a run is announced."""

    url: str
    events: tuple[str, ...] = END_TYPES
    """Of which ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run that is about to be accepted."""

    key: RunKey
    request: RunRequest
    request_hash: str
    """Of everything the caller sent, so that the same id or key with another body is noticed."""
    idempotency_key: str | None = None
    queueing: Queueing = field(default_factory=Queueing)
    named: bool = True
    """False if the service chose the id, so that the key alone identifies the request."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: Webhook | None = None
    prepared: PreparedGraph | None = field(default=None, compare=False, repr=False)
    """The request's graph, where it was made ready to be executed when it was checked. It is
    not stored: another process that takes the run over prepares the graph again."""
    require_models: Callable[[Collection[str]], Awaitable[None]] | None = field(
        default=None, compare=False, repr=False
    )
    """Raises GraphRefusedError or InvalidRunError if it names other models than these. It is not
    stored; a run without it is stopped by its first call of another model."""

    async def require_models_of(self, quota: Quota) -> None:
        """Refuse the run if it names a model that its tenant may not use.

        Raises:
            GraphRefusedError: it does; all places are named.
            InvalidRunError: likewise.
        """
        if quota.models is not None and self.require_models is not None:
            await self.require_models(quota.models)

    @property
    def is_overdue(self) -> bool:
        """Whether its deadline has passed, so that it can only be halted."""
        deadline = self.request.deadline
        return deadline is not None and deadline <= datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """A request to cancel a run, as it is stored."""

    requested_by: str
    reason: str | None = None
    requested_at: datetime | None = None
    """Set by the store, on the database's clock."""
    delivered_at: datetime | None = None
    """When the worker that executes the run knew."""

    @property
    def stop(self) -> CancelledError:
        """What ends the run."""
        return CancelledError(self.reason, requested_by=self.requested_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as its store shows it."""

    key: RunKey
    kind: RunKind
    status: RunStatus
    created_at: datetime
    request_hash: str
    request: RunRequest
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    """How often it was begun."""
    losses: int = 0
    """How many workers it has lost in a row without having got on in between."""
    fence: int = 0
    """Rises with every claim; what an owner writes under an older one changes nothing."""
    worker_id: str | None = None
    active_seconds: float = 0.0
    """How long earlier attempts have worked on it."""
    cancel_request: CancelRequest | None = None
    finish_reason: str | None = None
    result: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    stop: Mapping[str, Any] | None = None
    queueing: Queueing = field(default_factory=Queueing)
    last_seq: int = 0
    """The last event that was stored when the run was claimed; known to its claimer alone."""
    stored_once: frozenset[str] = frozenset()
    """The keys of events that are stored and come once only; known to its claimer alone."""
    streamed: dict[tuple[str | None, str], tuple[int, str]] = field(default_factory=dict)
    """The turn and the text of answers of which earlier executions have stored parts and no end, by
    step and type of event; known to its claimer, who takes out what is replaced, or its ender."""

    @property
    def finished(self) -> bool:
        """True once the status is terminal."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One row of the journal: a CallNode and what a replay needs to know of it."""

    node: Mapping[str, Any]
    """The CallNode in the form of a snapshot."""
    call_key: str | None = None
    request_hash: str = ""
    charge: Mapping[str, Any] = field(default_factory=dict)
    outcome: str | None = None
    value: Any = None
    """As it is read from the store; on its way there it may be frozen already."""
    request: Mapping[str, Any] | None = None
    """What was asked, as it may be shown. It is written once, and read by itself alone."""

    @property
    def node_id(self) -> str:
        """The id of the CallNode."""
        return str(self.node["node_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event as it is stored: numbered and dated."""

    seq: int
    """1 to n in each run, without a gap."""
    ts: datetime
    """When it was emitted, UTC."""
    type: str
    step_id: str | None = None
    node_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    once_key: str | None = field(default=None, compare=False)
    """Identifies an event that no later owner stores again; not read with the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun:
    """How a run ended, as its executor saw it."""

    key: RunKey
    fence: int
    status: RunStatus
    finish_reason: str | None
    result: Mapping[str, Any] | None
    usage: Mapping[str, Any]
    stop: Mapping[str, Any] | None
    active_seconds: float
    calls: tuple[CallRecord, ...]
    """What the journal does not hold yet."""
    snapshot: Mapping[str, Any]
    """The ExecutionGraph as it ended, for observers; the journal holds all of it."""
    events: tuple[EventRecord, ...] = ()
    """Those that may not be stored yet; the last one is that of the end itself."""
    delivered_at: datetime | None = None


def as_ended(run: Run, end: FinishRun, finished_at: datetime) -> Run:
    """Return a run as its store shows it once ``end`` is written."""
    return replace(
        run,
        status=end.status,
        finished_at=finished_at,
        worker_id=None,
        active_seconds=end.active_seconds,
        finish_reason=end.finish_reason,
        result=end.result,
        usage=end.usage,
        stop=end.stop,
    )
