"""Runs and cancel receipts as callers see them."""

from datetime import datetime
from typing import Any, Self

from app.api.field_types import View
from app.runs.ports import CancelStatus, Page
from app.runs.run import CallRecord, Run, RunKind, RunStatus


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


class RunGraph(View):
    """The registered graph that a run was accepted with."""

    name: str
    version: int | None


class CancelView(View):
    """A request to cancel the run."""

    requested_by: str
    reason: str | None
    requested_at: datetime | None
    delivered_at: datetime | None
    """When the worker that executes the run received it."""


class RunView(View):
    """A run: its state and what came of it."""

    run_id: str
    kind: RunKind
    status: RunStatus
    """Completed, failed, halted and cancelled are final; halted means that a limit stopped it."""
    graph: RunGraph | None
    """The registered graph that it executes; null of other runs and of a graph that was sent
    along."""
    finish_reason: str | None
    """``success``, ``budget`` or ``big_fail``; null while it works, if it was cancelled, or if
    something else broke."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    """How often a worker has begun it."""
    result: dict[str, Any] | None
    """Of a case: answer, verified, finish_reason, logs, artifacts, counters. Of a graph: outputs,
    by step and handle, and steps, each with its status and its error. What there is of it stays
    when the run ends early."""
    usage: dict[str, Any] | None
    """What was spent, while it works what was spent so far: tokens, seconds, steps, api_calls,
    cost_usd, llm_calls_small, llm_calls_big, tool_calls. tokens_estimated and cost_usd_estimated
    are the parts of tokens and cost_usd that are estimates: of what is in flight, and of what was
    sent and never answered. cost_usd is null if the price of a call is not known (unpriced_calls
    of them); cost_usd_known is then the sum of the others. Null while it works where runs are
    listed or accepted."""
    stop: dict[str, Any] | None
    """Why it ended before its natural end: kind, dimension, scope, limit, used, reserved (for work
    in flight), requested, reason, at."""
    cancel: CancelView | None
    metadata: dict[str, Any]
    """What its caller sent along."""
    links: Links

    @classmethod
    def of(cls, run: Run, root: str) -> Self:
        """Return the view of a run."""
        graph, cancel = run.request.graph_ref, run.cancel_request
        return cls(
            run_id=run.key.run_id,
            kind=run.kind,
            status=run.status,
            graph=None if graph is None else RunGraph.model_validate(graph),
            finish_reason=run.finish_reason,
            created_at=run.created_at,
            started_at=run.started_at,
            finished_at=run.finished_at,
            attempts=run.attempts,
            result=run.result,
            usage=run.usage,
            stop=run.stop,
            cancel=None if cancel is None else CancelView.model_validate(cancel),
            metadata=run.metadata,
            links=Links.of(run.key.run_id, root),
        )


class RunPage(View):
    """Some runs, newest first."""

    runs: list[RunView]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: Page, root: str) -> Self:
        """Return the view of a page."""
        return cls(runs=[RunView.of(run, root) for run in page.runs], next_cursor=page.next_cursor)


class CallView(View):
    """An LLM or tool call that had begun before the run was cancelled."""

    node_id: str
    """Its CallNode in the trace."""
    kind: str
    name: str
    status: str
    """``success`` and ``fail`` had taken effect; ``running`` is being cut off."""
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
