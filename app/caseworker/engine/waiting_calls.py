"""Calls that wait for an answer from outside of their run.

A waiting call has an author, who may answer it. An approver decides whether an action may be taken,
and answers questions. The client of a run executes functions that only the client has. The call's
ID is a hash of the run ID, the call's path and the request. A resumed run therefore
makes the same call again and finds its answer. A waiting call holds no task, no slot and no
reservation of tokens or money.

While other steps of the run still work, the run keeps executing, and an answer wakes the waiting
call. Once all active work waits for answers, the run is suspended: this process releases the run,
as it does in a hand-over. An answer, the expiry of a call or a cancel request then resumes it from
its journal.

See docs/internals.md, "Calls that wait".
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
from caseworker.core.trace.node import APPROVAL_ID
from caseworker.engine.context import FlowContext
from caseworker.engine.events import APPROVAL_REQUESTED, REQUIRED_ACTION, Event
from caseworker.engine.ports import CallOutcome, Entry
from caseworker.engine.quiet import are_quiet
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import set_within
from caseworker.platform.logs.redaction import redact_text

LOOK_SECONDS = (0.02, 1.0)
"""First and maximum interval, in seconds, at which a run with waiting calls polls.

It polls for answers that it missed, and checks whether it is idle and can be suspended.
"""

OUTPUT, ERROR = "output", "error"
"""Keys of the answers of clients: one of them holds the output of the call, or its error."""
NOT_ANSWERED = "not_answered"
"""Error class of a call that its client did not answer in time."""

_NAME = "approval"


class Author(StrEnum):
    """Who may answer a waiting call."""

    APPROVER = "approver"
    """A person whose key has the scope ``approve``."""
    CLIENT = "client"
    """The client that created the run."""


class Verdict(StrEnum):
    """The outcome of a waiting call: approved, refused or timed out."""

    APPROVED = "approved"
    """An approver consented, or a client sent the output."""
    REFUSED = "refused"
    """An approver refused, or a client sent an error."""
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to the author of an answer: to approve an action, or to execute a function."""

    subject: str
    """Name of the function or action, or of the step that asks."""
    message: str
    arguments: Any
    """Arguments of the function or action, as JSON."""
    schema: Mapping[str, Any] | None
    """JSON Schema for replacement arguments; None if the author cannot replace the arguments."""
    timeout_seconds: float
    author: Author = Author.APPROVER


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A question with the IDs that identify it, as it is passed to the store."""

    call_id: str
    node_id: str
    call_key: str
    question: Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a waiting call."""

    verdict: Verdict
    arguments: Any = None
    """Replacement arguments from an approver; None keeps the requested arguments. From a client,
    ``{"output": …}`` or ``{"error": {"class", "message"}}``."""
    by: str | None = None
    """Name of the caller that answered; None after a timeout."""
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


class WaitingCallPort(Protocol):
    """Stores the waiting calls of one run. The run's fencing token protects every write."""

    async def ask(self, call: WaitingCall) -> Decision | None:
        """Store a call if it is new, and return its answer; None while it waits.

        Raises:
            Stop: another worker owns the run now.
        """
        ...

    async def decisions(self, call_ids: Collection[str]) -> Mapping[str, Decision]:
        """Return the answers by call ID; calls that still wait are absent."""
        ...

    def listening(self) -> AbstractContextManager[asyncio.Event]:
        """Return a context manager that yields an event, set when a new answer may exist."""
        ...


