"""Calls of runs that wait for an answer from outside, each of which gets exactly one answer.

A waiting call is a row that its run stores under its fencing token. It is answered once: the row
records the answer, its author and its time, and later answers are refused. An answer, the expiry
and the end of the run all lock the run's row first, so exactly one of them wins.

See docs/internals.md, "Calls that wait".
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS, ValueLimits, freeze, thawed
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.supervision import shielded
from caseworker.engine.waiting_calls import Author, Decision, Question, Verdict, WaitingCall
from caseworker.nodes.strict_parsing import joined_places
from caseworker.platform.caller import Caller, KeyScope
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


class CallNotFoundError(LookupError):
    """The run has no call with this ID that the caller may answer."""


class ApprovalDecidedError(Exception):
    """The approval was already decided or timed out, or its run has ended."""


class CallAnsweredError(Exception):
    """The call was already answered or has expired, or its run was stopped."""


class InvalidArgumentsError(ValueError):
    """Arguments violate their schema; each problem names a field and explains how to fix it."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A stored question, with its answer if it has one."""

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
    """Whether the question can still be answered: it has no answer, has not expired, and its run
    is not stopped."""
    creator: str | None = None
    """Identity of the caller that has created the run; None or empty allows every caller of the
    tenant to answer as the client."""
    is_new: bool = False
    """Whether the current request has stored the answer."""

    def may_answer(self, caller: Caller) -> bool:
        """Return whether a caller may answer as the client of the run."""
        is_client = not self.creator or self.creator == caller.identity
        return self.question.author is Author.CLIENT and (
            is_client or KeyScope.ADMIN in caller.scopes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """A caller's answer to a question, before it is stored."""

    approval_id: str
    verdict: Verdict
    by: str | None
    """Name of the caller; None if the call expires."""
    arguments: Mapping[str, Any] | None = None
    reason: str | None = None

    def is_same_as(self, decision: Decision | None) -> bool:
        """Return whether ``decision`` has the same verdict and arguments, from any approver."""
        return (
            decision is not None
            and decision.verdict is self.verdict
            and _canonical(decision.arguments) == _canonical(self.arguments)
        )


class WaitingCallStore(Protocol):
    """Stores the waiting calls of all runs; every method is one transaction."""

    async def ask(self, run: Run, call: WaitingCall) -> Approval | None:
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

    async def waiting_runs_of(self, tenant: str, creator: str, *, limit: int) -> int:
        """Return the number of a caller's runs that wait, at most ``limit``.

        Only runs with tools of their client count.
        """
        ...

    async def calls(self, key: RunKey) -> Sequence[Approval]:
        """Return the questions that a run asked, oldest first."""
        ...

    async def of_run(self, key: RunKey) -> Sequence[Approval] | None:
        """Return the questions that a run asked, oldest first; None if the run does not exist."""
        ...

    async def waiting(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Approval]:
        """Return a page of a tenant's open questions to approvers, oldest first.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunWaitingCallStore:
    """Stores the questions of one execution of a run; retries while the database is unavailable."""

    store: WaitingCallStore
    run: Run
    token: CancellationToken

    async def ask(self, call: WaitingCall) -> Decision | None:
        """Store a call, unless it is already stored; return its answer, or None.

        Raises:
            LostRunError: another worker owns the run now.
        """
        asking = when_there(partial(self.store.ask, self.run, call))
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


class RunWaitingCalls:
    """Operations for callers: list waiting calls and answer them."""

    def __init__(self, store: WaitingCallStore, limits: ValueLimits = DEFAULT_VALUE_LIMITS) -> None:
        self.store = store
        self._limits = limits

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval:
        """Decide a question; making the same decision again changes nothing.

        Raises:
            ApprovalNotFoundError: the question or its run does not exist.
            ApprovalDecidedError: another decision, the timeout or the end of the run came first.
            InvalidArgumentsError: the arguments violate the schema, or may not be changed.
        """
        stored = await self.store.get(key, deciding.approval_id)
        if stored is None or stored.question.author is not Author.APPROVER:
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

    async def answer(self, key: RunKey, deciding: Deciding, caller: Caller) -> Approval:
        """Answer a call as the client of its run; sending an equal answer again changes nothing.

        Raises:
            CallNotFoundError: there is no such call, or the caller may not answer it.
            CallAnsweredError: another answer, the expiry or a stop came first.
            ValueTooLargeError: the output is too large for a value of a run.
        """
        limits = self._limits
        frozen = freeze(
            deciding.arguments,
            max_bytes=limits.max_value_bytes,
            max_depth=limits.max_depth,
            key="limits.max_value_kb",
        )
        deciding = replace(deciding, arguments=thawed(frozen))
        stored = await self.store.get(key, deciding.approval_id)
        if stored is None or not stored.may_answer(caller):
            raise CallNotFoundError(deciding.approval_id)
        answered = await self.store.decide(key, deciding)
        if answered is None:
            raise CallNotFoundError(deciding.approval_id)
        if not deciding.is_same_as(answered.decision):
            raise CallAnsweredError
        return answered

    async def required(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        """Return the open calls of a run as JSON objects; none if the run does not exist."""
        return [required_call(each) for each in await self.store.calls(key) if each.open]

    async def of_run(self, key: RunKey) -> Sequence[Approval]:
        """Return the calls of a run that waited or still wait, oldest first.

        Raises:
            RunNotFoundError: the run does not exist.
        """
        approvals = await self.store.of_run(key)
        if approvals is None:
            raise RunNotFoundError(key.run_id)
        return approvals


def required_call(call: Approval) -> Mapping[str, Any]:
    """Return a call as a JSON object for the author of the answer."""
    return {
        "call_id": call.approval_id,
        "author": call.question.author.value,
        "name": call.question.subject,
        "arguments": call.question.arguments,
        "expires_at": call.expires_at,
    }


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


def _canonical(value: Any) -> str:
    """Return a text by which JSON values are compared: ``true`` and ``1`` differ."""
    return json.dumps(value, sort_keys=True)


def _place(at: str) -> str:
    """Return the path of a problem; keys chosen by the caller are shown as ``*``."""
    return field_of(int(name) if name.isdecimal() else name for name in at.split(".") if name)
