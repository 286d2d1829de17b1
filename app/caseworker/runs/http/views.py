"""API schemas for runs and cancel receipts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema

from caseworker.core.budget.stops import StopKind
from caseworker.core.trace.payloads import Payloads
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.bodies import DocumentedAs, View
from caseworker.platform.paging import Page
from caseworker.runs.kinds import KINDS
from caseworker.runs.ports import LISTED_INPUT_CHARS, CancelStatus
from caseworker.runs.run import CallRecord, DefinitionRef, Run, RunKind, RunStatus

# The classes up to UsedModel are stored as they are shown, so the models only document them and are
# never instantiated. Fields with a default may be missing.


class Usage(View):
    """Resources used by a run, including estimates; so far, if the run has not ended."""

    tokens: int
    """Number of input and output tokens."""
    seconds: float
    steps: int
    """Number of executed steps; retries of a step are not counted."""
    api_calls: int
    """Number of requests to model providers, including retries."""
    cost_usd: float | None
    """Cost in US dollars; null if a model with an unknown price was called."""
    llm_calls: int = 0
    """Number of model calls; retries of a call are not counted."""
    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    """Number of tool calls, including retries."""
    turns: int = 0
    """Number of turns: iterations of an agent that call the model and then tools."""
    tokens_estimated: int = 0
    """Number of tokens in ``tokens`` that are estimated because a request got no response."""
    cost_usd_estimated: float = 0
    """Part of the cost that is estimated, in US dollars."""
    cost_usd_known: float | None = None
    """Cost of the calls with a known price, in US dollars; only present if other calls have an
    unknown price."""
    unpriced_calls: int = 0
    """Number of requests to models with an unknown price."""


class RunStop(View):
    """The reason why a run ended early."""

    kind: StopKind
    dimension: str | None = None
    """Budget dimension whose limit was exceeded, such as ``seconds`` or ``tool_calls``; null for
    other reasons."""
    scope: str | None = None
    """Where the limit applied: ``run``, the path of a step, or a quota such as ``quota of the
    tenant, day``."""
    limit: float | None = None
    used: float | None = None
    reserved: float | None = None
    """Amount of the dimension that calls in progress had reserved."""
    requested: float | None = None
    """Amount of the dimension that was requested and refused."""
    resets_at: datetime | None = None
    """Time at which the period of the limit ends, for a quota of the tenant; null otherwise."""
    requested_by: str | None = None
    reason: str | None = None
    step_id: str | None = None
    """ID of the step that failed, if the run stopped because of an error; otherwise null."""
    error_class: str | None = None
    """Error class, if the run stopped because of an error; otherwise null."""
    call: str | None = None
    """Name of the tool, function or code agent that ended the processes of the run, if its kind is
    ``poisoned``; otherwise null."""
    at: datetime | None = None


class UsedModel(View):
    """A model that answered calls, and their number."""

    provider: str
    model: str
    calls: int


class Links(View):
    """URLs for a run."""

    self: str
    trace: str
    events: str
    """URL of the run's events, both live and after its end."""
    artifacts: str
    """URL of the list of files that the run has created."""
    cancel: str
    """URL to which a POST cancels the run. DELETE on ``self`` does the same."""

    @classmethod
    def of(cls, run_id: str, root: str) -> Self:
        """Return the URLs for a run. ``root`` is their path prefix."""
        base = f"{root}/runs/{run_id}"  # run IDs need no quoting
        return cls(
            self=base,
            trace=f"{base}/trace",
            events=f"{base}/events",
            artifacts=f"{base}/artifacts",
            cancel=f"{base}/cancel",
        )


class RunDefinition(View):
    """The registered graph or agent, with its version, that a run uses."""

    name: str
    version: int | None
    """Version of the definition; null for the agent of an external run."""


class RunSourceView(View):
    """The run from which another run resumes, and how much of it is imported."""

    run_id: str
    until: str | None
    """ID of the last CallNode that was imported; null if all successful ones were."""


