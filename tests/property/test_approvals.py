"""Approvals with decisions, cancels, timeouts and losses in any order, drawn from a seed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from caseworker.engine.waiting_calls import Decision, Verdict, WaitingCall
from caseworker.features.waiting_calls.waiting_calls import Approval, Deciding
from caseworker.runs.run import Run, RunKey, RunStatus
from tests.property.approval_stories import KEY, played, problems
from tests.support.memory_approvals import MemoryApprovals
from tests.support.seeds import seeds


@pytest.mark.req("004/cancel-early")
@seeds(fast=60, proofs=400)
def test_nothing_is_called_before_its_approval_and_one_decision_wins(seeds: Iterable[int]) -> None:
    """No call precedes its approval, whatever the order of decisions, cancels and losses."""
    for seed in seeds:
        found = list(problems(*played(seed)))
        assert found == [], f"seed {seed}: {found}"


def test_the_stories_of_approvals_are_not_vacuous() -> None:
    """Runs wait and resume, end in every way, and lose their processes while waiting."""
    seen = Counter[str]()
    for seed in range(150):
        cluster, _ = played(seed)
        row = cluster.database.rows[KEY]
        seen.update(str(status) for status in row.history)
        seen.update(str(e.decision.verdict) for e in row.approvals.values() if e.decision)
        seen["lost"] += bool(cluster.diary.of(KEY, "lost"))
        seen["called"] += bool(cluster.diary.of(KEY, "call"))
        waited = RunStatus.WAITING in row.history
        # A process claims the run to end it.
        last = [RunStatus.WAITING, RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.CANCELLED]
        cancelled = row.history[-4:] == last
        seen["halted"] += row.history[-1] is RunStatus.HALTED
        seen["waited and ended"] += waited and row.history[-1] is RunStatus.COMPLETED
        seen["cancelled while it waited"] += cancelled

    ends = ("waited and ended", "cancelled while it waited", "halted")
    wanted = (*map(str, Verdict), "lost", "called", *ends)
    assert all(seen[each] >= 5 for each in wanted), seen


class ChangeableApprovals(MemoryApprovals):
    """A store in which the last decision wins."""

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval | None:
        row = self._runs.rows[key]
        asked = row.approvals[deciding.approval_id]
        row.approvals[deciding.approval_id] = replace(asked, decision=None)
        return await super().decide(key, deciding)


class EagerApprovals(MemoryApprovals):
    """A store that treats an open approval as approved."""

    async def ask(self, run: Run, asked: WaitingCall) -> Approval | None:
        approval = await super().ask(run, asked)
        if approval is None or approval.decision is not None:
            return approval
        at = approval.requested_at
        return replace(approval, decision=Decision(verdict=Verdict.APPROVED, at=at))


@pytest.mark.parametrize(
    ("variant", "broken"),
    [
        ({"approvals_type": ChangeableApprovals}, "somebody was told"),
        ({"approvals_type": EagerApprovals}, "was called without an approval"),
    ],
    ids=["the last decision wins", "nobody waits"],
)
def test_the_oracle_sees_broken_approvals(variant: Mapping[str, type], broken: str) -> None:
    """The oracle reports each promise that is deliberately broken."""
    found = (each for seed in range(60) for each in problems(*played(seed, **variant)))
    assert any(broken in each for each in found)
