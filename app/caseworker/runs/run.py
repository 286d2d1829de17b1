"""A run: one accepted request and its life cycle.

    queued -> running -> completed | failed | halted | cancelled
    queued -> cancelled | halted            running -> waiting -> queued | cancelled
    running -> queued                       (its worker died or released it)

A terminal status never changes. A ``waiting`` run waits for an approval and has no owner.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import CancelledError
from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.quotas import Queueing, Quota

DEFAULT_TENANT: Final = "default"
"""Tenant of anonymous callers, the operator, and agents loaded from the operator's folder."""


class RunStatus(StrEnum):
    """The status of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    """Stopped by a limit."""
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
    """The kind of work that a run executes."""

    CASE = "case"
    GRAPH = "graph"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """Identifies a run; callers choose IDs, which are unique per tenant."""

    tenant: str
    run_id: str


@dataclass(frozen=True, slots=True)
class DefinitionRef:
    """A reference to a registered definition."""

    name: str
    version: int | None = None
    """None means the newest version."""
    kind: DefinitionKind = DefinitionKind.GRAPH


@dataclass(frozen=True, slots=True)
class RunSource:
    """The run that another run resumes from."""

    run_id: str
    until: str | None = None
    """The last CallNode to import; None imports everything that succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A caller's request with defaults filled in; sufficient to execute the run again."""

    kind: RunKind
    input: str = ""
    """The question of a case."""
    graph: Mapping[str, Any] | None = None
    """The inline graph of a graph or agent run. It is executed as accepted, even if the definitions
    it came from change. The graph of an agent run has one step."""
    definition_ref: DefinitionRef | None = None
    """The version that ``graph`` was loaded from, if the caller referenced one."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Inputs of the first steps of the graph, by handle."""
    expected_tools: tuple[str, ...] = ()
    gold_answer: str | None = None
    """Only for the verifier: never passed to a planner, prompt or log."""
    mode: str | None = None
    """None means the configured mode."""
    budget: Budget = field(default_factory=Budget)
    requires_prices: bool = True
    """False if the cost limit is the service's default; models without a known price are allowed
    then."""
    deadline: datetime | None = None
    start_at: datetime | None = None
    """Earliest start time; None means immediately."""
    seed: int | None = None
    timezone: str | None = None
    source: RunSource | None = None
    """None starts from scratch."""
    chat: ChatInput | None = None
    """None if the run does not belong to a thread."""
    traceparent: str | None = None
    """The parent span of the run, as the ``traceparent`` header of the request gave it."""
    models: tuple[str, ...] | None = None
    """Names of the only allowed models; None allows all."""


END_TYPES: tuple[str, ...] = tuple(f"run.{status.value}" for status in sorted(TERMINAL))
"""Event types of webhooks: one for each terminal status."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """The webhook that is notified of the end of a run."""

    url: str
    events: tuple[str, ...] = END_TYPES
    """The event types to deliver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to accept."""

    key: RunKey
    request: RunRequest
    request_hash: str
    """Hash of the caller's whole request, to detect reuse of an ID or key with a different body."""
    idempotency_key: str | None = None
    queueing: Queueing = field(default_factory=Queueing)
    named: bool = True
    """False if the service generated the ID; then only the key identifies the request."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: Webhook | None = None
    prepared: PreparedGraph | None = field(default=None, compare=False, repr=False)
    """The graph, if validation already prepared it. It is not stored: a process that recovers the
    run prepares the graph again."""
    require_models: Callable[[Collection[str]], Awaitable[None]] | None = field(
        default=None, compare=False, repr=False
    )
    """Raises GraphRefusedError or InvalidRunError if the run uses models outside the given ones. It
    is not stored; without it, the first call of another model stops the run."""

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
        """Whether the deadline has passed, so that the run can only be halted."""
        deadline = self.request.deadline
        return deadline is not None and deadline <= datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """A stored request to cancel a run."""

    requested_by: str
    reason: str | None = None
    requested_at: datetime | None = None
    """Set by the store, on the database's clock."""
    delivered_at: datetime | None = None
    """When the worker that executes the run received it."""

    @property
    def stop(self) -> CancelledError:
        """The stop that ends the run."""
        return CancelledError(self.reason, requested_by=self.requested_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as stored."""

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
    """Number of executions that were started."""
    losses: int = 0
    """Number of workers lost in a row without progress in between."""
    fence: int = 0
    """Fencing token, incremented with each claim; writes with an older one have no effect."""
    worker_id: str | None = None
    active_seconds: float = 0.0
    """Execution time of earlier attempts."""
    cancel_request: CancelRequest | None = None
    finish_reason: str | None = None
    result: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    stop: Mapping[str, Any] | None = None
    queueing: Queueing = field(default_factory=Queueing)
    last_seq: int = 0
    """Number of the last event stored when the run was claimed; set only by a claim."""
    stored_once: frozenset[str] = frozenset()
    """Keys of stored events that must not be repeated; set only by a claim."""
    streamed: dict[tuple[str | None, str], tuple[int, str]] = field(default_factory=dict)
    """Partly stored answers of earlier executions (turn and text), by step and event type. Set only
    for the process that claims or ends the run; the claimer removes entries that are replaced."""

    @property
    def finished(self) -> bool:
        """Whether the status is terminal."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A journal row: a CallNode and the data needed to replay it."""

    node: Mapping[str, Any]
    """The CallNode in snapshot format."""
    call_key: str | None = None
    request_hash: str = ""
    charge: Mapping[str, Any] = field(default_factory=dict)
    outcome: str | None = None
    value: Any = None
    """Plain JSON if read from the store; may be frozen on its way to the store."""
    request: Mapping[str, Any] | None = None
    """The request in displayable form. It is written once, and loaded only on demand."""

    @property
    def node_id(self) -> str:
        """ID of the CallNode."""
        return str(self.node["node_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A stored event with its number and time."""

    seq: int
    """From 1 to n in each run, without gaps."""
    ts: datetime
    """When the event was emitted, in UTC."""
    type: str
    step_id: str | None = None
    node_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    once_key: str | None = field(default=None, compare=False)
    """Identifies an event that later owners must not store again; not loaded with the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun:
    """The end of a run as its executor reports it."""

    key: RunKey
    fence: int
    status: RunStatus
    finish_reason: str | None
    result: Mapping[str, Any] | None
    usage: Mapping[str, Any]
    stop: Mapping[str, Any] | None
    active_seconds: float
    calls: tuple[CallRecord, ...]
    """Changes that the journal does not contain yet."""
    snapshot: Mapping[str, Any]
    """The final ExecutionGraph, for observers; the journal contains all of it."""
    events: tuple[EventRecord, ...] = ()
    """Events that may not be stored yet; the last one is the end of the run."""
    delivered_at: datetime | None = None


def as_ended(run: Run, end: FinishRun, finished_at: datetime) -> Run:
    """Return the run as the store returns it once ``end`` is written."""
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
