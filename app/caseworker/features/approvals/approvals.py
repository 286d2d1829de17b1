"""Approvals for runs: questions to a person, each of which gets exactly one decision.

A question is a row that its run stores under its fencing token. It is decided once: the row records
the decision, its author and its time, and later decisions are refused. A decision, the timeout and
the end of the run all lock the run's row first, so exactly one of them wins.

See docs/internals.md, "Waiting for people".
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from caseworker.engine.approvals import ApprovalRequest, Decision, Question, Verdict
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.supervision import shielded
from caseworker.nodes.strict_parsing import joined_places
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.paging import Page
from caseworker.platform.validation import field_of
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.execute.release import when_there
from caseworker.runs.journal.journal import lost_run
from caseworker.runs.ports import Notification
from caseworker.runs.run import Run, RunKey
from caseworker.tools.arguments import ArgumentCheck, UnfitSchemaError
from caseworker.tools.ports import ToolSpec

ASK_GRACE_SECONDS = 2.0
"""Seconds that an SQL statement in progress may still take after its run is stopped; it is not
interrupted."""

MAX_PROBLEMS = 20
"""Maximum number of problems to report if replacement arguments are invalid."""


class ApprovalNotFoundError(LookupError):
    """The run has no approval with this ID."""


class ApprovalDecidedError(Exception):
    """The approval was already decided or timed out, or its run has ended."""


class InvalidArgumentsError(ValueError):
    """Arguments violate their schema; each problem names a field and explains how to fix it."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A stored question, with its decision if it has one."""

    key: RunKey
    approval_id: str
    node_id: str
    """ID of the CallNode that first asked the question."""
    call_key: str
    question: Question
    requested_at: datetime
    expires_at: datetime
    decision: Decision | None
    open: bool
    """Whether the question can still be decided: it is undecided, has not timed out, and its run
    has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """A caller's decision on a question, before it is stored."""

    approval_id: str
    verdict: Verdict
    by: str
    arguments: Mapping[str, Any] | None = None
    reason: str | None = None

    def is_same_as(self, decision: Decision | None) -> bool:
        """Return whether ``decision`` has the same verdict and arguments, from any approver."""
        return (
            decision is not None
            and decision.verdict is self.verdict
            and decision.arguments == self.arguments
        )


class ApprovalStore(Protocol):
    """Stores the questions of all runs; every method is one transaction."""

    async def ask(self, run: Run, question: ApprovalRequest) -> Approval | None:
        """Store a question, unless it is already stored, and return it.

        Returns None if this process no longer owns the run.
        """
        ...

    async def decisions(self, key: RunKey, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        """Record expired questions as timed out, then return the decisions by approval ID."""
        ...

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval | None:
        """Decide a question, and enqueue its run if the run is waiting.

        Returns None if the question does not exist. An earlier decision is returned unchanged. A
        decision that is too late, because of the time limit, a cancel request or the end of the
        run, changes nothing.
        """
        ...

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return a context manager that yields an event, set when a question is decided.

        A notification can be lost, so callers must also poll :meth:`decisions`.
        """
        ...

    async def get(self, key: RunKey, approval_id: str) -> Approval | None:
        """Return a question, or None if it does not exist."""
        ...

    async def of_run(self, key: RunKey) -> Sequence[Approval] | None:
        """Return the questions that a run asked, oldest first; None if the run does not exist."""
        ...

    async def waiting(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Approval]:
        """Return a page of a tenant's open questions, oldest first.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunApprovalStore:
    """Stores the questions of one execution of a run; retries while the database is unavailable."""

    store: ApprovalStore
    run: Run
    token: CancellationToken

    async def ask(self, question: ApprovalRequest) -> Decision | None:
        """Store a question, unless it is already stored; return its decision, or None.

        Raises:
            LostRunError: another worker owns the run now.
        """
        asking = when_there(partial(self.store.ask, self.run, question))
        approval = await shielded(asking, grace_seconds=ASK_GRACE_SECONDS)
        if approval is None:
            raise lost_run(self.token)
        return approval.decision

    async def decisions(self, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        """Return the available decisions by approval ID."""
        ids = tuple(approval_ids)
        looking = when_there(partial(self.store.decisions, self.run.key, ids))
        return await shielded(looking, grace_seconds=ASK_GRACE_SECONDS)

    def listening(self) -> AbstractContextManager[Notification]:
        """Return a context manager that yields an event, set when a question is decided."""
        return self.store.listening(self.run.key)


class RunApprovals:
    """Approval operations for callers: list questions and decide them."""

    def __init__(self, store: ApprovalStore) -> None:
        self.store = store

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval:
        """Decide a question; making the same decision again changes nothing.

        Raises:
            ApprovalNotFoundError: the question or its run does not exist.
            ApprovalDecidedError: another decision, the timeout or the end of the run came first.
            InvalidArgumentsError: the arguments violate the schema, or may not be changed.
        """
        stored = await self.store.get(key, deciding.approval_id)
        if stored is None:
            raise ApprovalNotFoundError(deciding.approval_id)
        if deciding.arguments is not None:
            require_fit(stored.question, deciding.arguments)
        if deciding.reason is not None:
            deciding = replace(deciding, reason=redact_text(deciding.reason))
        decided = await self.store.decide(key, deciding)
        if decided is None:
            raise ApprovalNotFoundError(deciding.approval_id)
        if not deciding.is_same_as(decided.decision):
            raise ApprovalDecidedError
        return decided

    async def of_run(self, key: RunKey) -> Sequence[Approval]:
        """Return the questions that a run asked, oldest first.

        Raises:
            RunNotFoundError: the run does not exist.
        """
        approvals = await self.store.of_run(key)
        if approvals is None:
            raise RunNotFoundError(key.run_id)
        return approvals


def require_fit(question: Question, arguments: Mapping[str, Any]) -> None:
    """Validate the arguments that a person supplied to replace those of a pending call.

    Raises:
        InvalidArgumentsError: the arguments violate the schema; each problem names its field.
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
        violations = [(joined_places("arguments", _place(at)), message) for at, message in problems]
        raise InvalidArgumentsError(violations[:MAX_PROBLEMS])


def _place(at: str) -> str:
    """Return the path of a problem; keys chosen by the caller are shown as ``*``."""
    return field_of(int(name) if name.isdecimal() else name for name in at.split(".") if name)
