"""Approvals: actions of a run that need a person's consent.

A step or a call requests an approval by asking a question. The approval's ID is a hash of the run
ID, the call's path and the request. A resumed run therefore asks the same question again and finds
its decision. A pending approval holds no reservation.

While other steps of the run still work, the run keeps executing, and a decision wakes the waiting
call. Once all active work waits for approvals, the run is suspended: this process releases the run,
as it does in a hand-over. A decision, a timeout or a cancel request then resumes it from its
journal.

See docs/internals.md, "Waiting for people".
"""

import asyncio
import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from caseworker.core.budget.stops import Suspended, rfc3339
from caseworker.core.budget.usage import NOTHING
from caseworker.engine.context import FlowContext
from caseworker.engine.events import APPROVAL_REQUESTED, Event
from caseworker.engine.ports import CallOutcome, Entry
from caseworker.engine.quiet import are_quiet
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import set_within
from caseworker.platform.logs.redaction import redact_text

LOOK_SECONDS = (0.02, 1.0)
"""First and maximum interval, in seconds, at which a run with pending approvals polls.

It polls for decisions that it missed, and checks whether it is idle and can be suspended.
"""

_NAME = "approval"


class Verdict(StrEnum):
    """The outcome of an approval: approved, refused or timed out."""

    APPROVED = "approved"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question that an approver has to answer."""

    subject: str
    """Name of the call, or of the step that asks."""
    message: str
    arguments: Any
    """Arguments of the action that needs approval, as JSON."""
    schema: Mapping[str, Any] | None
    """JSON Schema for replacement arguments; None if the approver cannot replace the arguments."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A question with the IDs that identify it, as it is passed to the store."""

    approval_id: str
    node_id: str
    call_key: str
    question: Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a question: whether the action may proceed, and with which arguments."""

    verdict: Verdict
    arguments: Any = None
    """Replacement arguments from the approver; None keeps the requested arguments."""
    by: str | None = None
    """Name of the approver; None after a timeout."""
    reason: str | None = None
    at: datetime

    @property
    def approved(self) -> bool:
        """Whether the action may proceed."""
        return self.verdict is Verdict.APPROVED

    @property
    def refusal(self) -> str:
        """Error message for an action that was refused or not decided in time."""
        if self.verdict is Verdict.TIMED_OUT:
            return "The approval timed out."
        return f"The approver refused it{f': {self.reason}' if self.reason else '.'}"

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as a JSON object."""
        return asdict(self) | {"verdict": self.verdict.value, "at": rfc3339(self.at)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Decision":
        """Build a decision from the output of :meth:`to_dict`."""
        at = datetime.fromisoformat(values["at"])
        return cls(**{**values, "verdict": Verdict(values["verdict"]), "at": at})


class ApprovalPort(Protocol):
    """Stores the approvals of one run. The run's fencing token protects every write."""

    async def ask(self, question: ApprovalRequest) -> Decision | None:
        """Store a question if it is new, and return its decision; None while it is pending.

        Raises:
            Stop: another worker owns the run now.
        """
        ...

    async def decisions(self, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        """Return the decisions by approval ID; approvals that are still pending are absent."""
        ...

    def listening(self) -> AbstractContextManager[asyncio.Event]:
        """Return a context manager that yields an event, set when a new decision may exist."""
        ...


@dataclass(slots=True, eq=False)
class Approvals:
    """Requests approvals for one execution of a run."""

    _store: ApprovalPort
    _waiting: "dict[str, _Waiting]" = field(init=False, default_factory=dict)
    _emitted: set[str] = field(init=False, default_factory=set)
    _watch: asyncio.Task[None] | None = field(init=False, default=None)

    async def decision(self, context: FlowContext, path: StepPath, question: Question) -> Decision:
        """Request an approval for the action at ``path`` and wait for the decision.

        If the journal holds a decision on the same question, it is returned immediately.

        Raises:
            Stop: the run was suspended, or ended by a limit or a cancel request.
        """
        path, journal = path.call(_NAME), context.calls.journal
        asked_hash = _hash_of([question.subject, question.arguments])
        recorded = journal.recorded(path.text)
        if (
            recorded is not None
            and recorded.outcome is CallOutcome.RESULT
            and recorded.request_hash == asked_hash
        ):
            return Decision.from_dict(recorded.value)
        await context.calls.admit(path)
        approval_id = _hash_of([context.run_id, path.text, asked_hash])[:32]
        trace = context.run.trace
        node = trace.begin_node(
            context.trace_parent,
            "system",
            f"{_NAME} of {question.subject}",
            metadata={"approval_id": approval_id, "call_key": path.text},
            running=True,
        )

        def note(outcome: CallOutcome | None, value: Any = None) -> None:
            charge, key = NOTHING, path.text
            entry = Entry(
                call_key=key, request_hash=asked_hash, charge=charge, outcome=outcome, value=value
            )
            journal.note(node, entry)

        note(None)  # buffered; the barrier in ``_decided`` stores it before the question
        stored = ApprovalRequest(
            approval_id=approval_id, node_id=node, call_key=path.text, question=question
        )
        try:
            decision = await self._decided(context, path, stored)
        except BaseException as stop:
            trace.mark_halt(node, str(context.token.stop or stop) or type(stop).__name__)
            raise
        about = decision.to_dict() | {"arguments_changed": decision.arguments is not None}
        del about["arguments"]
        trace.annotate(node, {"decision": about})
        note(CallOutcome.RESULT, decision.to_dict())
        trace.mark_success(node, 0)
        self._emit(context, stored, f"approval.{decision.verdict.value}", about)
        return decision

    async def _decided(
        self, context: FlowContext, path: StepPath, stored: ApprovalRequest
    ) -> Decision:
        with context.calls.activity.works(path):  # no suspension until the question is stored
            await context.calls.journal.barrier(external=True)
            decision = await self._store.ask(stored)
        # Approvers see the full message; events have more readers, so redact it there.
        message = redact_text(stored.question.message)
        about = {"subject": stored.question.subject, "message": message}
        self._emit(context, stored, APPROVAL_REQUESTED, about)
        context.calls.check(path)  # a stop may have arrived while the question was stored
        if decision is not None:
            return decision
        waiting = _Waiting(path, asyncio.get_running_loop().create_future())
        self._waiting[stored.approval_id] = waiting
        if self._watch is None or self._watch.done():  # failed: its waiters are about to leave
            self._watch = asyncio.create_task(self._look(context), name="approvals")
        try:
            async with context.calls.activity.waits(path):
                return await waiting.decision
        finally:
            del self._waiting[stored.approval_id]
            if not self._waiting and self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _emit(
        self, context: FlowContext, stored: ApprovalRequest, kind: str, about: Mapping[str, Any]
    ) -> None:
        """Emit an event about an approval once, even if the question is asked again."""
        once_key = f"{stored.approval_id}|{kind}"
        if context.run.events is not None and once_key not in self._emitted:
            self._emitted.add(once_key)
            data = {"approval_id": stored.approval_id, **about}
            at, node = context.path.text, stored.node_id
            event = Event(type=kind, step_id=at, node_id=node, data=data, once_key=once_key)
            context.run.events.emit(event)

    async def _look(self, context: FlowContext) -> None:
        """Deliver decisions to their waiters; suspend the run once it is idle."""
        delay_seconds, max_delay_seconds = LOOK_SECONDS
        try:
            with self._store.listening() as decided:
                while True:
                    await set_within(decided, delay_seconds)
                    decided.clear()
                    if await are_quiet(context.calls, self._undecided):
                        context.token.trip(Suspended(frozenset(self._waiting)))
                        return
                    await self._pass_on()
                    delay_seconds = min(2 * delay_seconds, max_delay_seconds)
        except Exception as error:
            # Fail the waiters: without this task, nothing would ever wake them.
            for waiting in self._waiting.values():
                if not waiting.decision.done():
                    waiting.decision.set_exception(error)

    async def _pass_on(self) -> None:
        """Wake waiters with their decisions."""
        for approval_id, decision in (await self._store.decisions(self._waiting)).items():
            waiting = self._waiting.get(approval_id)
            if waiting is not None and not waiting.decision.done():
                waiting.decision.set_result(decision)

    def _undecided(self) -> Collection[StepPath]:
        """Return the paths that wait for a decision; empty if a waiter already has one."""
        waiting = self._waiting.values()
        if any(each.decision.done() for each in waiting):
            return ()
        return [each.path for each in waiting]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    path: StepPath
    decision: "asyncio.Future[Decision]"


def _hash_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
