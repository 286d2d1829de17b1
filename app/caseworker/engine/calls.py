"""The gateway through which a run makes all its calls.

A call passes these stages:

1. Its **CallNode** is created.
2. Its maximum cost is **reserved** in its budget scope and all ancestors; this may wait until other
   reservations are settled.
3. It acquires a **rate slot** if its model is rate-limited. It holds no reservation while it waits
   for the slot.
4. The journal's **barrier** makes all earlier results durable. It refuses the call if the run was
   cancelled or another worker owns it now. The same statement reserves the cost in the **accounts**
   above the run, such as the quota of its tenant. If they are full, the call releases its
   reservation and its slot, and starts again once they may have changed.
5. The call is **performed**, with retries.
6. Its reservation is **settled** with the actual cost, or with an estimate if the response was
   lost. The estimate is marked as one, and a cost above the reservation as an overrun.

While the run is held, because its process shuts down, no call and no attempt starts: it waits
until the run is released (:mod:`caseworker.engine.activity`).

A refused call appears as a halted node with a reason, so a trace shows which call a limit
prevented.

A call that an earlier execution of the run finished is replayed: its result and its node come from
the journal, and nothing is charged. A call that was in flight when its worker was lost is repeated
if that is allowed; both count as one logical call.

See docs/internals.md, "The journal and its barrier".
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

from caseworker.core.budget.accounts import Hold, HoldAnswer
from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import Reservation, Scope
from caseworker.core.budget.retry import GiveUp
from caseworker.core.budget.usage import NOTHING, Charge, checked, sum_of
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.frozen_json import ValueTooLargeError
from caseworker.core.trace.node import (
    ESTIMATED,
    OVERRUN_TOKENS,
    OVERRUN_USD,
    WAITED_FOR_MODEL_MS,
    WAITED_MS,
)
from caseworker.core.trace.spans import SpanOf
from caseworker.engine.activity import Activity
from caseworker.engine.budget_wait import reserved
from caseworker.engine.call import (
    FREE,
    Answered,
    AttemptError,
    AttemptLog,
    Backoff,
    Call,
    OutcomeUnknownError,
    RateSlot,
    Reply,
    Spent,
    SpentSum,
    call_failed,
    recorded_result,
)
from caseworker.engine.call_maximum import CallMaximum, exceeded
from caseworker.engine.cancellation import CancellationToken, is_being_cancelled
from caseworker.engine.events import (
    CALL_CANCELLED,
    CALL_COMPLETED,
    CALL_ERROR,
    CALL_STARTED,
    Event,
    EventSink,
)
from caseworker.engine.ports import (
    AccountQueuePosition,
    CallOutcome,
    Entry,
    Journal,
    Recorded,
    RunAccounts,
)
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import DetachedWork
from caseworker.platform.logs.errors import class_name, message_of_error
from caseworker.platform.logs.trace_context import within_span

TOO_LARGE = "too_large"
"""Error class of a call whose result exceeds a size limit."""

_NO_SPAN = nullcontext()


class Calls:
    """Makes all calls of one run."""

    def __init__(
        self,
        *,
        graph: ExecutionGraph,
        journal: Journal,
        token: CancellationToken,
        jitter: Callable[[], float],
        deadline_in: Callable[[], float | None] = lambda: None,
        events: EventSink | None = None,
        span_of: SpanOf | None = None,
        accounts: RunAccounts | None = None,
        activity: Activity | None = None,
    ) -> None:
        """Open the gateway.

        ``jitter`` draws from [-1, 1]. ``deadline_in`` returns the seconds until the run's deadline,
        or None if it has none. ``events`` receives the start and the end of each call. ``span_of``
        returns the trace context of a call's span, which is propagated to the called service.
        ``accounts`` are the limits above the run; None if there are none. ``activity`` is the work
        of the run in progress; the default is for a run that is never held.
        """
        self.graph = graph
        self.accounts = accounts
        self.journal = journal
        self.token = token
        self.events = events
        self._span_of = span_of
        self.backoff = Backoff(jitter, deadline_in)
        self.detached = DetachedWork()
        self.activity = activity or Activity(token)
        self._requested_in: set[str] = set()
        self._called_in: set[str] = set()
        """The path texts of steps and attempts in which a call was requested, and was made."""

    async def perform(self, call: Call, *, parent: str, scope: Scope) -> Answered:
        """Make a call, or replay its result from the journal.

        ``parent`` is the ID of the CallNode that made the call: a step, or another call whose
        result requests this one.

        Raises:
            CallFailedError: the call failed, and its retries are exhausted or it is not retryable.
            OutcomeUnknownError: an earlier attempt may have taken effect and must not be repeated.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        enclosing = call.key.enclosing_paths()
        self._requested_in |= enclosing
        before = self._earlier_try_of(call)
        if before is not None and before.outcome is not CallOutcome.UNKNOWN:
            self._called_in |= enclosing
            return recorded_result(before)  # allowed even after a stop: a replay costs nothing
        await self.admit(call.key)
        activity = self.activity
        # An interrupted attempt of this run has already paid the charge per call.
        is_paid = before is not None and not before.imported
        progress = _CallInProgress(self, call, parent, scope, is_paid=is_paid)
        activity.working[progress] = call.key
        try:
            while True:
                end = await progress.attempt()
                if isinstance(end, Reply):
                    break
                progress.note_usage()
                if isinstance(end, HoldAnswer):
                    await progress.wait_for_accounts(end)
                elif end is NotMade.RUN_HELD:
                    await activity.start(call.key)
                elif (delay := progress.delay_after(end)) is None:
                    break
                else:
                    async with activity.waits(call.key):
                        await asyncio.sleep(delay)
            end = progress.end(end)
        except BaseException as error:
            progress.interrupt(error)
            raise
        finally:
            progress.leave_accounts()
            del activity.working[progress]
            if activity.is_held:
                activity.changed()
            if progress.attempts:
                self._called_in |= enclosing
        if isinstance(end, AttemptError):
            failure = end.to_json(progress.attempts)
            raise call_failed(failure, progress.node, end.retry_after_seconds)
        return Answered(end.value, progress.node)

    def check(self, path: StepPath) -> None:
        """Check that a step or call may start.

        Raises:
            Stop: the run, or the part of it around this path, is being stopped.
            asyncio.CancelledError: the work around this path was cut off.
        """
        if self.token.stop is not None:
            self.token.check()
        if self.activity.ending:
            self.activity.check(path)
        if self.detached.areas:
            self.detached.check(path)

    async def admit(self, path: StepPath) -> None:
        """Return if work that the journal does not repeat may start now.

        While the run is held, wait for its release.

        Raises:
            Stop: the run, or the part of it around this path, was stopped or released.
            asyncio.CancelledError: the work around this path was cut off.
        """
        if self.token.is_delaying:
            await self.frontier(path)
        self.check(path)
        if self.activity.is_held:
            await self.activity.start(path)

    async def frontier(self, path: StepPath) -> None:
        """Mark the point from which the journal has nothing left to repeat for a step or call.

        The first such point ends the delay of stops. If a stop is already delayed, wait for it.

        Raises:
            Stop: the stop of the run.
        """
        token = self.token
        if not token.is_delaying:
            return
        if token.delayed is None:
            token.release()
            return
        async with self.activity.waits(path):
            await token.wait()
        token.check()

    def began_in(self, path: StepPath) -> bool | None:
        """Return whether a call inside a step was made, in this or an earlier execution of the run.

        None means that the step has requested no call.
        """
        if path.text in self._called_in:
            return True
        if self.journal.spent_below(path).keys() - {Dimension.STEPS}:
            return True
        return False if path.text in self._requested_in else None

    def in_span(self, node_id: str) -> AbstractContextManager[None]:
        """Make a CallNode's span the current one while the block runs, if spans are propagated."""
        if self._span_of is None:
            return _NO_SPAN
        span = self._span_of(node_id)
        return within_span(span.trace_id, span.span_id or "0", sampled=span.sampled)

    def _earlier_try_of(self, call: Call) -> Recorded | None:
        """Return the journal record of the same call and request, if an earlier execution made it.

        Raises:
            OutcomeUnknownError: its outcome is unknown and it must not be repeated.
        """
        before = self.journal.recorded(call.key.text)
        if before is None or before.outcome is CallOutcome.NOT_MADE:
            return None
        if before.request_hash != call.request_hash and not before.imported:
            return None
        if before.outcome is CallOutcome.UNKNOWN and not call.repeatable:
            raise OutcomeUnknownError("An earlier try may have taken effect.")
        return before


