"""Contract of the approval store, tested on every implementation."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from caseworker.engine.approvals import Question, StoredQuestion, Verdict
from caseworker.engine.cancellation import CancellationToken
from caseworker.runs.execute.approvals import Approval, ApprovalStore, Deciding, RunDesk
from caseworker.runs.execute.postgres.approvals import PostgresApprovals
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

    approvals: ApprovalStore
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
            StoredQuestion(
                approval_id=approval_id, node_id="n000002", call_key=key, question=asked
            ),
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
async def world(request: pytest.FixtureRequest) -> AsyncIterator[ApprovalStores]:
    """Open empty stores."""
    if request.param == "memory":
        runs = MemoryRuns()
        yield ApprovalStores(MemoryApprovals(runs), runs, runs)
        return
    async with open_stores(request.getfixturevalue("database_url")) as stores:
        approvals = PostgresApprovals(stores.engines)
        yield ApprovalStores(approvals, stores.runs, stores.journal)


async def test_a_question_is_stored_once_and_kept_as_it_was(world: ApprovalStores) -> None:
    """Asking again returns the stored question and its decision."""
    run = await world.claimed()
    first = await world.ask(run)
    await world.decide(arguments={"amount": 3}, reason="less")
    again = await world.ask(run, message="Other words?")
    assert first is not None
    asked = StoredQuestion(approval_id="a", node_id="n", call_key="step/a", question=first.question)
    desk = RunDesk(world.approvals, run, CancellationToken())

    assert (first.decision, first.open) == (None, True)
    assert again is not None
    assert again.decision is not None
    assert await desk.ask(asked) == again.decision
    assert again.question == first.question
    assert (again.decision.by, again.decision.arguments) == ("anna", {"amount": 3})
    assert again.decision.reason == "less"
    assert len(await world.approvals.of_run(KEY) or ()) == 1


async def test_only_the_owner_of_a_run_asks(world: ApprovalStores) -> None:
    """A worker that has lost the run stores no question."""
    run = await world.claimed()
    await world.runs.release(run, active_seconds=0, calls=(), counted=True)

    assert await world.ask(run) is None
    assert await world.approvals.of_run(KEY) == []
    assert await world.approvals.of_run(RunKey("default", "absent")) is None


async def test_a_run_that_waits_is_nobodys_until_something_is_decided(
    world: ApprovalStores,
) -> None:
    """A waiting run has no worker and counts no attempt; the decision queues it for any worker."""
    run = await world.claimed()
    await world.ask(run)

    assert await world.suspend(run, "a") is RunStatus.WAITING
    waits = await world.runs.get(KEY)
    assert waits is not None
    assert (waits.worker_id, waits.attempts, waits.active_seconds) == (None, 0, 1.5)
    assert await world.runs.claim(KEY, "w2") is None
    await world.decide()
    assert await world.status() is RunStatus.QUEUED
    taken = await world.runs.claim(KEY, "w2")
    assert taken is not None
    assert (taken.fence, taken.attempts) == (2, 1)


async def test_a_write_that_comes_after_its_run_began_to_wait_is_answered(
    world: ApprovalStores,
) -> None:
    """The write is refused at once, because a waiting run has no owner."""
    run = await world.claimed()
    await world.ask(run)
    assert await world.suspend(run, "a") is RunStatus.WAITING

    async with asyncio.timeout(150):
        answer = await world.journal.write(JournalWrite(key=KEY, fence=run.fence))
        end = await world.journal.finish(end_of(run))

    assert answer == Permission(owned=False, cancel_request=None)
    assert not end.done
    assert await world.status() is RunStatus.WAITING


@pytest.mark.parametrize("came_first", ["decision", "cancel", "time"])
async def test_a_run_does_not_begin_to_wait_for_what_has_come_already(
    world: ApprovalStores, came_first: str
) -> None:
    """A decision, cancel request or timeout that came first puts the run back in the queue."""
    run = await world.claimed()
    await world.ask(run, timeout_seconds=1e-6 if came_first == "time" else 60.0)
    if came_first == "decision":
        await world.decide()
    elif came_first == "cancel":
        await world.runs.cancel(KEY, BY)

    assert await world.suspend(run, "a") is RunStatus.QUEUED


async def test_a_run_waits_for_its_open_questions_alone(world: ApprovalStores) -> None:
    """A question that was decided earlier in the run does not end the wait for another one."""
    run = await world.claimed()
    await world.ask(run, "b")
    await world.decide(approval_id="b")
    await world.ask(run, "a")

    assert await world.suspend(run, "a") is RunStatus.WAITING


async def test_the_first_decision_counts(world: ApprovalStores) -> None:
    """A second decision returns the first one."""
    run = await world.claimed()
    await world.ask(run)

    first = await world.decide(Verdict.REFUSED)
    second = await world.decide(Verdict.APPROVED)

    assert first.decision == second.decision
    assert second.decision is not None
    assert second.decision.verdict is Verdict.REFUSED


async def test_a_decision_after_the_time_or_the_end_changes_nothing(world: ApprovalStores) -> None:
    """A request without a decision counts as timed out when its run reads it after the deadline."""
    run = await world.claimed()
    await world.ask(run, timeout_seconds=1e-6)
    late = await world.decide()
    found = await world.approvals.decisions(KEY, ["a"])
    assert not late.open
    assert late.decision is None or late.decision.verdict is Verdict.TIMED_OUT
    assert found["a"].verdict is Verdict.TIMED_OUT
    assert found["a"].by is None

    await world.ask(run, "b")
    await world.suspend(run, "b")
    cancelled = await world.runs.cancel(KEY, BY)
    assert cancelled.status is RunStatus.QUEUED
    ended = await world.approvals.decide(
        KEY, Deciding(approval_id="b", verdict=Verdict.APPROVED, by="anna")
    )
    assert ended is not None
    assert (ended.decision, ended.open) == (None, False)


async def test_what_waits_is_listed_for_its_tenant_alone(world: ApprovalStores) -> None:
    """Open approvals are listed oldest first until they are decided."""
    run = await world.claimed()
    await world.ask(run)
    await world.ask(run, "b")

    page = await world.approvals.waiting("default", limit=10, cursor=None)
    assert [each.approval_id for each in page.items] == ["a", "b"]
    assert (await world.approvals.waiting("other", limit=10, cursor=None)).items == []
    await world.decide()
    page = await world.approvals.waiting("default", limit=10, cursor=None)
    assert [each.approval_id for each in page.items] == ["b"]
    other = replace(KEY, tenant="other")
    assert await world.approvals.get(other, "a") is None