FinishReason = Annotated[
    str,
    WithJsonSchema(
        {"type": "string", "enum": ["success", "budget", "big_fail", "requires_action"]}
    ),
]


class CallView(View):
    """A model or tool call that had started before the run was cancelled."""

    node_id: str
    """ID of the CallNode for this call in the trace."""
    kind: str
    name: str
    status: str
    """Status of the call. ``success`` and ``fail`` are final. ``running`` means that it is being
    interrupted. ``created`` means that it has been journaled, and is either refused or started
    within a fraction of a second."""
    model: str | None
    cost_usd: float | None
    """Cost in US dollars; null if the model's price is unknown."""

    @classmethod
    def of(cls, record: CallRecord) -> Self:
        """Return the view of a call that is stored in the journal."""
        node = record.node
        return cls(
            node_id=record.node_id,
            kind=node["kind"],
            name=node["name"],
            status=node["status"],
            model=node.get("model"),
            cost_usd=node["cost_usd"],
        )


def _views_of(calls: Sequence[CallRecord] | None) -> list[CallView] | None:
    return None if calls is None else [CallView.of(record) for record in calls]


class CancelView(View):
    """The first request to cancel the run."""

    requested_by: str
    reason: str | None
    requested_at: datetime | None
    delivered_at: datetime | None
    """Time at which the worker that executes the run received the request; null until then."""
    settled_at: datetime | None
    """Time at which the run ended; null if it has not ended."""
    calls: list[CallView] | None
    """Model and tool calls that had started before the request; null in lists and webhooks."""

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """Return the view of a run's cancel request; None if it has none."""
        if (request := run.cancel_request) is None:
            return None
        return cls(
            requested_by=request.requested_by,
            reason=request.reason,
            requested_at=request.requested_at,
            delivered_at=request.delivered_at,
            settled_at=run.finished_at,
            calls=_views_of(request.calls),
        )


class RunSummary(View):
    """A run as shown in lists, without its result."""

    run_id: str
    kind: RunKind
    status: RunStatus
    """Status of the run. completed, failed, halted and cancelled are final; halted means stopped by
    a limit."""
    graph: RunDefinition | None
    """Registered graph that the run executes; null for inline graphs and other kinds of runs."""
    agent: RunDefinition | None
    """Registered agent that the run executes or that answers in its thread, or the name of an
    external run without a version; null for inline agents and for other kinds of runs."""
    thread_id: str | None
    """ID of the thread in which the run answers; null for runs outside threads."""
    input: Any
    """Question of a case, or the ``default`` input of a graph or agent, shown as ``trace.payloads``
    permits. In lists, texts are truncated to 200 characters."""
    finish_reason: FinishReason | None
    """Reason why a case ended; null before its end, after a cancel or after another error. Always
    null for other kinds of runs; the result of an agent has ``terminate_reason``."""
    created_at: datetime
    start_at: datetime | None
    """Earliest time at which the run may start; null means immediately."""
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    """Number of times that a worker has started the run."""
    limits: dict[str, int | float | None]
    """Limits of the run, capped at the ceilings of the service; null is unlimited."""
    usage: Annotated[dict[str, Any], DocumentedAs(Usage)] | None
    """Resources that the run has used so far. Null before the run starts, and in lists until it
    ends."""
    stop: Annotated[dict[str, Any], DocumentedAs(RunStop)] | None
    """Reason why the run ended early; null if it did not."""
    cancel: CancelView | None
    from_: Annotated[RunSourceView | None, Field(alias="from")]
    """Run from which this run resumed and whose steps and calls it imported; null if it did not
    resume."""
    priority: int
    concurrency_key: str | None
    """Key that limits the number of concurrently active runs; null if there is no limit."""
    metadata: dict[str, Any]
    """JSON object that the caller sent with the run."""
    links: Links


