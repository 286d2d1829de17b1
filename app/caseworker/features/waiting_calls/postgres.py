"""Storage for waiting calls in Postgres.

Asking, deciding and suspending first lock the run's row in a separate statement, and then read. A
statement that itself waits for the lock would not see rows committed during the wait.

See docs/internals.md, "Calls that wait".
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Table,
    Text,
    and_,
    func,
    literal,
    null,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.engine.waiting_calls import Author, Decision, Question, Verdict, WaitingCall
from caseworker.features.waiting_calls.waiting_calls import Approval, Deciding
from caseworker.platform.paging import Page
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.platform.postgres.json_text import storable
from caseworker.runs.execute.postgres.suspension import LOCK_OWNED
from caseworker.runs.observers import RunNotifier
from caseworker.runs.ports import Notification
from caseworker.runs.postgres.listener import DECISION_CHANNEL
from caseworker.runs.postgres.queue_jobs import defer_runs
from caseworker.runs.postgres.rows import Row, decode_cursor, id_in, instant_and_id, page_of
from caseworker.runs.postgres.tables import INSTANT, columns, metadata, of_run, run_key, runs
from caseworker.runs.run import TERMINAL, Run, RunKey, RunStatus

approvals = Table(
    "approvals",
    metadata,
    *run_key(),
    Column("approval_id", Text, primary_key=True),
    *columns(Text, "node_id call_key subject message", nullable=False),
    *columns(JSON, "arguments", nullable=False),
    *columns(JSON(none_as_null=True), "schema changed_arguments"),
    *columns(INSTANT, "requested_at expires_at", nullable=False),
    *columns(Text, "decision decided_by reason author"),
    *columns(INSTANT, "decided_at"),
    *columns(Boolean, "run_ended"),
)
"""Waiting calls. ``author`` is null for questions to approvers. ``run_ended`` is true if the run
ended before an answer: the index of open calls leaves them out. The previous release leaves it
null."""

_NOW = func.clock_timestamp()
_DUE = and_(approvals.c.decision.is_(None), approvals.c.expires_at <= _NOW)
_CAN_END = and_(
    runs.c.status.not_in([status.value for status in TERMINAL]),
    runs.c.cancel_requested_at.is_(None),
)
_OPEN = and_(approvals.c.decision.is_(None), approvals.c.expires_at > _NOW, _CAN_END)
_WITH_RUN = approvals.join(
    runs,
    and_(runs.c.tenant_id == approvals.c.tenant_id, runs.c.run_id == approvals.c.run_id),
)
_APPROVALS = select(approvals, _OPEN.label("open"), runs.c.creator).select_from(_WITH_RUN)
_RUN = (
    select(literal(1))
    .where(runs.c.tenant_id == approvals.c.tenant_id, runs.c.run_id == approvals.c.run_id, _CAN_END)
    .correlate(approvals)
    .offset(0)
    .lateral("run")
)
_WAITING = (
    select(approvals, true().label("open"), null().label("creator"))
    .select_from(approvals.join(_RUN, true()))
    .where(
        approvals.c.decision.is_(None),
        approvals.c.author.is_(None),
        approvals.c.run_ended.is_not(True),
        approvals.c.expires_at > func.statement_timestamp(),
    )
)
"""Select the open questions in the order of their index.

