"""Calls that wait, with answers, cancels, timeouts and losses in any order, drawn from a seed."""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from caseworker.engine import calls
from caseworker.engine.waiting_calls import Author, Decision, Verdict, WaitingCall
from caseworker.features.waiting_calls.waiting_calls import Approval, Deciding
from caseworker.runs.journal.journal import RunJournal
from caseworker.runs.run import Run, RunKey, RunStatus
from tests.property.approval_stories import FORK, KEY, played, problems
from tests.support.memory_approvals import MemoryApprovals
from tests.support.memory_rows import Row
from tests.support.seeds import seeds


@pytest.mark.req("004/cancel-early", "cw/17.waiting", "cw/17.result")
@seeds(fast=100, proofs=2000)
def test_nothing_is_called_before_its_approval_and_one_answer_wins(seeds: Iterable[int]) -> None:
    """No call precedes its approval, and each call of a client is charged and answered once.

    That holds whatever the order of answers, cancels, timeouts, losses and forks.
    """
    for seed in seeds:
        found = list(problems(*played(seed)))
        assert found == [], f"seed {seed}: {found}"


def test_the_stories_of_approvals_are_not_vacuous() -> None:
    """Runs wait and resume, end in every way, and lose their processes while waiting."""
    seen = Counter[str]()
    for seed in range(200):
        cluster, story = played(seed)
        seen.update(str(each.status) for each in story.responses)
        seen["forked"] += FORK in cluster.database.rows
        row = cluster.database.rows[KEY]
        seen.update(str(status) for status in row.history)
        seen.update(str(e.decision.verdict) for e in row.approvals.values() if e.decision)
        of_clients = [e for e in row.approvals.values() if e.question.author is Author.CLIENT]
        seen.update(f"client {e.decision.verdict}" for e in of_clients if e.decision)
        seen["several at once"] += len(of_clients) > 1 and RunStatus.WAITING in row.history
        seen["stopped"] += any(e.decision is None for e in of_clients)
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
    endings = ("several at once", "stopped", "forked", "202", "200", "409")
    verdicts = (*map(str, Verdict), *(f"client {each}" for each in Verdict))
    wanted = (*verdicts, "lost", "called", *ends, *endings)
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


class ForgetfulApprovals(MemoryApprovals):
    """A store that queues no waiting run when a call of it is answered."""

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval | None:
        row = self._runs.rows[key]
        waited = row.run is not None and row.run.status is RunStatus.WAITING
        decided = await super().decide(key, deciding)
        if waited and row.run is not None and row.run.status is RunStatus.QUEUED:
            row.run = replace(row.run, status=RunStatus.WAITING)
        return decided


class EndlessApprovals(MemoryApprovals):
    """A store whose calls can be answered after a stop and after their expiry."""

    def _shown(self, row: Row, approval_id: str) -> Approval:
        shown = super()._shown(row, approval_id)
        return replace(shown, open=shown.decision is None)


@pytest.mark.parametrize(
    ("variant", "broken"),
    [
        ({"approvals_type": ChangeableApprovals}, "somebody was told"),
        ({"approvals_type": ChangeableApprovals}, "answers of"),
        ({"approvals_type": EagerApprovals}, "was called without an approval"),
        ({"approvals_type": EagerApprovals}, "was answered by None"),
        ({"approvals_type": ForgetfulApprovals}, "RunStatus.WAITING"),
        ({"approvals_type": EndlessApprovals}, "was answered when it was not open"),
    ],
)
def test_the_oracle_sees_broken_approvals(variant: Mapping[str, type], broken: str) -> None:
    """The oracle reports each promise that is deliberately broken."""
    assert any(broken in each for each in _found_with(variant))


def _charges_again(patch: pytest.MonkeyPatch) -> None:
    usual = calls._CallInProgress

    def unpaid(*about: Any, is_paid: bool) -> Any:
        return usual(*about, is_paid=False)

    patch.setattr(calls, "_CallInProgress", unpaid)


def _has_no_barrier(patch: pytest.MonkeyPatch) -> None:
    async def passed(journal: RunJournal, *, external: bool) -> None:
        """Permit every call."""

    patch.setattr(RunJournal, "barrier", passed)


def _asks_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("caseworker.engine.waiting_calls._hash_of", lambda value: secrets.token_hex(32))


def _reserves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("caseworker.tools.dispatch.ONE_TOOL_CALL", {})


@pytest.mark.parametrize(
    ("breaks", "broken"),
    [
        (_charges_again, "is charged 2 times"),
        (_has_no_barrier, "before the journal had it"),
        (_asks_anew, "asked for more than once"),
        (_reserves_nothing, "has asked"),
    ],
)
def test_the_oracle_sees_a_broken_engine(
    breaks: Callable[[pytest.MonkeyPatch], None], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle reports each promise about waiting calls that a broken engine violates."""
    breaks(monkeypatch)
    assert any(broken in each for each in _found_with({}))


def _found_with(variant: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems in the first stories; a run that does not end counts as one."""
    for seed in range(60):
        try:
            story = played(seed, **variant)
        except AssertionError as error:
            yield str(error)
        else:
            yield from problems(*story)
