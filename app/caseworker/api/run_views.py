"""API schemas of runs and cancel receipts."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema
from typing_extensions import TypeAliasType

from caseworker.api.field_types import DocumentedAs, View
from caseworker.api.result_views import AgentResult, CaseResult, GraphResult, RunStop, Usage
from caseworker.core.budget.budget import Budget, json_name, json_number
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.payloads import Given, PayloadReading
from caseworker.runs.ports import CancelStatus, Page
from caseworker.runs.run import CallRecord, Run, RunKind, RunStatus

_LIMITS = {field.name: json_name(field.name) for field in fields(Budget)}


class Links(View):
    """Links of a run."""

    self: str
    trace: str
    events: str
    """The run's events, live and after its end."""
    artifacts: str
    """The files that the run has created."""
    cancel: str
    """POST cancels the run; so does DELETE on ``self``."""

    @classmethod
    def of(cls, run_id: str, root: str) -> Self:
        """Return the links of a run; they start with the path prefix ``root``."""
        here = f"{root}/runs/{run_id}"  # run IDs need no quoting
        return cls(
            self=here,
            trace=f"{here}/trace",
            events=f"{here}/events",
            artifacts=f"{here}/artifacts",
            cancel=f"{here}/cancel",
        )


class RunDefinition(View):
    """The registered graph or agent with which a run was accepted."""

    name: str
    version: int | None


class RunSourceView(View):
    """The run from which another run resumes."""

    run_id: str
    until: str | None
    """The last imported CallNode; null imports all successful ones."""


FinishReason = Annotated[
    str, WithJsonSchema({"type": "string", "enum": ["success", "budget", "big_fail"]})
]


class CancelView(View):
    """A request to cancel the run."""

    requested_by: str
    reason: str | None
    requested_at: datetime | None
    delivered_at: datetime | None
    """When the worker that executes the run received it."""


class RunSummary(View):
    """A run as shown in lists, without its result."""

    run_id: str
    kind: RunKind
    status: RunStatus
    """completed, failed, halted and cancelled are final; halted means stopped by a limit."""
    graph: RunDefinition | None
    """The registered graph that it executes; null for other kinds and inline graphs."""
    agent: RunDefinition | None
    """The registered agent that it executes, or that answers in its thread; null for other kinds
    and inline agents."""
    thread_id: str | None
    """The thread in which it answers."""
    input: Any
    """The question of a case, or the ``default`` input of a graph or agent, shown as
    ``trace.payloads`` permits. In lists, texts are truncated to 200 characters."""
    finish_reason: FinishReason | None
    """How a case ended; null before its end, after a cancel or after another error. Always null for
    agents: their result has ``terminate_reason``."""
    created_at: datetime
    start_at: datetime | None
    """Earliest start time; null means immediately."""
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    """How often a worker has started it."""
    limits: dict[str, int | float | None]
    """Its limits, capped at the ceilings of the service; null is unlimited."""
    usage: Annotated[dict[str, Any], DocumentedAs(Usage)] | None
    """Resources used so far. Null before the run starts, and in lists until it ends."""
    stop: Annotated[dict[str, Any], DocumentedAs(RunStop)] | None
    """Why it ended early."""
    cancel: CancelView | None
    from_: Annotated[RunSourceView | None, Field(alias="from")]
    """The run from which it resumed, and whose steps and calls it imported."""
    priority: int
    concurrency_key: str | None
    """Key that limits the number of concurrently active runs."""
    metadata: dict[str, Any]
    """Metadata sent by its caller."""
    links: Links

    @classmethod
    def of(cls, run: Run, root: str, given: Given) -> Self:
        """Convert a run to its summary."""
        return cls(**_members(run, root, given))


class RunDetails(RunSummary):
    """A run as shown individually."""

    inputs: dict[str, Any] | None
    """Other inputs of a graph or agent, by handle; shown under the same rules as ``input``."""


class CaseRun(RunDetails):
    """A run of a case, with its result."""

    kind: Literal[RunKind.CASE]
    result: Annotated[dict[str, Any], DocumentedAs(CaseResult)] | None
    """The result; partial if the run ended early."""


class GraphRun(RunDetails):
    """A run of a graph, with its result."""

    kind: Literal[RunKind.GRAPH]
    result: Annotated[dict[str, Any], DocumentedAs(GraphResult)] | None
    """The result; partial if the run ended early."""


class AgentRun(RunDetails):
    """A run of an agent, with its result."""

    kind: Literal[RunKind.AGENT]
    result: Annotated[dict[str, Any], DocumentedAs(AgentResult)] | None
    """The result; partial if the run ended early."""