class RequiredCall(View):
    """A call of a run that waits for an answer from outside."""

    call_id: str
    author: Literal["client", "approver"]
    """Who answers: the client that created the run, by POST /runs/{run_id}/calls/{call_id}/result,
    or a person who may decide approvals, by POST /runs/{run_id}/approvals/{call_id}."""
    name: str
    """Name of the tool, or of the step that requests an approval."""
    arguments: Any
    expires_at: datetime
    """Time at which the call fails if it is not answered."""


class RequiredAction(View):
    """What a run waits for from outside."""

    calls: list[RequiredCall]

    @classmethod
    def of(cls, calls: Sequence[Mapping[str, Any]]) -> Self | None:
        """Return the view of open calls; None without any."""
        return cls(calls=[RequiredCall(**each) for each in calls]) if calls else None


class RunDetails(RunSummary):
    """A run as shown individually, with all its inputs."""

    inputs: dict[str, Any] | None
    """Further inputs of a graph or agent, by handle, shown under the same rules as ``input``."""
    required_action: RequiredAction | None = None
    """Calls that wait for an answer from outside; null if there are none."""


_UNCHANGED = tuple(name for name in RunSummary.model_fields if name in Run.__dataclass_fields__)
"""Fields of a run that its views show under the same name; :func:`members_of` converts some."""


def members_of(run: Run, root: str) -> dict[str, Any]:
    """Return the fields of a summary of a run, without its input."""
    ref, source = run.request.definition_ref, run.request.source
    name_of = KINDS[run.kind].agent_name
    if name_of is not None and (name := name_of(run.request)) is not None:
        ref = DefinitionRef(name, kind=DefinitionKind.AGENT)
    definition = None if ref is None else RunDefinition.model_validate(ref)
    return {
        **{name: getattr(run, name) for name in _UNCHANGED},
        "run_id": run.key.run_id,
        **{kind: definition if ref and ref.kind is kind else None for kind in DefinitionKind},
        "thread_id": None if run.request.chat is None else run.request.chat.thread_id,
        "start_at": run.request.start_at,
        # A waiting run has released its attempt; it counts again when it resumes.
        "attempts": run.attempts + (run.status is RunStatus.WAITING),
        "limits": run.request.budget.to_json(),
        "cancel": CancelView.of(run),
        "from": None if source is None else RunSourceView.model_validate(source),
        "priority": run.queueing.priority,
        "concurrency_key": run.queueing.concurrency_key,
        "links": Links.of(run.key.run_id, root),
    }


class RunPage(View):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: Page[Run], root: str, payloads: Payloads) -> Self:
        """Return the view of a page of runs.

        ``root`` is the path prefix for their URLs; ``payloads`` shows their inputs as configured.
        Call this in a thread, because redacting many inputs would block the event loop.
        """
        runs = [
            RunSummary(
                **members_of(run, root),
                input=payloads.beginning(run.request.input, LISTED_INPUT_CHARS),
            )
            for run in page.items
        ]
        return cls(runs=runs, next_cursor=page.next_cursor)


class CancelledRunsView(View):
    """The outcome of a request to cancel all runs that match a filter."""

    ended: int
    """Number of runs that were queued and ended immediately."""
    requested: int
    """Number of active runs whose workers were asked to stop them."""
    more: bool
    """Whether more runs match than one request cancels. If so, send the request again. Runs already
    asked to stop are not counted again."""


class CancelReceipt(View):
    """The outcome of a cancel request."""

    run_id: str
    status: RunStatus | None
    """Status of the run after the request was stored; null if the run does not exist yet."""
    already_finished: bool
    """Whether the run had already ended, so that the request changed nothing."""
    requested_at: datetime | None
    """Time at which the first request to cancel the run was stored; null if there is none."""
    delivered_at: datetime | None
    """Time at which the worker that executes the run received the request; null until then."""
    settled_at: datetime | None
    """Time at which the run ended; null if it has not ended."""
    requested_by: str | None
    reason: str | None
    calls: list[CallView]
    """Model and tool calls that had started before the request."""

    @classmethod
    def of(cls, receipt: CancelStatus) -> Self:
        """Return the view of a cancel request and its effect."""
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
            calls=_views_of(request.calls if request else ()) or [],
        )
