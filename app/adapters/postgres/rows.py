"""Rows of the database as the values of the domain, and back."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import RowMapping

from app.control.budget import Budget
from app.runs.run import (
    CallRecord,
    CancelRequest,
    EventRecord,
    GraphRef,
    NewRun,
    Run,
    RunKey,
    RunKind,
    RunRequest,
    RunStatus,
)

Row = Mapping[str, Any] | RowMapping


def request_to_json(request: RunRequest) -> dict[str, Any]:
    """Return a request as it is stored."""
    budget = {name: _plain(limit) for name, limit in _limits(request.budget).items()}
    return {
        "kind": request.kind.value,
        "input": request.input,
        "expected_tools": list(request.expected_tools),
        "gold_answer": request.gold_answer,
        "mode": request.mode,
        "budget": budget,
        "deadline": request.deadline.isoformat() if request.deadline else None,
        "seed": request.seed,
        "timezone": request.timezone,
        **_graph_to_json(request),
    }


def request_from_json(stored: Mapping[str, Any]) -> RunRequest:
    """Return a stored request."""
    limits = dict(stored["budget"])
    if limits.get("max_cost_dollars") is not None:
        limits["max_cost_dollars"] = Decimal(limits["max_cost_dollars"])
    deadline = stored["deadline"]
    return RunRequest(
        kind=RunKind(stored["kind"]),
        input=stored["input"],
        expected_tools=tuple(stored["expected_tools"]),
        gold_answer=stored["gold_answer"],
        mode=stored["mode"],
        budget=Budget(**limits),
        deadline=datetime.fromisoformat(deadline) if deadline else None,
        seed=stored["seed"],
        timezone=stored["timezone"],
        graph=stored.get("graph"),
        graph_ref=GraphRef(**stored["graph_ref"]) if stored.get("graph_ref") else None,
        inputs=stored.get("inputs", {}),
    )


def run_from_row(row: Row) -> Run:
    """Return the run that a row of ``runs`` holds; the row must not be an intent."""
    return Run(
        key=RunKey(row["tenant_id"], row["run_id"]),
        kind=RunKind(row["kind"]),
        status=RunStatus(row["status"]),
        created_at=row["created_at"],
        request_hash=row["request_hash"],
        request=request_from_json(row["request"]),
        metadata=row["metadata"] or {},
        idempotency_key=row["idempotency_key"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        attempts=row["attempts"],
        fence=row["fence"],
        worker_id=row["worker_id"],
        active_seconds=row["active_seconds"],
        cancel_request=cancel_request_from_row(row),
        finish_reason=row["finish_reason"],
        result=row["result"],
        usage=row["usage"],
        stop=row["stop"],
    )


def claimed_run(new: NewRun, worker_id: str, created_at: datetime) -> Run:
    """Return a run that was accepted and claimed in one statement."""
    return Run(
        key=new.key,
        kind=new.request.kind,
        status=RunStatus.RUNNING,
        created_at=created_at,
        request_hash=new.request_hash,
        request=new.request,
        metadata=new.metadata,
        idempotency_key=new.idempotency_key,
        started_at=created_at,
        attempts=1,
        fence=1,
        worker_id=worker_id,
    )


def cancel_request_from_row(row: Row) -> CancelRequest | None:
    """Return the wish to stop that a row of ``runs`` holds."""
    if row["cancel_requested_at"] is None:
        return None
    return CancelRequest(
        requested_by=row["cancel_requested_by"],
        reason=row["cancel_reason"],
        requested_at=row["cancel_requested_at"],
        delivered_at=row.get("cancel_delivered_at"),
    )


def call_to_json(key: RunKey, record: CallRecord) -> dict[str, Any]:
    """Return a row of ``calls``."""
    return {
        "tenant_id": key.tenant,
        "run_id": key.run_id,
        "seq": int(record.node_id[1:]),
        "status": record.node["status"],
        "call_key": record.call_key,
        "request_hash": record.request_hash,
        "charge": record.charge,
        "outcome": record.outcome,
        "value": record.value,
        "node": record.node,
    }


def call_from_row(row: Row) -> CallRecord:
    """Return the journal entry that a row of ``calls`` holds."""
    return CallRecord(
        node=row["node"],
        call_key=row["call_key"],
        request_hash=row["request_hash"],
        charge=row["charge"],
        outcome=row["outcome"],
        value=row["value"],
    )


def event_to_json(key: RunKey, record: EventRecord) -> dict[str, Any]:
    """Return a row of ``events``."""
    return {
        "tenant_id": key.tenant,
        "run_id": key.run_id,
        "seq": record.seq,
        "ts": record.ts.isoformat(),
        "type": record.type,
        "step_id": record.step_id,
        "node_id": record.node_id,
        "data": record.data,
    }


def event_from_row(row: Row) -> EventRecord:
    """Return the event that a row of ``events`` holds."""
    return EventRecord(
        seq=row["seq"],
        ts=row["ts"],
        type=row["type"],
        step_id=row["step_id"],
        node_id=row["node_id"],
        data=row["data"],
    )


def _graph_to_json(request: RunRequest) -> dict[str, Any]:
    """Return what the requests of graph runs have beside those of cases."""
    if request.kind is not RunKind.GRAPH:
        return {}
    ref = request.graph_ref
    return {
        "graph": request.graph,
        "graph_ref": None if ref is None else {"name": ref.name, "version": ref.version},
        "inputs": dict(request.inputs),
    }


def _limits(budget: Budget) -> dict[str, Any]:
    return {name: getattr(budget, name) for name in Budget.__dataclass_fields__}


def _plain(limit: int | float | Decimal | None) -> int | float | str | None:
    return str(limit) if isinstance(limit, Decimal) else limit
