"""Runs and cancel receipts as callers see them."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema
from typing_extensions import TypeAliasType

from caseworker.api.field_types import DocumentedAs, View
from caseworker.api.result_views import AgentResult, CaseResult, GraphResult, RunStop, Usage
from caseworker.control.budget import Budget, json_name, json_number
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.payloads import Given, PayloadReading
from caseworker.runs.ports import CancelStatus, Page
from caseworker.runs.run import CallRecord, Run, RunKind, RunStatus

_LIMITS = {field.name: json_name(field.name) for field in fields(Budget)}


class Links(View):
    """Where to go from a run."""

    self: str
    trace: str
    events: str
    """What happens in the run, while it happens and afterwards."""
    artifacts: str
    """The files that the run has made."""
    cancel: str
    """POST cancels the run; so does DELETE on ``self``."""

    @classmethod
    def of(cls, run_id: str, root: str) -> Self:
        """Return the links of a run, below the path that the service is served under."""
        here = f"{root}/runs/{run_id}"  # a run id needs no quoting
        return cls(
            self=here,
            trace=f"{here}/trace",
            events=f"{here}/events",
            artifacts=f"{here}/artifacts",
            cancel=f"{here}/cancel",
        )


class RunDefinition(View):
    """The registered graph or agent that a run was accepted with."""

    name: str
    version: int | None


class RunSourceView(View):
    """The run that another one goes on from."""

    run_id: str
    until: str | None
    """The last of its CallNodes that is taken over; null takes over all that had ended well."""


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
    """A run as lists show it: its state, without its result."""

    run_id: str
    kind: RunKind
    status: RunStatus
    """Completed, failed, halted and cancelled are final; halted means that a limit stopped it."""
    graph: RunDefinition | None
    """The registered graph that it executes; null of other runs and of a graph that was sent
    along."""
    agent: RunDefinition | None
    """The registered agent that it executes, or that answers in its thread; null likewise."""
    thread_id: str | None
    """The thread that it answers in."""
    input: Any
    """What a case was asked, or what a graph or agent was given on ``default``, redacted as
    ``trace.payloads`` says. In lists the first 200 characters of a text."""
    finish_reason: FinishReason | None
    """How a case ended; null while it works, if it was cancelled, or if something else broke. Of
    agents it is null: their result has ``terminate_reason``."""
    created_at: datetime
    start_at: datetime | None
    """When it is begun at the earliest; null is at once."""
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    """How often a worker has begun it."""
    limits: dict[str, int | float | None]
    """What it may spend at most, ceilings of the service included; null is unlimited."""
    usage: Annotated[dict[str, Any], DocumentedAs(Usage)] | None
    """What was spent, while it works what was spent so far. Null before it begins, and in lists
    while it works."""
    stop: Annotated[dict[str, Any], DocumentedAs(RunStop)] | None
    """Why it ended before its natural end."""
    cancel: CancelView | None
    from_: Annotated[RunSourceView | None, Field(alias="from")]
    """The run that it goes on from, whose steps and calls it has taken over."""
    priority: int
    concurrency_key: str | None
    """With whose other runs it waits for its turn."""
    metadata: dict[str, Any]
    """What its caller sent along."""
    links: Links

    @classmethod
    def of(cls, run: Run, root: str, given: Given) -> Self:
        """Return the view of a run."""
        return cls(**_members(run, root, given))


class RunDetails(RunSummary):
    """A run as it is shown by itself."""

    inputs: dict[str, Any] | None
    """What a graph or agent was given besides ``input``, by handle; null as that is."""


class CaseRun(RunDetails):
    """A run of a case, and what came of it."""

    kind: Literal[RunKind.CASE]
    result: Annotated[dict[str, Any], DocumentedAs(CaseResult)] | None
    """What there is of it stays when the run ends early."""


class GraphRun(RunDetails):
    """A run of a graph, and what came of it."""

    kind: Literal[RunKind.GRAPH]
    result: Annotated[dict[str, Any], DocumentedAs(GraphResult)] | None
    """What there is of it stays when the run ends early."""


class AgentRun(RunDetails):
    """A run of an agent, and what came of it."""

    kind: Literal[RunKind.AGENT]
    result: Annotated[dict[str, Any], DocumentedAs(AgentResult)] | None
    """What there is of it stays when the run ends early."""


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
    """Return the view of a run, with links below the path that the service is served under."""
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
        # The attempt that waits for a person counts again once it goes on.
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
    """Some runs, newest first."""

    runs: list[RunSummary]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: Page, root: str, given: Sequence[Given]) -> Self:
        """Return the view of a page; ``given`` belongs to its runs, in order."""
        runs = [RunSummary.of(run, root, own) for run, own in zip(page.runs, given, strict=True)]
        return cls(runs=runs, next_cursor=page.next_cursor)


class CallView(View):
    """An LLM or tool call that had begun before the run was cancelled."""

    node_id: str
    """Its CallNode in the trace."""
    kind: str
    name: str
    status: str
    """``success`` and ``fail`` had taken effect; ``running`` is being cut off; ``created`` was
    journaled, and either is refused or begins within a fraction of a second."""
    model: str | None
    cost_usd: float | None
    """Null if its price is not known."""

    @classmethod
    def of(cls, record: CallRecord) -> Self:
        """Return the view of a row of the journal."""
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
    """What came of a request to stop all runs that fit."""

    ended: int
    """Runs that were waiting for a worker: they ended at once."""
    requested: int
    """Runs at work: their workers have been asked to stop them."""
    more: bool
    """True if more runs fit than one request stops: send it again. Runs that have been asked to
    stop are not counted again."""


class CancelReceipt(View):
    """What came of a request to cancel a run."""

    run_id: str
    status: RunStatus | None
    """Of the run once the request was stored; null if it does not exist yet."""
    already_finished: bool
    """True if the run had ended before, so that nothing was changed."""
    requested_at: datetime | None
    """When the first request to cancel the run was stored."""
    delivered_at: datetime | None
    """When the worker that executes the run received it."""
    settled_at: datetime | None
    """When the run ended."""
    requested_by: str | None
    reason: str | None
    calls: list[CallView]
    """The LLM and tool calls that had begun before the request."""

    @classmethod
    def of(cls, receipt: CancelStatus) -> Self:
        """Return the view of what became of a cancel request."""
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
