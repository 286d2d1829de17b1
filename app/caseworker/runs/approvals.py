"""Approvals of runs: who is asked what, and the one decision that counts.

A question is a row that its run has stored under its fence. A person decides it once: the row says
what was decided, by whom and when, and whoever comes second is refused. A decision, the time limit
and the end of the run all lock the row of the run first, so exactly one of them is first.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from caseworker.engine.approvals import Asked, Decision, Question, Verdict
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.supervision import shielded
from caseworker.nodes.reading import field_of, joined
from caseworker.observability.redaction import redact_text
from caseworker.runs.errors import (
    ApprovalDecidedError,
    ApprovalNotFoundError,
    InvalidArgumentsError,
    RunNotFoundError,
)
from caseworker.runs.giving_back import when_there
from caseworker.runs.journal import lost_run
from caseworker.runs.notifying import Notification
from caseworker.runs.run import Run, RunKey
from caseworker.tools.arguments import ArgumentCheck, UnfitSchemaError
from caseworker.tools.ports import ToolSpec

ASK_GRACE_SECONDS = 2.0
"""How long a statement may still take when its run is stopped: it is never cut off."""

MAX_PROBLEMS = 20
"""How many problems of changed arguments are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A question as its store shows it."""

    key: RunKey
    approval_id: str
    node_id: str
    """The CallNode that waits, or waited first."""
    call_key: str
    question: Question
    requested_at: datetime
    expires_at: datetime
    decision: Decision | None
    open: bool
    """Whether it can be decided: nobody has, its time is not up, and its run has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """What somebody wants to decide."""

    approval_id: str
    verdict: Verdict
    by: str
    arguments: Mapping[str, Any] | None = None
    reason: str | None = None

    def is_same_as(self, decision: Decision | None) -> bool:
        """Return whether this very decision was made before, by whomever."""
        return (
            decision is not None
            and decision.verdict is self.verdict
            and decision.arguments == self.arguments
        )


@dataclass(frozen=True, slots=True)
class ApprovalPage:
    """Questions that wait, oldest first."""

    approvals: Sequence[Approval]
    next_cursor: str | None


class ApprovalStore(Protocol):
    """The questions of all runs; every method is one transaction."""

    async def ask(self, run: Run, asked: Asked) -> Approval | None:
        """Store a question, unless it is stored, and return it; None if the run is lost."""
        ...

    async def decisions(self, key: RunKey, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        """Return the decisions there are; what nobody decided in time is timed out by now."""
        ...

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval | None:
        """Decide a question, and queue its run if that waits; None if there is no such question.

        A decision that was made before is returned, whatever it was. One that comes too late, for
        the time limit, a cancel request or the end of the run, changes nothing.
        """
        ...

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Yield a notification for decisions about a run that does not wait; some may be missed."""
        ...

    async def get(self, key: RunKey, approval_id: str) -> Approval | None:
        """Return a question."""
        ...

    async def of_run(self, key: RunKey) -> Sequence[Approval] | None:
        """Return the questions of a run, oldest first; None if there is no run."""
        ...

    async def waiting(self, tenant: str, *, limit: int, cursor: str | None) -> ApprovalPage:
        """Return questions that can be decided, oldest first.

        Raises:
            InvalidRunError: the cursor is not one of ours.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunDesk:
    """Where one execution of a run asks; waits for a database that is away."""

    store: ApprovalStore
    run: Run
    token: CancellationToken

    async def ask(self, asked: Asked) -> Decision | None:
        """Store a question, unless it is stored; return its decision if there is one.

        Raises:
            LostRunError: the run belongs to another worker now.
        """
        asking = when_there(partial(self.store.ask, self.run, asked))
        approval = await shielded(asking, grace_seconds=ASK_GRACE_SECONDS)
        if approval is None:
            raise lost_run(self.token)
        return approval.decision

    async def decisions(self, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        """Return the decisions there are."""
        ids = tuple(approval_ids)
        looking = when_there(partial(self.store.decisions, self.run.key, ids))
        return await shielded(looking, grace_seconds=ASK_GRACE_SECONDS)

    def listening(self) -> AbstractContextManager[Notification]:
        """Yield a notification for decisions."""
        return self.store.listening(self.run.key)


class RunApprovals:
    """What people can ask of approvals: see them, decide them."""

    def __init__(self, store: ApprovalStore) -> None:
        self._store = store

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval:
        """Decide a question once; the same decision again changes nothing.

        Raises:
            ApprovalNotFoundError: there is no such question, or no such run.
            ApprovalDecidedError: another decision, its time limit or the end of the run came first.
            InvalidArgumentsError: the arguments do not fit, or may not be changed.
        """
        asked = await self._store.get(key, deciding.approval_id)
        if asked is None:
            raise ApprovalNotFoundError(deciding.approval_id)
        if deciding.arguments is not None:
            require_fit(asked.question, deciding.arguments)
        if deciding.reason is not None:
            deciding = replace(deciding, reason=redact_text(deciding.reason))
        decided = await self._store.decide(key, deciding)
        if decided is None:
            raise ApprovalNotFoundError(deciding.approval_id)
        if not deciding.is_same_as(decided.decision):
            raise ApprovalDecidedError
        return decided

    async def of_run(self, key: RunKey) -> Sequence[Approval]:
        """Return the questions of a run, oldest first.

        Raises:
            RunNotFoundError: there is no such run.
        """
        found = await self._store.of_run(key)
        if found is None:
            raise RunNotFoundError(key.run_id)
        return found

    async def waiting(self, tenant: str, *, limit: int, cursor: str | None) -> ApprovalPage:
        """Return questions that can be decided, oldest first."""
        return await self._store.waiting(tenant, limit=limit, cursor=cursor)


def require_fit(question: Question, arguments: Mapping[str, Any]) -> None:
    """Check arguments that somebody wants to put in the place of what was asked for.

    Raises:
        InvalidArgumentsError: they do not fit; each problem names its field.
    """
    if question.schema is None:
        raise InvalidArgumentsError(
            [("arguments", "These arguments cannot be changed. Omit them.")]
        )
    spec = ToolSpec(name=question.subject, description="", parameters=question.schema)
    try:
        problems = ArgumentCheck(spec, foreign=True).problems(arguments)
    except UnfitSchemaError:
        problems = [
            ("", "These arguments cannot be validated and so cannot be changed. Omit them.")
        ]
    if problems:
        found = [(joined("arguments", _place(at)), said) for at, said in problems]
        raise InvalidArgumentsError(found[:MAX_PROBLEMS])


def _place(at: str) -> str:
    """Return a place in what was sent; a key that somebody made up is shown as ``*``."""
    return field_of(int(name) if name.isdecimal() else name for name in at.split(".") if name)
