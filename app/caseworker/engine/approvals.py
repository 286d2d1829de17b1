"""Approvals: what a run may only do once a person has agreed.

Whoever needs one asks with a question. It is stored once, under an id that follows from the place
of the call and from what is asked, so a run that is executed again asks the same and finds the
answer. While it waits it holds no reservation. Once everything else that the run has begun
waits for a person too, the run is suspended: its execution is given up as at a hand-over, and a
decision, a time limit or a cancel request has it executed again from its journal. Until then the
other lanes of the run work, and a decision reaches the one that waits here.
"""

import asyncio
import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from caseworker.control.stops import Suspended, rfc3339
from caseworker.control.usage import NOTHING
from caseworker.engine.calls import Calls
from caseworker.engine.context import FlowContext
from caseworker.engine.events import APPROVAL_REQUESTED, Event
from caseworker.engine.ports import CallOutcome, Entry
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import set_within
from caseworker.observability.redaction import redact_text

LOOK_SECONDS = (0.02, 1.0)
"""How often a run whose other lanes still work looks for decisions that it was not notified of, and
whether it has become quiet: first, at most."""

TURNS = 10
"""How many turns of the event loop nothing may happen before a run counts as quiet: between the end
of one step and the beginning of the next there are a few."""

_NAME = "approval"


class Verdict(StrEnum):
    """What became of a question."""

    APPROVED = "approved"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is asked."""

    subject: str
    """What is to be called, or the step that asks."""
    message: str
    arguments: Any
    """What will be used, as JSON."""
    schema: Mapping[str, Any] | None
    """JSON Schema of the arguments that a person may put in their place; None: they stay."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question as it is stored."""

    approval_id: str
    node_id: str
    call_key: str
    question: Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a question."""

    verdict: Verdict
    arguments: Any = None
    """What is used in place of what was asked for; None: that stays."""
    by: str | None = None
    """Who decided; None: nobody did in time."""
    reason: str | None = None
    at: datetime

    @property
    def approved(self) -> bool:
        """Whether what was asked for may be done."""
        return self.verdict is Verdict.APPROVED

    @property
    def refusal(self) -> str:
        """What is said to whoever wanted to do what was not approved."""
        if self.verdict is Verdict.TIMED_OUT:
            return "Nobody has approved it in time."
        return f"A person has refused it{f': {self.reason}' if self.reason else '.'}"

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        return asdict(self) | {"verdict": self.verdict.value, "at": rfc3339(self.at)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Decision":
        """Return the decision that :meth:`to_dict` has written."""
        at = datetime.fromisoformat(values["at"])
        return cls(**{**values, "verdict": Verdict(values["verdict"]), "at": at})


class ApprovalDesk(Protocol):
    """Where the questions of one run are stored, under the fence of its owner."""

    async def ask(self, asked: Asked) -> Decision | None:
        """Store a question, unless it is stored; return its decision if there is one.

        Raises:
            Stop: the run belongs to another worker now.
        """
        ...

    async def decisions(self, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        """Return the decisions there are."""
        ...

    def listening(self) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set, until the block ends, when something was decided."""
        ...


class Approvals:
    """The questions of one execution of a run."""

    def __init__(self, desk: ApprovalDesk) -> None:
        self._desk = desk
        self._waiting: dict[str, _Waiting] = {}
        self._told: set[str] = set()
        self._watch: asyncio.Task[None] | None = None

    async def decision(self, context: FlowContext, path: StepPath, question: Question) -> Decision:
        """Return what a person decides about what is to happen at ``path``.

        Raises:
            Stop: the run is suspended until then, or ended by a limit or a cancel request.
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
        context.token.check()
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

        note(None)
        asked = Asked(approval_id=approval_id, node_id=node, call_key=path.text, question=question)
        try:
            decision = await self._decided(context, path, asked)
        except BaseException as stop:
            trace.mark_halt(node, str(context.token.stop or stop) or type(stop).__name__)
            raise
        about = decision.to_dict() | {"arguments_changed": decision.arguments is not None}
        del about["arguments"]
        trace.annotate(node, {"decision": about})
        note(CallOutcome.RESULT, decision.to_dict())
        trace.mark_success(node, 0)
        self._emit(context, asked, f"approval.{decision.verdict.value}", about)
        return decision

    async def _decided(self, context: FlowContext, path: StepPath, asked: Asked) -> Decision:
        working = context.calls.working
        working[path.text] = path  # until the question is stored
        try:
            await context.calls.journal.barrier(external=True)
            decision = await self._desk.ask(asked)
        finally:
            working.pop(path.text, None)
        # Whoever decides sees the message as it is; events are read by others, too.
        shown = redact_text(asked.question.message)
        about = {"subject": asked.question.subject, "message": shown}
        self._emit(context, asked, APPROVAL_REQUESTED, about)
        context.token.check()
        if decision is not None:
            return decision
        waiting = _Waiting(path, asyncio.get_running_loop().create_future())
        self._waiting[asked.approval_id] = waiting
        if self._watch is None:
            self._watch = asyncio.create_task(self._look(context), name="approvals")
        try:
            return await waiting.decision
        finally:
            del self._waiting[asked.approval_id]
            if not self._waiting and self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _emit(
        self, context: FlowContext, asked: Asked, kind: str, about: Mapping[str, Any]
    ) -> None:
        """Tell something of a question once, however often it is asked."""
        once = f"{asked.approval_id}|{kind}"
        if context.run.events is not None and once not in self._told:
            self._told.add(once)
            data = {"approval_id": asked.approval_id, **about}
            at, node = context.path.text, asked.node_id
            event = Event(type=kind, step_id=at, node_id=node, data=data, once=once)
            context.run.events.emit(event)

    async def _look(self, context: FlowContext) -> None:
        """Suspend the run once nothing else works; until then, pass decisions on."""
        pause, longest = LOOK_SECONDS
        try:
            with self._desk.listening() as decided:
                while True:
                    await set_within(decided, pause)
                    decided.clear()
                    if await self._is_quiet(context):
                        context.token.trip(Suspended(frozenset(self._waiting)))
                        return
                    await self._pass_on()
                    pause = min(2 * pause, longest)
        except Exception as error:
            for waiting in self._waiting.values():
                if not waiting.decision.done():
                    waiting.decision.set_exception(error)

    async def _pass_on(self) -> None:
        """Tell those that wait what was decided."""
        for approval_id, decision in (await self._desk.decisions(self._waiting)).items():
            waiting = self._waiting.get(approval_id)
            if waiting is not None and not waiting.decision.done():
                waiting.decision.set_result(decision)

    async def _is_quiet(self, context: FlowContext) -> bool:
        """Return whether all that has begun waits for a person, and goes on doing so."""
        trace = context.run.trace
        revision = trace.revision
        for _ in range(TURNS):
            if not _all_inside(context.calls, self._waiting.values()):
                return False
            await asyncio.sleep(0)
        return bool(self._waiting) and trace.revision == revision


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    path: StepPath
    decision: "asyncio.Future[Decision]"


def _all_inside(calls: Calls, waiting: Collection[_Waiting]) -> bool:
    """Return whether each step and call that works stands around one that waits for a person."""
    if any(each.decision.done() for each in waiting):
        return False
    around = {outer for each in waiting for outer in each.path.around()}
    cut_off = calls.detached.covers_inside
    return all(path.text in around or cut_off(path) for path in calls.working.values())


def _hash_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
