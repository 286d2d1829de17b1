"""Runs and receipts as callers see them (spec, section 10)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from pydantic import ConfigDict

from app.runs.ports import CancelStatus, Page
from app.runs.run import CallRecord, CancelRequest, GraphRef, Run, RunKind, RunStatus

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Where to go from a run."""

    __pydantic_config__ = _DOCUMENTED

    self: str
    trace: str
    events: str
    """What happens in the run, while it happens and afterwards."""
    artifacts: str
    """The files that the run has made."""
    cancel: str
    """POST stops the run; so does DELETE on ``self``."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGraph:
    """The registered graph that a run was accepted with."""

    __pydantic_config__ = _DOCUMENTED

    name: str
    version: int | None

    @classmethod
    def of(cls, ref: GraphRef | None) -> Self | None:
        """Return the view of a name, if the run has one."""
        return None if ref is None else cls(name=ref.name, version=ref.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelView:
    """Somebody's wish to stop the run."""

    __pydantic_config__ = _DOCUMENTED

    requested_by: str
    reason: str | None
    requested_at: datetime | None
    delivered_at: datetime | None
    """When the worker that executes the run knew."""

    @classmethod
    def of(cls, cancel_request: CancelRequest | None) -> Self | None:
        """Return the view of a wish, if there is one."""
        if cancel_request is None:
            return None
        return cls(
            requested_by=cancel_request.requested_by,
            reason=cancel_request.reason,
            requested_at=cancel_request.requested_at,
            delivered_at=cancel_request.delivered_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run: what became of a request."""

    __pydantic_config__ = _DOCUMENTED

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
    result: Mapping[str, Any] | None
    """Of a case: answer, verified, finish_reason, logs, artifacts, counters. Of a graph: outputs,
    by step and handle, and steps, each with its status and its error. What there is of it stays
    when the run ends early."""
    usage: Mapping[str, Any] | None
    """What was spent: tokens, seconds, steps, api_calls, cost_usd, llm_calls_small,
    llm_calls_big, tool_calls."""
    stop: Mapping[str, Any] | None
    """Why it ended before its natural end: kind, dimension, scope, limit, used, reason, at."""
    cancel: CancelView | None
    metadata: Mapping[str, Any]
    """What its caller sent along."""
    links: Links

    @classmethod
    def of(cls, run: Run, root: str) -> Self:
        """Return the view of a run."""
        return cls(
            run_id=run.key.run_id,
            kind=run.kind,
            status=run.status,
            graph=RunGraph.of(run.request.graph_ref),
            finish_reason=run.finish_reason,
            created_at=run.created_at,
            started_at=run.started_at,
            finished_at=run.finished_at,
            attempts=run.attempts,
            result=run.result,
            usage=run.usage,
            stop=run.stop,
            cancel=CancelView.of(run.cancel_request),
            metadata=run.metadata,
            links=Links.of(run.key.run_id, root),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some runs, newest first."""

    __pydantic_config__ = _DOCUMENTED

    runs: Sequence[RunView]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: Page, root: str) -> Self:
        """Return the view of a page."""
        return cls(runs=[RunView.of(run, root) for run in page.runs], next_cursor=page.next_cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """An LLM or tool call that had begun before a stop was wished for."""

    __pydantic_config__ = _DOCUMENTED

    node_id: str
    """Its CallNode in the trace."""
    kind: str
    name: str
    status: str
    """``success`` and ``fail`` had taken effect; ``running`` is being cut off."""
    model: str | None
    cost_usd: float

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
            cost_usd=node.get("cost_usd", 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReceipt:
    """What became of a wish to stop a run."""

    __pydantic_config__ = _DOCUMENTED

    run_id: str
    status: RunStatus | None
    """Of the run as the wish found it or left it; null if it does not exist yet."""
    already_finished: bool
    """True if the run had ended before, so that nothing was changed."""
    requested_at: datetime | None
    """When the wish that counts, the first one, was stored."""
    delivered_at: datetime | None
    """When the worker that executes the run knew."""
    settled_at: datetime | None
    """When the run ended."""
    requested_by: str | None
    reason: str | None
    calls: Sequence[CallView]
    """The LLM and tool calls that had begun before the wish."""

    @classmethod
    def of(cls, receipt: CancelStatus) -> Self:
        """Return the view of a receipt."""
        cancel_request = receipt.cancel_request
        return cls(
            run_id=receipt.run_id,
            status=receipt.status,
            already_finished=receipt.already_finished,
            requested_at=cancel_request.requested_at if cancel_request else None,
            delivered_at=cancel_request.delivered_at if cancel_request else None,
            settled_at=receipt.settled_at,
            requested_by=cancel_request.requested_by if cancel_request else None,
            reason=cancel_request.reason if cancel_request else None,
            calls=[CallView.of(record) for record in receipt.calls],
        )
