"""Approvals in memory next to the runs in memory; each operation is atomic."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from caseworker.engine.waiting_calls import Author, Decision, Verdict, WaitingCall
from caseworker.features.waiting_calls.waiting_calls import Approval, Deciding
from caseworker.platform.paging import Page
from caseworker.runs.observers import RunNotifier
from caseworker.runs.ports import Notification
from caseworker.runs.run import Run, RunKey, RunStatus
from tests.support.memory_rows import Row, as_json, run_of
from tests.support.memory_traces import transaction


class Rows(Protocol):
    """The store of the runs that the approvals belong to."""

    rows: dict[RunKey, Row]

    def now(self) -> datetime: ...

    def requeue(self, row: Row) -> None: ...


def goes_on(row: Row, waits_for: Collection[str], now: datetime) -> bool:
    """Return whether a run that wants to wait for approvals can continue instead."""
    asked = [row.approvals[each] for each in waits_for]
    answered = any(each.decision is not None or each.expires_at <= now for each in asked)
    return answered or run_of(row).cancel_request is not None


class MemoryApprovals:
    """Implements the approval store."""

    def __init__(self, runs: Rows) -> None:
        self._runs = runs
        self._notifier = RunNotifier()
        self.unjournaled: list[str] = []
        """Keys of the calls that were asked before the journal had them."""

    async def ask(self, run: Run, asked: WaitingCall) -> Approval | None:
        async with transaction():
            row = self._runs.rows[run.key]
            owned = run_of(row)
            if owned.fence != run.fence or owned.status is not RunStatus.RUNNING:
                return None
            if asked.call_id not in row.approvals:
                now = self._runs.now()
                question = asked.question
                if all(each.call_key != asked.call_key for each in row.calls.values()):
                    self.unjournaled.append(asked.call_key)
                row.approvals[asked.call_id] = Approval(
                    key=run.key,
                    approval_id=asked.call_id,
                    node_id=asked.node_id,
                    call_key=asked.call_key,
                    question=replace(question, arguments=as_json(question.arguments)),
                    requested_at=now,
                    expires_at=now + timedelta(seconds=question.timeout_seconds),
                    decision=None,
                    open=True,
                )
            self._time_out(row)
            return self._shown(row, asked.call_id)

    async def decisions(self, key: RunKey, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        async with transaction():
            row = self._runs.rows[key]
            self._time_out(row)
            found = {each: row.approvals[each].decision for each in approval_ids}
            return {each: decision for each, decision in found.items() if decision is not None}

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval | None:
        async with transaction():
            row = self._runs.rows.get(key)
            if row is None or deciding.approval_id not in row.approvals:
                return None
            shown = self._shown(row, deciding.approval_id)
            if not shown.open:
                return shown
            decision = Decision(
                verdict=deciding.verdict,
                arguments=as_json(deciding.arguments),
                by=deciding.by,
                reason=deciding.reason,
                at=self._runs.now(),
            )
            row.approvals[deciding.approval_id] = replace(shown, decision=decision)
            if run_of(row).status is RunStatus.WAITING:
                self._runs.requeue(row)
            else:
                self._notifier.notify(key)
            return replace(self._shown(row, deciding.approval_id), is_new=True)

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        return self._notifier.listening(key)

    async def get(self, key: RunKey, approval_id: str) -> Approval | None:
        async with transaction():
            row = self._runs.rows.get(key)
            there = row is not None and approval_id in row.approvals
            return self._shown(row, approval_id) if row is not None and there else None

    async def waiting_runs_of(self, tenant: str, creator: str, *, limit: int) -> int:
        async with transaction():
            runs = [row.run for row in self._runs.rows.values() if row.run is not None]
            waiting = [each for each in runs if each.status is RunStatus.WAITING]
            return min(len(waiting), limit)

    async def calls(self, key: RunKey) -> Sequence[Approval]:
        return await self.of_run(key) or ()

    async def of_run(self, key: RunKey) -> Sequence[Approval] | None:
        async with transaction():
            row = self._runs.rows.get(key)
            if row is None or row.run is None:
                return None
            return [self._shown(row, each) for each in row.approvals]

    async def waiting(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Approval]:
        async with transaction():
            found = [
                self._shown(row, each)
                for key, row in self._runs.rows.items()
                if key.tenant == tenant
                for each in row.approvals
            ]
            asked = [each for each in found if each.question.author is Author.APPROVER]
            return Page([each for each in asked if each.open][:limit], None)

    def wake_due(self) -> None:
        """Queue the runs whose approvals or deadlines have expired."""
        for row in self._runs.rows.values():
            run = row.run
            if run is None or run.status is not RunStatus.WAITING:
                continue
            ends = [each.expires_at for each in row.approvals.values() if each.decision is None]
            if run.request.deadline is not None:
                ends.append(run.request.deadline)
            if min(ends) <= self._runs.now():
                self._runs.requeue(row)

    def _time_out(self, row: Row) -> None:
        now = self._runs.now()
        for approval_id, each in row.approvals.items():
            if each.decision is None and each.expires_at <= now:
                decision = Decision(verdict=Verdict.TIMED_OUT, at=now)
                row.approvals[approval_id] = replace(each, decision=decision)

    def _shown(self, row: Row, approval_id: str) -> Approval:
        approval: Approval = row.approvals[approval_id]
        run = run_of(row)
        can_go_on = not run.finished and run.cancel_request is None
        in_time = approval.expires_at > self._runs.now()
        return replace(approval, open=approval.decision is None and in_time and can_go_on)
