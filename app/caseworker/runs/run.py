"""A run: one accepted request and its life cycle.

    queued -> running -> completed | failed | halted | cancelled
    queued -> cancelled | halted            running -> waiting -> queued
    running -> queued                       (its worker died or released it)

A terminal status never changes. A ``waiting`` run waits for an approval and has no owner.

See docs/internals.md, "One row decides".
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from caseworker.core.budget.accounts import Hold
from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import CancelledError
from caseworker.engine.events import Event
from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.caller import ACTING


class RunStatus(StrEnum):
    """The status of a run, as in the API."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    """A limit stopped the run."""
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.HALTED, RunStatus.CANCELLED})

NEXT: Mapping[RunStatus, frozenset[RunStatus]] = MappingProxyType(
    {
        RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.HALTED}),
        RunStatus.RUNNING: frozenset({RunStatus.WAITING, RunStatus.QUEUED, *TERMINAL}),
        # Only processes of release 0.2.0 on the same database end a waiting run directly.
        RunStatus.WAITING: frozenset({RunStatus.QUEUED, *TERMINAL}),
        **{status: frozenset() for status in TERMINAL},
    }
)


class RunKind(StrEnum):
    """The kind of work that a run executes."""

    CASE = "case"
    GRAPH = "graph"
    AGENT = "agent"
    EXTERNAL = "external"
    """An agent that runs outside of the service and calls models through its gateway."""


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """Identifies a run. Callers choose the IDs, which are unique within a tenant."""

    tenant: str
    run_id: str


@dataclass(frozen=True, slots=True)
class DefinitionRef:
    """A reference to a registered graph or agent."""

    name: str
    version: int | None = None
    """Number of the version; None refers to the newest version."""
    kind: DefinitionKind = DefinitionKind.GRAPH


@dataclass(frozen=True, slots=True)
class RunSource:
    """The run that another run resumes, and the last node to import."""

    run_id: str
    until: str | None = None
    """ID of the last CallNode to import; None imports everything that succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A caller's request with defaults filled in; enough to execute the run again."""

    kind: RunKind
    input: str = ""
    """Input as text, if the kind of the run has no ``graph``; otherwise empty."""
    graph: Mapping[str, Any] | None = None
    """Graph that a request contained or named; the graph of an agent run has one step. It is
    executed as accepted, even if the definitions from which it was built change. None if the kind
    of the run defines the graph."""
    definition_ref: DefinitionRef | None = None
    """Exact version from which ``graph`` was loaded; None if the caller sent it inline."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Inputs for the first steps of the graph, by handle."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields that only requests of this kind have, by name, as JSON; those that were sent, or that
    have a configured default."""
    budget: Budget = field(default_factory=Budget)
    requires_prices: bool = True
    """Whether models without a known price are refused if there is a cost limit. False if that
    limit is only the service's default."""
    limits_spending: bool = True
    """Whether cost or tokens are limited by more than the service's ceilings: by the caller, by a
    default of the kind, or by a quota of the tenant."""
    deadline: datetime | None = None
    start_at: datetime | None = None
    """Earliest start time; None means at once."""
    seed: int | None = None
    timezone: str | None = None
    source: RunSource | None = None
    """Run to resume; None starts from the beginning."""
    chat: ChatInput | None = None
    """Messages of the thread to which the run belongs; None if it belongs to none."""
    traceparent: str | None = None
    """Value of the request's ``traceparent`` header, which names the parent span of the run; None
    without the header."""
    models: tuple[str, ...] | None = None
    """Names of the models that the run may use; None allows all models."""


