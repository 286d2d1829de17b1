"""Contract of the approval store, tested on every implementation."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.waiting_calls import Question, Verdict, WaitingCall
from caseworker.features.waiting_calls.postgres import PostgresWaitingCalls
from caseworker.features.waiting_calls.waiting_calls import (
    Approval,
    Deciding,
    RunWaitingCallStore,
    WaitingCallStore,
)
from caseworker.runs.ports import JournalStore, JournalWrite, Permission, RunStore
from caseworker.runs.run import CancelRequest, Run, RunKey, RunStatus
from tests.support.memory_approvals import MemoryApprovals
from tests.support.memory_runs import MemoryRuns
from tests.support.stores import end_of, new_run, open_stores

KEY = RunKey("default", "case-1")
BY = CancelRequest(requested_by="somebody")


@dataclass(frozen=True)
class ApprovalStores:
    """The approval store of one implementation, with its run store and journal."""

    approvals: WaitingCallStore
    runs: RunStore
    journal: JournalStore

    async def claimed(self, run_id: str = "case-1") -> Run:
        return (await self.runs.accept(new_run(run_id), worker_id="w1")).run

    async def ask(self, run: Run, approval_id: str = "a", **members: Any) -> Approval | None:
        question: dict[str, Any] = {
            "subject": "pay",
            "message": "Pay?",
            "arguments": {"amount": 5},
            "schema": None,
            "timeout_seconds": 60.0,
        }
        asked = Question(**question | members)
        key = f"step/{approval_id}"
        return await self.approvals.ask(
            run,
            WaitingCall(call_id=approval_id, node_id="n000002", call_key=key, question=asked),
        )

    async def suspend(self, run: Run, *waits_for: str) -> RunStatus:
        await self.runs.release(
            run, active_seconds=1.5, calls=(), counted=False, waits_for=waits_for
        )
        return await self.status()

    async def status(self) -> RunStatus:
        run = await self.runs.get(KEY)
        assert run is not None
        return run.status

    async def decide(self, verdict: Verdict = Verdict.APPROVED, **members: Any) -> Approval:
        deciding = Deciding(**{"approval_id": "a", "verdict": verdict, "by": "anna"} | members)
        decided = await self.approvals.decide(KEY, deciding)
        assert decided is not None
        return decided


@pytest.fixture(params=["memory", "postgres"])
async def approval_stores(request: pytest.FixtureRequest) -> AsyncIterator[ApprovalStores]:
    """Open empty stores."""
    if request.param == "memory":
        runs = MemoryRuns()
        yield ApprovalStores(MemoryApprovals(runs), runs, runs)
        return
    async with open_stores(request.getfixturevalue("database_url")) as stores:
        approvals = PostgresWaitingCalls(stores.engines)
        yield ApprovalStores(approvals, stores.runs, stores.journal)


async def test_a_question_is_stored_once_and_kept_as_it_was(
    approval_stores: ApprovalStores,
) -> None:
    """Asking again returns the stored question and its decision."""
    run = await approval_stores.claimed()
    first = await approval_stores.ask(run)
    await approval_stores.decide(arguments={"amount": 3}, reason="less")
    again = await approval_stores.ask(run, message="Other words?")
    assert first is not None
    asked = WaitingCall(call_id="a", node_id="n", call_key="step/a", question=first.question)
    desk = RunWaitingCallStore(approval_stores.approvals, run, CancellationToken())

    assert (first.decision, first.open) == (None, True)
    assert again is not None
    assert again.decision is not None
    assert await desk.ask(asked) == again.decision
    assert again.question == first.question
    assert (again.decision.by, again.decision.arguments) == ("anna", {"amount": 3})
    assert again.decision.reason == "less"
    assert len(await approval_stores.approvals.of_run(KEY) or ()) == 1


async def test_only_the_owner_of_a_run_asks(approval_stores: ApprovalStores) -> None:
    """A worker that has lost the run stores no question."""
    run = await approval_stores.claimed()
    await approval_stores.runs.release(run, active_seconds=0, calls=(), counted=True)

    assert await approval_stores.ask(run) is None
    assert await approval_stores.approvals.of_run(KEY) == []
    assert await approval_stores.approvals.of_run(RunKey("default", "absent")) is None


async def test_a_run_that_waits_is_nobodys_until_something_is_decided(
    approval_stores: ApprovalStores,
) -> None:
    """A waiting run has no worker and counts no attempt; the decision queues it for any worker."""
    run = await approval_stores.claimed()
    await approval_stores.ask(run)

    assert await approval_stores.suspend(run, "a") is RunStatus.WAITING
    waits = await approval_stores.runs.get(KEY)
    assert waits is not None
    assert (waits.worker_id, waits.attempts, waits.active_seconds) == (None, 0, 1.5)
    assert await approval_stores.runs.claim(KEY, "w2") is None
    await approval_stores.decide()
    assert await approval_stores.status() is RunStatus.QUEUED
    taken = await approval_stores.runs.claim(KEY, "w2")
    assert taken is not None
    assert (taken.fence, taken.attempts) == (2, 1)


async def test_a_write_that_comes_after_its_run_began_to_wait_is_answered(
    approval_stores: ApprovalStores,
) -> None:
    """The write is refused at once, because a waiting run has no owner."""
    run = await approval_stores.claimed()
    await approval_stores.ask(run)
    assert await approval_stores.suspend(run, "a") is RunStatus.WAITING

    async with asyncio.timeout(150):
        answer = await approval_stores.journal.write(JournalWrite(key=KEY, fence=run.fence))
        end = await approval_stores.journal.finish(end_of(run))

    assert answer == Permission(owned=False, cancel_request=None)
    assert not end.done
    assert await approval_stores.status() is RunStatus.WAITING


@pytest.mark.parametrize("came_first", ["decision", "cancel", "time"])
async def test_a_run_does_not_begin_to_wait_for_what_has_come_already(
    approval_stores: ApprovalStores, came_first: str
) -> None:
    """A decision, cancel request or timeout that came first puts the run back in the queue."""
    run = await approval_stores.claimed()
    await approval_stores.ask(run, timeout_seconds=1e-6 if came_first == "time" else 60.0)
    if came_first == "decision":
        await approval_stores.decide()
    elif came_first == "cancel":
        await approval_stores.runs.cancel(KEY, BY)

    assert await approval_stores.suspend(run, "a") is RunStatus.QUEUED


async def test_a_run_waits_for_its_open_questions_alone(approval_stores: ApprovalStores) -> None:
    """A question that was decided earlier in the run does not end the wait for another one."""
    run = await approval_stores.claimed()
    await approval_stores.ask(run, "b")
    await approval_stores.decide(approval_id="b")
    await approval_stores.ask(run, "a")

    assert await approval_stores.suspend(run, "a") is RunStatus.WAITING


async def test_the_first_decision_counts(approval_stores: ApprovalStores) -> None:
    """A second decision returns the first one."""
    run = await approval_stores.claimed()
    await approval_stores.ask(run)

    first = await approval_stores.decide(Verdict.REFUSED)
    second = await approval_stores.decide(Verdict.APPROVED)

    assert first.decision == second.decision
    assert second.decision is not None
    assert second.decision.verdict is Verdict.REFUSED


async def test_a_decision_after_the_time_or_the_end_changes_nothing(
    approval_stores: ApprovalStores,
) -> None:
    """A request without a decision counts as timed out when its run reads it after the deadline."""
    run = await approval_stores.claimed()
    await approval_stores.ask(run, timeout_seconds=1e-6)
    late = await approval_stores.decide()
    found = await approval_stores.approvals.decisions(KEY, ["a"])
    assert not late.open
    assert late.decision is None or late.decision.verdict is Verdict.TIMED_OUT
    assert found["a"].verdict is Verdict.TIMED_OUT
    assert found["a"].by is None

    await approval_stores.ask(run, "b")
    await approval_stores.suspend(run, "b")
    cancelled = await approval_stores.runs.cancel(KEY, BY)
    assert cancelled.status is RunStatus.QUEUED
    ended = await approval_stores.approvals.decide(
        KEY, Deciding(approval_id="b", verdict=Verdict.APPROVED, by="anna")
    )
    assert ended is not None
    assert (ended.decision, ended.open) == (None, False)


async def test_what_waits_is_listed_for_its_tenant_alone(approval_stores: ApprovalStores) -> None:
    """Open approvals are listed oldest first until they are decided."""
    run = await approval_stores.claimed()
    await approval_stores.ask(run)
    await approval_stores.ask(run, "b")

    page = await approval_stores.approvals.waiting("default", limit=10, cursor=None)
    assert [each.approval_id for each in page.items] == ["a", "b"]
    assert (await approval_stores.approvals.waiting("other", limit=10, cursor=None)).items == []
    await approval_stores.decide()
    page = await approval_stores.approvals.waiting("default", limit=10, cursor=None)
    assert [each.approval_id for each in page.items] == ["b"]
    other = replace(KEY, tenant="other")
    assert await approval_stores.approvals.get(other, "a") is None