Their runs are looked up one by one, because Postgres would otherwise read and sort all questions:
it expects that few of the runs have not ended.
"""

WAKE_DECIDED = """
UPDATE runs SET status = 'queued', queued_at = clock_timestamp()
WHERE tenant_id = %s AND run_id = %s AND status = 'waiting'
RETURNING run_id
"""
"""Queue a waiting run because an approval was decided."""


class PostgresWaitingCalls:
    """Stores waiting calls in Postgres."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.notifier = RunNotifier()

    async def ask(self, run: Run, call: WaitingCall) -> Approval | None:
        """Store a question, unless it is already stored, and return it.

        Returns None if this process no longer owns the run.
        """
        key = run.key
        async with transaction(self._engines.work) as connection:
            place = (key.tenant, key.run_id, run.fence)
            if (await connection.exec_driver_sql(LOCK_OWNED, place)).rowcount == 0:
                return None
            await connection.execute(
                upsert(approvals).values(_row_of(key, call)).on_conflict_do_nothing()
            )
            # After a resume the stored question may already be past its time limit.
            await _time_out(connection, key, [call.call_id])
            return await _read(connection, key, call.call_id)

    async def decisions(self, key: RunKey, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        """Record expired questions as timed out, then return the decisions by approval ID."""
        ids = list(approval_ids)
        query = select(approvals).where(of_run(approvals, key), approvals.c.approval_id.in_(ids))
        async with transaction(self._engines.work) as connection:
            await _time_out(connection, key, ids)
            rows = (await connection.execute(query)).mappings().all()
        decided = {row["approval_id"]: _decision_of(row) for row in rows}
        return {each: decision for each, decision in decided.items() if decision is not None}

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval | None:
        """Store a decision, and queue the run if it is waiting.

        Returns None if the question does not exist. A question that can no longer be decided is
        returned unchanged.
        """
        lock = select(runs.c.status).where(of_run(runs, key)).with_for_update(key_share=True)
        place = of_run(approvals, key) & (approvals.c.approval_id == deciding.approval_id)
        async with transaction(self._engines.work) as connection:
            # Orders this against suspend_in: it sees the decision, or its run is woken here.
            await connection.execute(lock)
            stored = await _read(connection, key, deciding.approval_id)
            if stored is None or not stored.open:
                return stored
            undecided = place & approvals.c.decision.is_(None)  # a read may have timed it out
            stores = update(approvals).where(undecided).values(_values_of(deciding))
            is_new = (await connection.execute(stores)).rowcount > 0
            waited = await connection.exec_driver_sql(WAKE_DECIDED, (key.tenant, key.run_id))
            if waited.one_or_none() is not None:
                await defer_runs(connection, {key: None})
            else:
                text = json.dumps({"tenant": key.tenant, "run_id": key.run_id})
                await connection.execute(select(func.pg_notify(DECISION_CHANNEL, text)))
            decided = await _read(connection, key, deciding.approval_id)
            return decided and replace(decided, is_new=is_new)

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return a context manager that yields an event, set when a question is decided."""
        return self.notifier.listening(key)

    async def get(self, key: RunKey, approval_id: str) -> Approval | None:
        """Return a question, or None if it does not exist."""
        async with transaction(self._engines.work, key.tenant) as connection:
            return await _read(connection, key, approval_id)

    async def waiting_runs_of(self, tenant: str, creator: str, *, limit: int) -> int:
        """Return the number of a caller's runs that wait, at most ``limit``.

        Only runs with tools of their client count.
        """
        waiting = (
            select(literal(1))
            .where(
                runs.c.tenant_id == tenant,
                runs.c.creator == creator,
                runs.c.status == RunStatus.WAITING.value,
            )
            .limit(limit)
            .subquery()
        )
        async with transaction(self._engines.work, tenant) as connection:
            return int(await connection.scalar(select(func.count()).select_from(waiting)) or 0)

    async def of_run(self, key: RunKey) -> Sequence[Approval] | None:
        """Return the questions that a run asked, oldest first; None if the run does not exist."""
        existing_run = select(runs.c.run_id).where(of_run(runs, key), runs.c.request.is_not(None))
        async with transaction(self._engines.work, key.tenant) as connection:
            if await connection.scalar(existing_run) is None:
                return None
            return await _calls_of(connection, key)

    async def calls(self, key: RunKey) -> Sequence[Approval]:
        """Return the questions that a run asked, oldest first."""
        async with transaction(self._engines.work, key.tenant) as connection:
            return await _calls_of(connection, key)

    async def waiting(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Approval]:
        """Return a page of a tenant's open questions, oldest first."""
        order = (approvals.c.requested_at, approvals.c.run_id, approvals.c.approval_id)
        query = _WAITING.where(approvals.c.tenant_id == tenant)
        if cursor is not None:
            query = query.where(tuple_(*order) > decode_cursor("approvals", cursor, _place_in))
        query = query.order_by(*order).limit(limit + 1)
        async with transaction(self._engines.work, tenant) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return page_of(
            "approvals",
            rows,
            limit,
            lambda row: [row["requested_at"].isoformat(), row["run_id"], row["approval_id"]],
            _of_row,
        )


async def _time_out(connection: AsyncConnection, key: RunKey, approval_ids: Sequence[str]) -> None:
    """Mark undecided questions past their time limit as timed out."""
    late = of_run(approvals, key) & approvals.c.approval_id.in_(approval_ids) & _DUE
    decided = {"decision": Verdict.TIMED_OUT.value, "decided_at": _NOW}
    await connection.execute(update(approvals).where(late).values(decided))


async def _calls_of(connection: AsyncConnection, key: RunKey) -> Sequence[Approval]:
    query = _APPROVALS.where(of_run(approvals, key)).order_by(
        approvals.c.requested_at, approvals.c.approval_id
    )
    return [_of_row(row) for row in (await connection.execute(query)).mappings()]


async def _read(connection: AsyncConnection, key: RunKey, approval_id: str) -> Approval | None:
    query = _APPROVALS.where(of_run(approvals, key), approvals.c.approval_id == approval_id)
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else _of_row(row)


def _row_of(key: RunKey, call: WaitingCall) -> dict[str, Any]:
    question = call.question
    return {
        "tenant_id": key.tenant,
        "run_id": key.run_id,
        "approval_id": call.call_id,
        "node_id": call.node_id,
        "call_key": call.call_key,
        "subject": question.subject,
        "message": storable(question.message),
        "arguments": question.arguments,
        "schema": question.schema,
        "author": None if question.author is Author.APPROVER else question.author.value,
        "expires_at": _NOW + func.make_interval(0, 0, 0, 0, 0, 0, question.timeout_seconds),
    }


def _values_of(deciding: Deciding) -> dict[str, Any]:
    return {
        "decision": deciding.verdict.value,
        "decided_by": deciding.by,
        "decided_at": _NOW,
        "reason": deciding.reason,
        "changed_arguments": deciding.arguments,
    }


def _of_row(row: Row) -> Approval:
    return Approval(
        key=RunKey(row["tenant_id"], row["run_id"]),
        approval_id=row["approval_id"],
        node_id=row["node_id"],
        call_key=row["call_key"],
        question=Question(
            subject=row["subject"],
            message=row["message"],
            arguments=row["arguments"],
            schema=row["schema"],
            timeout_seconds=(row["expires_at"] - row["requested_at"]).total_seconds(),
            author=Author(row["author"] or Author.APPROVER),
        ),
        requested_at=row["requested_at"],
        expires_at=row["expires_at"],
        decision=_decision_of(row),
        open=row["open"],
        creator=row["creator"],
    )


def _decision_of(row: Row) -> Decision | None:
    if row["decision"] is None:
        return None
    return Decision(
        verdict=Verdict(row["decision"]),
        arguments=row["changed_arguments"],
        by=row["decided_by"],
        reason=row["reason"],
        at=row["decided_at"],
    )


def _place_in(place: Any) -> ColumnElement[Any]:
    """Return the row value of a cursor; the next page has rows that are greater than it."""
    requested_at, run_id, approval_id = place
    return tuple_(*instant_and_id([requested_at, run_id]), id_in(approval_id))