@dataclass(slots=True, eq=False)
class WaitingCalls:
    """Makes the waiting calls of one execution of a run."""

    _store: WaitingCallPort
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
        asked_hash = request_hash_of(question)
        recorded = journal.recorded(path.text)
        if (
            recorded is not None
            and recorded.outcome is CallOutcome.RESULT
            and recorded.request_hash == asked_hash
        ):
            return Decision.from_dict(recorded.value)
        await context.calls.admit(path)
        call_id = id_of(context, path, asked_hash)
        trace = context.run.trace
        node = trace.begin_node(
            context.trace_parent,
            "system",
            f"{_NAME} of {question.subject}",
            metadata={APPROVAL_ID: call_id, "call_key": path.text},
            running=True,
        )

        def note(outcome: CallOutcome | None, value: Any = None) -> None:
            charge, key = NOTHING, path.text
            entry = Entry(
                call_key=key, request_hash=asked_hash, charge=charge, outcome=outcome, value=value
            )
            journal.note(node, entry)

        note(None)
        call = WaitingCall(call_id=call_id, node_id=node, call_key=path.text, question=question)
        try:
            with context.calls.activity.works(path):  # no suspension until the question is stored
                await journal.barrier(external=True)
                answer = await self._store.ask(call)
            # Approvers see the full message; events have more readers, so redact it there.
            message = redact_text(question.message)
            about = {"subject": question.subject, "message": message}
            self._emit(context, call, APPROVAL_REQUESTED, {"approval_id": call_id, **about})
            decision = answer or await self._answer(context, path, call_id)
        except BaseException as stop:
            trace.mark_halt(node, str(context.token.stop or stop) or type(stop).__name__)
            raise
        about = decision.to_dict() | {"arguments_changed": decision.arguments is not None}
        del about["arguments"]
        trace.annotate(node, {"decision": about})
        note(CallOutcome.RESULT, decision.to_dict())
        trace.mark_success(node, 0)
        kind = f"approval.{decision.verdict.value}"
        self._emit(context, call, kind, {"approval_id": call_id, **about})
        return decision

    async def of_client(self, context: FlowContext, path: StepPath, call: WaitingCall) -> Decision:
        """Return the client's answer to a call at ``path`` that is in progress.

        Raises:
            Stop: the run was suspended, or ended by a limit or a cancel request.
        """
        answer, subject = await self._store.ask(call), call.question.subject
        self._emit(context, call, REQUIRED_ACTION, {"call_id": call.call_id, "name": subject})
        return answer or await self._answer(context, path, call.call_id)

    async def _answer(self, context: FlowContext, path: StepPath, call_id: str) -> Decision:
        """Wait for the answer to a stored call."""
        context.calls.check(path)  # a stop may have arrived while the call was stored
        waiting = _Waiting(path, asyncio.get_running_loop().create_future())
        self._waiting[call_id] = waiting
        if self._watch is None or self._watch.done():  # failed: its waiters are about to leave
            self._watch = asyncio.create_task(self._look(context), name="waiting calls")
        try:
            async with context.calls.activity.waits(path):
                return await waiting.decision
        finally:
            del self._waiting[call_id]
            if not self._waiting and self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _emit(
        self, context: FlowContext, call: WaitingCall, kind: str, data: Mapping[str, Any]
    ) -> None:
        """Emit an event about a call once, even if the call is made again."""
        once_key = f"{call.call_id}|{kind}"
        if context.run.events is not None and once_key not in self._emitted:
            self._emitted.add(once_key)
            at, node = context.path.text, call.node_id
            event = Event(type=kind, step_id=at, node_id=node, data=data, once_key=once_key)
            context.run.events.emit(event)

    async def _look(self, context: FlowContext) -> None:
        """Deliver answers to their waiters; suspend the run once it is idle."""
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
        """Wake waiters with their answers."""
        for call_id, decision in (await self._store.decisions(self._waiting)).items():
            waiting = self._waiting.get(call_id)
            if waiting is not None and not waiting.decision.done():
                waiting.decision.set_result(decision)

    def _undecided(self) -> Collection[StepPath]:
        """Return the paths that wait for an answer; empty if a waiter already has one."""
        waiting = self._waiting.values()
        if any(each.decision.done() for each in waiting):
            return ()
        return [each.path for each in waiting]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    path: StepPath
    decision: "asyncio.Future[Decision]"


def request_hash_of(question: Question) -> str:
    """Return the hash that identifies a question among those of other texts."""
    return _hash_of([question.subject, question.arguments])


def id_of(context: FlowContext, path: StepPath, request_hash: str) -> str:
    """Return the ID of a waiting call, which is the same in all executions of the run."""
    return _hash_of([context.run_id, path.text, request_hash])[:32]


def _hash_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