END_TYPES: tuple[str, ...] = tuple(f"run.{status.value}" for status in sorted(TERMINAL))
"""Event types that a webhook may receive: one for each terminal status."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """The webhook to notify when a run ends."""

    url: str
    events: tuple[str, ...] = END_TYPES
    """Event types to deliver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """How a run is scheduled relative to other runs of its tenant."""

    priority: int = 0
    """Priority among the tenant's queued runs: higher priorities start first."""
    concurrency_key: str | None = None
    """Key that groups runs: at most ``concurrency_limit`` runs with the same key are active. None
    means no such limit."""
    concurrency_limit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run that is about to be accepted."""

    key: RunKey
    request: RunRequest
    request_hash: str
    """Hash of the caller's whole request, to detect that an ID or key is used for another
    request."""
    idempotency_key: str | None = None
    queueing: Queueing = field(default_factory=Queueing)
    named: bool = True
    """Whether the caller chose the run ID. If not, only the idempotency key identifies the
    request."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    creator: str = field(default_factory=lambda: ACTING.get().identity)
    """Identity of the caller, who executes the client's tools of the run; empty allows every caller
    of the tenant."""
    webhook: Webhook | None = None
    prepared: PreparedGraph | None = field(default=None, compare=False, repr=False)
    """Prepared graph, if validation already produced it; otherwise None. It is not stored: a
    process that recovers the run prepares the graph again."""
    require_models: Callable[[Collection[str]], Awaitable[None]] | None = field(
        default=None, compare=False, repr=False
    )
    """Function that raises GraphRefusedError or InvalidRunError if the run uses models other than
    the given ones. It is not stored. Without it, the first call of another model stops the run
    instead."""

    remembered: "RememberedVersion | None" = field(default=None, compare=False, repr=False)
    """The definition of the run, if the process knew it without reading it again. The statement
    that stores the run checks it. None if it was read for this run, or if the run has none."""

    async def current(self) -> "NewRun":
        """Return the run with its definition read again, if it was only remembered.

        Raises:
            GraphRefusedError: the definition does not exist any more.
        """
        return self if self.remembered is None else await self.remembered.again(self)

    async def require_models_of(self, names: Collection[str] | None) -> None:
        """Check that the run only uses models with these ``names``; None allows all models.

        Raises:
            GraphRefusedError: the graph of the run uses other models; each problem has a location.
            InvalidRunError: the run uses other models.
        """
        if names is not None and self.require_models is not None:
            await self.require_models(names)

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed, in which case the run can only be halted."""
        deadline = self.request.deadline
        return deadline is not None and deadline <= datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedVersion:
    """A version that a reference resolved to when this process last read it."""

    ref: DefinitionRef
    sha256: str
    newest: bool
    """Whether the reference named no version, so that a newer version replaces this one."""
    again: Callable[["NewRun"], Awaitable["NewRun"]]
    """Function that reads the definition again and returns the run with it."""

    def to_json(self) -> dict[str, Any]:
        """Return the version as :mod:`caseworker.runs.accept.postgres.batch_accept` checks it."""
        ref, newest = self.ref, self.newest
        about = {"kind": ref.kind.value, "name": ref.name, "version": ref.version}
        return {**about, "sha256": self.sha256, "newest": newest}


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """A caller's request to cancel a run."""

    requested_by: str
    reason: str | None = None
    requested_at: datetime | None = None
    """Time at which the request was stored, on the database's clock; None before that."""
    delivered_at: datetime | None = None
    """Time at which the worker that executes the run received the request; None before that."""
    calls: "Sequence[CallRecord] | None" = None
    """LLM and tool calls that may have taken effect, the last ones; None if they were not read."""

    @property
    def stop(self) -> CancelledError:
        """The stop that ends the run because of this request."""
        return CancelledError(self.reason, requested_by=self.requested_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deaths:
    """The deaths of processes that count against a run, because it executed code at that moment."""

    count: int
    """Number of deaths since one of the functions has ended. All deaths at which other runs
    executed code too count as one."""
    calls: tuple[str, ...] = ()
    """Names of the functions that the run executed when its process last died. Empty if the
    execution of the run failed in the service itself."""
    cause: str = ""
    """Cause of the last death, such as ``SIGSEGV``."""
    suspect: bool = False
    """Whether the run is executed alone in a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it is stored."""

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
    """Number of executions started so far."""
    losses: int = 0
    """Number of consecutive workers that the run has lost without making progress."""
    deaths: Deaths | None = None
    """The deaths of processes that count against the run; only set on claimed runs."""
    fence: int = 0
    """Fencing token. It increases with each claim, and writes with an older token have no
    effect."""
    worker_id: str | None = None
    active_seconds: float = 0.0
    """Execution time of earlier executions in seconds."""
    cancel_request: CancelRequest | None = None
    finish_reason: str | None = None
    result: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    stop: Mapping[str, Any] | None = None
    queueing: Queueing = field(default_factory=Queueing)
    last_seq: int = 0
    """Sequence number of the last event that was stored when the run was claimed; only set on
    claimed runs."""
    stored_once: frozenset[str] = frozenset()
    """Deduplication keys of stored events, which must not be stored again; only set on claimed
    runs."""
    open_starts: tuple[Event, ...] = ()
    """Stored start events of steps, turns, tool calls and calls that have no end event yet, in
    order; only set on claimed runs."""
    accounts: tuple[str, ...] = ()
    """Names of the accounts in which each model call of the run reserves its maximum."""
    streamed: dict[tuple[str | None, str], tuple[int, str]] = field(default_factory=dict)
    """Answers that earlier executions streamed only in part: turn and text, by step ID and event
    type. Only set for the process that claims or ends the run; an entry is removed once a new
    answer replaces it."""

    @property
    def finished(self) -> bool:
        """Whether the run has ended, so that its status is final."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A row of the journal: a CallNode, and the data needed to replay it."""

    node: Mapping[str, Any]
    """The CallNode in the format of a snapshot."""
    call_key: str | None = None
    request_hash: str = ""
    charge: Mapping[str, Any] = field(default_factory=dict)
    outcome: str | None = None
    value: Any = None
    """Result or failure: plain JSON if read from the store; may be serialised if it is yet to be
    stored."""
    request: Mapping[str, Any] | None = None
    """Request in a displayable form. It is written once and only loaded when needed; otherwise
    None."""

    @property
    def node_id(self) -> str:
        """ID of the CallNode."""
        return str(self.node["node_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A stored event, with its sequence number and time."""

    seq: int
    """Sequence number: from 1 to n in each run, without gaps."""
    ts: datetime
    """Time at which the event was emitted, in UTC."""
    type: str
    step_id: str | None = None
    node_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    once_key: str | None = field(default=None, compare=False)
    """Deduplication key of the event, if later owners must not store it again. It is not loaded
    with the event."""
    full_data: Mapping[str, Any] | None = field(default=None, compare=False)
    """The data with its text, if ``data`` refers to the call that stores the text. It is not loaded
    with the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun:
    """The update that ends a run, from the process that executes it."""

    key: RunKey
    fence: int
    status: RunStatus
    finish_reason: str | None
    result: Mapping[str, Any] | None
    usage: Mapping[str, Any]
    stop: Mapping[str, Any] | None
    active_seconds: float
    calls: tuple[CallRecord, ...]
    """Records that have changed since the last write to the journal."""
    snapshot: Mapping[str, Any]
    """Final ExecutionGraph, for observers; the journal contains the same data."""
    events: tuple[EventRecord, ...] = ()
    """Events that may not be stored yet; the last one reports the end of the run."""
    delivered_at: datetime | None = None
    settled: tuple[Hold, ...] = ()
    """Holds of the run with their actual amounts; the store settles all further ones at their
    maximum."""


def as_ended(run: Run, end: FinishRun, finished_at: datetime) -> Run:
    """Return the run as the store will return it once ``end`` is written."""
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