RunView = TypeAliasType(
    "RunView",
    Annotated[
        CaseRun | GraphRun | AgentRun,
        Field(discriminator="kind", description="A run with its status and result."),
    ],
)

_VIEWS: dict[RunKind, type[CaseRun | GraphRun | AgentRun]] = {
    RunKind.CASE: CaseRun,
    RunKind.GRAPH: GraphRun,
    RunKind.AGENT: AgentRun,
}


async def view_of(run: Run, root: str, payloads: PayloadReading) -> CaseRun | GraphRun | AgentRun:
    """Convert a run; its links start with the path prefix ``root``."""
    given = await payloads.given(run)
    members = _members(run, root, given)
    return _VIEWS[run.kind](**members, inputs=given.inputs, result=run.result)


def _members(run: Run, root: str, given: Given) -> dict[str, Any]:
    named, cancel, budget = run.request.definition_ref, run.cancel_request, run.request.budget
    source = run.request.source
    definition = None if named is None else RunDefinition.model_validate(named)
    return {
        "run_id": run.key.run_id,
        "kind": run.kind,
        "status": run.status,
        "graph": definition if named and named.kind is DefinitionKind.GRAPH else None,
        "agent": definition if named and named.kind is DefinitionKind.AGENT else None,
        "thread_id": None if run.request.chat is None else run.request.chat.thread_id,
        "input": given.input,
        "finish_reason": run.finish_reason,
        "created_at": run.created_at,
        "start_at": run.request.start_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        # A waiting run has released its attempt; it counts again when it resumes.
        "attempts": run.attempts + (run.status is RunStatus.WAITING),
        "limits": {name: json_number(getattr(budget, field)) for field, name in _LIMITS.items()},
        "usage": run.usage,
        "stop": run.stop,
        "cancel": None if cancel is None else CancelView.model_validate(cancel),
        "from": None if source is None else RunSourceView.model_validate(source),
        "priority": run.queueing.priority,
        "concurrency_key": run.queueing.concurrency_key,
        "metadata": run.metadata,
        "links": Links.of(run.key.run_id, root),
    }


class RunPage(View):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: Page, root: str, given: Sequence[Given]) -> Self:
        """Convert a page; ``given`` holds the inputs of its runs, in order."""
        runs = [RunSummary.of(run, root, own) for run, own in zip(page.runs, given, strict=True)]
        return cls(runs=runs, next_cursor=page.next_cursor)


class CallView(View):
    """An LLM or tool call that had started before the run was cancelled."""

    node_id: str
    """Its CallNode in the trace."""
    kind: str
    name: str
    status: str
    """``success`` and ``fail`` are complete; ``running`` is being interrupted; ``created`` is
    journaled, and is either refused or started within a fraction of a second."""
    model: str | None
    cost_usd: float | None
    """Null if its price is unknown."""

    @classmethod
    def of(cls, record: CallRecord) -> Self:
        """Convert a row of the journal."""
        node = record.node
        return cls(
            node_id=record.node_id,
            kind=node["kind"],
            name=node["name"],
            status=node["status"],
            model=node.get("model"),
            cost_usd=node["cost_usd"],
        )


class CancelledRunsView(View):
    """The outcome of a request to cancel all matching runs."""

    ended: int
    """Runs that were queued and ended immediately."""
    requested: int
    """Active runs whose workers were asked to stop them."""
    more: bool
    """True if more runs match than one request cancels; send the request again. Runs already asked
    to stop are not counted again."""


class CancelReceipt(View):
    """The outcome of a cancel request."""

    run_id: str
    status: RunStatus | None
    """Status of the run after the request was stored; null if the run does not exist yet."""
    already_finished: bool
    """True if the run had already ended; the request changed nothing."""
    requested_at: datetime | None
    """When the first request to cancel the run was stored."""
    delivered_at: datetime | None
    """When the worker that executes the run received it."""
    settled_at: datetime | None
    """When the run ended."""
    requested_by: str | None
    reason: str | None
    calls: list[CallView]
    """LLM and tool calls that had started before the request."""

    @classmethod
    def of(cls, receipt: CancelStatus) -> Self:
        """Convert the status of a cancel request."""
        request = receipt.cancel_request
        return cls(
            run_id=receipt.run_id,
            status=receipt.status,
            already_finished=receipt.already_finished,
            requested_at=request.requested_at if request else None,
            delivered_at=request.delivered_at if request else None,
            settled_at=receipt.settled_at,
            requested_by=request.requested_by if request else None,
            reason=request.reason if request else None,
            calls=[CallView.of(record) for record in receipt.calls],
        )