class NotMade(Enum):
    """The end of an attempt that was not made."""

    RUN_HELD = "run held"
    """The run is held, so that no attempt starts."""


class _CallInProgress:
    """One call in the gateway: its node, its attempts, its usage and its journal entry."""

    def __init__(
        self, calls: Calls, call: Call, parent: str, scope: Scope, *, is_paid: bool
    ) -> None:
        """Create the CallNode of a call; ``is_paid`` is whether the charge per call is paid."""
        self._calls = calls
        self._call = call
        self._scope = scope
        self._graph = calls.graph
        self.node = call.node_id = calls.graph.begin_node(
            parent, call.kind, call.name, call.model, {"call_key": call.key.text, **call.metadata}
        )
        self._step_id = calls.graph.step_of(parent)
        if call.trace_request is not None:
            calls.journal.note_request(self.node, call.trace_request)
            call.trace_request = None  # the journal keeps it until it is stored
        self.attempts = 0
        self._started_ms = 0
        """Start of the first attempt."""
        self._retries: AttemptLog | None = None
        """Records the attempts; None until the first one has failed."""
        self._charge_per_call: Charge = NOTHING if is_paid else call.per_call
        accounts = calls.accounts
        self._maximum = CallMaximum(call, None if accounts is None else accounts.free_amounts)
        self._spent = SpentSum()
        self._overrun: dict[str, float] = {}
        self._waits_since_ms: int | None = None
        self._waited_ms = self._waited_for_model_ms = 0
        self._slot: RateSlot | None = None
        self._position: AccountQueuePosition | None = None
        """Position in the queue for the accounts, until an attempt is reserved in them."""

    async def attempt(self) -> "Reply | AttemptError | HoldAnswer | NotMade":
        """Reserve the cost, acquire the rate slot, pass the barrier, make one attempt, settle it.

        Returns the reply or the failure of the attempt; the answer of the accounts above the run if
        they are full; or ``RUN_HELD``. With the last two, no attempt was made, and nothing stays
        reserved.
        """
        call, calls = self._call, self._calls
        counted = checked(sum_of((self._charge_per_call, call.per_attempt)))
        self._maximum.counted = counted
        if calls.accounts is not None:
            await self._queue_for(calls.accounts)
        slot = self._slot = call.rate_slot()
        reservation = await (self._reserved() if slot is None else self._reserved_with(slot))
        spent: Spent | None = FREE
        started, settled, hold = False, False, None
        try:
            # Order matters: the barrier makes the charge in flight durable before the call is made,
            # so that recovery charges the call even if this worker is lost right after it.
            self._note_in_flight()
            if calls.accounts is None or self._position is None:
                await calls.journal.barrier(external=call.external)
            else:
                hold = self._hold()
                answer = await calls.accounts.barrier(hold)
                if not answer.granted:
                    hold = None
                    return answer
                self.leave_accounts()
            calls.check(call.key)
            if calls.activity.is_held:
                return NotMade.RUN_HELD
            self._start_attempt()
            spent, started = None, True
            if call.is_charged_first:
                self._settle(reservation, hold, FREE, started=True)
                settled = True
            try:
                with calls.in_span(self.node):
                    async with asyncio.timeout(call.timeout_seconds) as limit:
                        end: Reply | AttemptError = await call.send(self.attempts)
            except (AttemptError, TimeoutError, asyncio.CancelledError) as error:
                if (failure := _failure_in(error, call, limit)) is None:
                    raise
                # A traceback would refer to this frame, and the cycle would keep the run alive.
                end = failure.with_traceback(None)
                del failure
            self._end_attempt(end)
            spent = end.spent
            return end
        finally:
            # Also runs on cancellation: then the usage is unknown and settled as an estimate.
            if not settled:
                self._settle(reservation, hold, spent, started=started)

    def _start_attempt(self) -> None:
        """Record the start of an attempt, in the node of the call or in a separate node."""
        if self._retries is None:
            self._emit(CALL_STARTED, {})
            self._started_ms = self._graph.now_ms()
            self._graph.mark_running(self.node)
        else:
            self._graph.increment_retries(self.node)
            self._calls.journal.touch()  # no event stores the attempt
            self._retries.begin(self.attempts + 1)
        self.attempts += 1

    def _end_attempt(self, end: Reply | AttemptError) -> None:
        failure = end if isinstance(end, AttemptError) else None
        if self._retries is not None:
            self._retries.end(failure)
        elif failure is not None:
            self._retries = AttemptLog(self._graph, self.node)
            self._retries.first_failed(failure, self._started_ms)

    def _settle(
        self, reservation: Reservation, hold: Hold | None, spent: Spent | None, *, started: bool
    ) -> None:
        """Replace what is reserved for an attempt by its usage; ``spent`` None is unknown."""
        if spent is None:
            spent = self._call.lost()
        used: Charge = NOTHING  # an attempt that does not start costs nothing
        if started:
            used = spent.charge(self._maximum.counted)
            self._spent.add(spent, used)
            self._note_overrun(spent)
        reservation.settle(used)
        if hold is not None and self._calls.accounts is not None:
            self._calls.accounts.settle(hold, used)
        if self._slot is not None:
            self._slot.settle(spent.tokens)

    def _note_overrun(self, spent: Spent) -> None:
        """Mark the call if an attempt used more than was reserved for it."""
        reserved = self._maximum.estimate
        if not self._call.external or reserved == FREE:
            return
        tokens, usd = spent.tokens - reserved.tokens, Decimal(0)
        if spent.cost_usd is not None and reserved.cost_usd is not None:
            usd = spent.cost_usd - reserved.cost_usd
        if tokens > 0:
            self._overrun[OVERRUN_TOKENS] = self._overrun.get(OVERRUN_TOKENS, 0) + tokens
        if usd > 0:
            self._overrun[OVERRUN_USD] = self._overrun.get(OVERRUN_USD, 0) + float(usd)
        if self._overrun:
            self._graph.annotate(self.node, self._overrun)

    async def _queue_for(self, accounts: RunAccounts) -> None:
        """Queue for the accounts above the run, behind all calls that wait for them.

        Only calls that cost something, or count as API calls, need capacity. A call that found them
        full keeps its position.
        """
        maximum = self._maximum
        is_counted = Dimension.API_CALLS in maximum.counted
        if self._position is None and (is_counted or maximum.minimum != FREE):
            self._position = accounts.queue_position()
            async with self._calls.activity.waits(self._call.key):
                await self._position.enter()

    def leave_accounts(self) -> None:
        """Leave the queue for the accounts."""
        if self._position is not None:
            self._position.leave()
            self._position = None

    def _hold(self) -> Hold:
        return Hold.of_charge(self.node, self.attempts + 1, self._maximum.charge)

    async def _reserved_with(self, slot: RateSlot) -> Reservation:
        """Reserve the cost of an attempt and acquire its rate slot.

        The reservation is released while the call waits for the slot, so that it blocks no other
        call. Both must then be acquired again.
        """
        try:
            while True:
                reservation, has_slot = await self._reserved(), False
                try:
                    has_slot = await slot.take(self._maximum.estimate.tokens)
                finally:
                    if not has_slot:
                        reservation.settle()
                if has_slot:
                    return reservation
                await self._wait_for(slot)
        except BaseException:
            slot.leave()
            raise

    async def _reserved(self) -> Reservation:
        """Reserve the maximum cost of an attempt; wait for other reservations if needed."""
        maximum = self._maximum
        if (reservation := self._scope.reserve_now(maximum.hard_charge)) is not None:
            return reservation
        minimum = maximum.least_charge()
        try:
            return await reserved(
                self._scope,
                minimum,
                maximum.preferred,
                tracked=False,
                waits=self._waits,
                at=partial(self._calls.activity.waits, self._call.key),
            )
        finally:
            if self._waits_since_ms is not None:
                self._waited_ms += self._graph.now_ms() - self._waits_since_ms
                self._waits_since_ms = None
                self._graph.annotate(self.node, {WAITED_MS: self._waited_ms})

    def _waits(self) -> None:
        """Record the start of a wait for budget, store the trace, and yield the rate slot."""
        self._waits_since_ms = self._graph.now_ms()
        self._calls.journal.touch()
        if self._slot is not None:
            self._slot.step_aside()

    async def wait_for_accounts(self, answer: HoldAnswer) -> None:
        """Wait until the accounts may have capacity for at minimum the minimum cost of an attempt.

        ``answer`` is their refusal. Return at once if they have capacity now: the next attempt then
        requests less.

        Raises:
            BudgetExceededError: the call does not fit even without the reservations of other calls.
        """
        position = self._position
        if position is None:
            return
        minimum = self._maximum.minimum.charge(self._maximum.counted)
        if (refused := exceeded(answer.limits, minimum)) is not None:
            raise refused
        if all(limit.allows(minimum, include_reserved=True) for limit in answer.limits):
            return
        since_ms = self._graph.now_ms()
        try:
            async with self._calls.activity.waits(self._call.key):
                await position.wait()
        finally:
            self._waited_ms += self._graph.now_ms() - since_ms
            self._graph.annotate(self.node, {WAITED_MS: self._waited_ms})

    async def _wait_for(self, slot: RateSlot) -> None:
        since_ms = self._graph.now_ms()
        self._calls.journal.touch()
        try:
            async with self._calls.activity.waits(self._call.key):
                await slot.wait()
        finally:
            self._waited_for_model_ms += self._graph.now_ms() - since_ms
            self._graph.annotate(self.node, {WAITED_FOR_MODEL_MS: self._waited_for_model_ms})

    def delay_after(self, failure: AttemptError) -> float | None:
        """Return the seconds until the next attempt; None if there is none.

        If the policy allows a retry whose back-off is too long, the message explains it.
        """
        if not failure.retryable:
            return None
        backoff = self._calls.backoff
        decision = backoff.decide(self._call.retry, self._scope, failure, self.attempts)
        if isinstance(decision, GiveUp):
            if decision.explanation:
                failure.args = (f"{failure} {decision.explanation}",)
            return None
        self._charge_per_call = NOTHING
        return decision.delay_seconds

    def end(self, end: Reply | AttemptError) -> Reply | AttemptError:
        """End the call with the end of its last attempt; a value that is too large is a failure."""
        if isinstance(end, Reply):
            failure: AttemptError | None = None
            try:
                self._close(CallOutcome.RESULT, self._graph.mark_success, value=end.value)
            except ValueTooLargeError as error:
                failure = AttemptError(str(error), error_class=TOO_LARGE, retryable=False)
            if end.metadata:
                self._graph.annotate(self.node, end.metadata)
            if failure is None:
                return end
            end = failure
        value = end.to_json(self.attempts)
        kind, message = end.error_class, str(end)
        self._close(CallOutcome.FAILURE, self._graph.mark_failure, kind, message, value=value)
        return end

    def interrupt(self, error: BaseException) -> None:
        """End the call because an unexpected error or a stop ended the task that makes it.

        A started call stays in flight in the journal: recovery then reads its outcome as unknown.
        """
        if self._retries is not None:
            self._retries.end(error)
        if isinstance(error, Exception):
            kind, message = class_name(error), message_of_error(error)
            self._close(self._unknown, self._graph.mark_failure, kind, message)
        else:
            reason = str(self._calls.token.stop or error) or type(error).__name__
            self._close(self._unknown, self._graph.mark_halt, reason)

    @property
    def _unknown(self) -> CallOutcome | None:
        return None if self.attempts else CallOutcome.NOT_MADE

    def _close(
        self,
        outcome: CallOutcome | None,
        mark: Callable[..., bool],
        *why: str,
        value: Any = None,
    ) -> None:
        """Journal the end and mark the node; keep the usage even if the run has already ended."""
        spent, attempts = self._spent, self.attempts
        counts = {"tokens_in": spent.tokens_in, "tokens_out": spent.tokens_out}
        usage: dict[str, Any] = {"cost_usd": spent.cost_usd, **counts}
        if spent.estimated:
            self._graph.annotate(self.node, {ESTIMATED: spent.estimated})
        self._note(outcome, spent.charge, value)  # if the value is invalid, the call then fails
        if attempts:
            self._emit_end(why, {"attempts": attempts, **counts})
        # False: the node was closed before, because its work was abandoned.
        if not mark(self.node, *why, **usage) and self._spent != SpentSum():
            self._graph.add_late_usage(self.node, **usage)

    def note_usage(self) -> None:
        """Journal the actual usage so far, while the call waits for its next attempt."""
        self._note(self._unknown, self._spent.charge, self._spent.if_lost())

    def _note_in_flight(self) -> None:
        """Journal the call as in flight, with its maximum cost should its worker be lost."""
        total, lost = replace(self._spent), self._maximum.estimate
        if lost != FREE:
            lost = replace(lost, estimated=True)
        total.add(lost, lost.charge(self._maximum.counted))
        self._note(None, total.charge, total.if_lost())

    def _note(self, outcome: CallOutcome | None, charge: Charge, value: Any) -> None:
        """Journal the state of the call and its charge, including the charge in flight."""
        call = self._call
        entry = Entry(
            call_key=call.key.text,
            request_hash=call.request_hash,
            charge=charge,
            outcome=outcome,
            value=value,
        )
        self._calls.journal.note(self.node, entry)

    def _emit_end(self, why: Sequence[str], data: Mapping[str, Any]) -> None:
        """Emit the end event with ``data``.

        ``why`` is empty after a success, ``(error_class, message)`` after a failure, and
        ``(reason,)`` after an interruption.
        """
        match why:
            case (error_class, message):
                self._emit(CALL_ERROR, {**data, "error_class": error_class, "error": message})
            case (reason,):
                self._emit(CALL_CANCELLED, {**data, "reason": reason})
            case _:
                self._emit(CALL_COMPLETED, data)

    def _emit(self, kind: str, data: Mapping[str, Any]) -> None:
        events, call = self._calls.events, self._call
        if events is not None:
            about = {"kind": call.kind, "name": call.name, "model": call.model, **data}
            events.emit(Event(type=kind, step_id=self._step_id, node_id=self.node, data=about))


def _failure_in(error: BaseException, call: Call, limit: asyncio.Timeout) -> AttemptError | None:
    """Return the failure of an attempt that raised ``error``.

    Returns None for an unexpected error, and for a cancel of the task that makes the call.
    """
    if isinstance(error, AttemptError):
        return error
    if isinstance(error, TimeoutError) and limit.expired():
        message = f"No answer within {call.timeout_seconds:g} seconds."
        return AttemptError(message, error_class="TimeoutError", retryable=call.repeatable)
    if isinstance(error, asyncio.CancelledError) and not is_being_cancelled():
        message = "It waited for something that was cancelled."
        return AttemptError(message, error_class="CancelledError", retryable=False)
    return None
