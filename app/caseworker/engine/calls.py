"""The gateway through which a run makes all its calls.

A call passes these stages:

1. Its **CallNode** is created. 2. Its maximum cost is **reserved** in its budget scope and all
ancestors; this may wait until other reservations are settled. 3. It acquires a **rate slot** if its
model is rate-limited. It holds no reservation while it waits for the slot. 4. The journal's
**barrier** makes everything before the call durable. It refuses the call if the run was cancelled
or another worker owns it now. 5. The call is **performed**, with retries. 6. Its reservation is
**settled** with the actual cost. If the response was lost, it is settled with an estimate, which is
marked as an estimate.

A refused call appears as a halted node with a reason, so a trace shows which call a limit
prevented.

A call that an earlier execution of the run finished is replayed: its result and its node come from
the journal, and nothing is charged. A call that was in flight when its worker was lost is repeated
if that is allowed; both count as one logical call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.ledger import Reservation, Room, Scope
from caseworker.core.budget.usage import NOTHING, Charge, sum_of
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.frozen_json import ValueTooLargeError
from caseworker.core.trace.node import ESTIMATED, WAITED_FOR_MODEL_MS, WAITED_MS
from caseworker.core.trace.spans import SpanOf
from caseworker.engine.call import (
    FREE,
    Answered,
    Attempt,
    AttemptError,
    AttemptLog,
    CallFailedError,
    CallSpec,
    OutcomeUnknownError,
    RateSlot,
    Reply,
    Retries,
    Spent,
    SpentSum,
)
from caseworker.engine.call_entries import failed_call, failure_entry, if_lost, replayed
from caseworker.engine.cancellation import CancellationToken, is_being_cancelled
from caseworker.engine.events import CALL_STARTED, Event, EventSink, call_ended
from caseworker.engine.ports import CallOutcome, Entry, Journal, Recorded
from caseworker.engine.reserving import reserved
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import DetachedWork
from caseworker.platform.logs.errors import message_of_error
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
    ) -> None:
        """Open the gateway.

        ``jitter`` draws from [-1, 1]. ``deadline_in`` returns the seconds until the run's deadline,
        or None if it has none. ``events`` receives the start and the end of each call. ``span_of``
        returns the trace context of a call's span, which is propagated to the called service.
        """
        self.graph = graph
        self.journal = journal
        self.token = token
        self.events = events
        self._span_of = span_of
        self.retries = Retries(jitter, deadline_in)
        self.detached = DetachedWork()
        self.working: dict[str, StepPath] = {}
        """The steps and calls in progress, by path text."""
        self._asked_in: set[str] = set()
        self._made_in: set[str] = set()
        """The path texts of steps and attempts in which a call was requested, and was made."""

    async def perform(
        self, call: CallSpec, attempt: Attempt, *, parent: str, scope: Scope
    ) -> Answered:
        """Make a call, or replay its result from the journal.

        ``attempt`` makes one attempt. ``parent`` is the ID of the CallNode that made the call: a
        step, or another call whose result requests this one.

        Raises:
            CallFailedError: the call failed, and its retries are exhausted or it is not retryable.
            OutcomeUnknownError: an earlier attempt may have taken effect and must not be repeated.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        around = call.key.around()
        self._asked_in |= around
        before = self._earlier_try_of(call)
        if before is not None and before.outcome is not CallOutcome.UNKNOWN:
            self._made_in |= around
            return replayed(before)  # allowed even after a stop: a replay costs nothing
        self.token.check()
        self.detached.check(call.key)
        # An interrupted attempt of this run has already paid the ``once`` charge.
        once = call.once if before is None or before.taken_over else NOTHING
        made = _Performance(self, call, attempt, parent, scope, once)
        self.working[call.key.text] = call.key
        try:
            reply = await self.retries.run(made.attempt, call.retry, scope, failed=made.failed)
            made.annotate(reply.metadata)
            made.end(CallOutcome.RESULT, self.graph.mark_success, value=reply.value)
        except AttemptError as failure:
            raise made.fail(failure) from None
        except ValueTooLargeError as error:
            large = AttemptError(str(error), error_class=TOO_LARGE, retryable=False)
            raise made.fail(large) from None
        except Exception as error:
            said = message_of_error(error)
            made.end(made.unknown, self.graph.mark_failure, type(error).__name__, said)
            raise
        except BaseException as stop:
            reason = str(self.token.stop or stop) or type(stop).__name__
            made.end(made.unknown, self.graph.mark_halt, reason)
            raise
        finally:
            self.working.pop(call.key.text, None)
            if made.unknown is None:
                self._made_in |= around
        return Answered(reply.value, made.node)

    def began_in(self, path: StepPath) -> bool | None:
        """Return whether a call inside a step was made, in this or an earlier execution of the run.

        None means that the step has requested no call.
        """
        if path.text in self._made_in:
            return True
        if self.journal.spent_below(path).keys() - {Dimension.STEPS}:
            return True
        return False if path.text in self._asked_in else None

    def in_span(self, node_id: str) -> AbstractContextManager[None]:
        """Make a CallNode's span the current one while the block runs, if spans are propagated."""
        if self._span_of is None:
            return _NO_SPAN
        span = self._span_of(node_id)
        return within_span(span.trace_id, span.span_id or "0", sampled=span.sampled)

    def _earlier_try_of(self, call: CallSpec) -> Recorded | None:
        """Return the journal record of the same call and request, if an earlier execution made it.

        Raises:
            OutcomeUnknownError: its outcome is unknown and it must not be repeated.
        """
        before = self.journal.recorded(call.key.text)
        if before is None or before.outcome is CallOutcome.NOT_MADE:
            return None
        if before.request_hash != call.request_hash and not before.taken_over:
            return None
        if before.outcome is CallOutcome.UNKNOWN and not call.repeatable:
            raise OutcomeUnknownError("An earlier try may have taken effect.")
        return before


class _Performance:
    """One call in the gateway."""

    def __init__(
        self,
        calls: Calls,
        call: CallSpec,
        attempt: Attempt,
        parent: str,
        scope: Scope,
        once: Charge,
    ) -> None:
        self._calls = calls
        self._call = call
        self._attempt = attempt
        self._once = once
        self._scope = scope
        self._graph = calls.graph
        self.node = calls.graph.begin_node(
            parent, call.kind, call.name, call.model, {"call_key": call.key.text, **call.metadata}
        )
        self._parent = parent
        if call.request is not None:
            calls.journal.note_request(self.node, call.request)
        self._attempts = AttemptLog(calls.graph, self.node)
        self._estimate = call.estimate
        self._spent = SpentSum()
        self._charged: dict[Dimension, Any] = {}
        self._waits_since_ms: int | None = None
        self._waited_ms = self._waited_for_model_ms = 0
        self._turn: RateSlot | None = None

    async def attempt(self, _: int) -> Reply:
        """Pass the gateway, make one attempt, and settle it."""
        call = self._call
        counted = sum_of((NOTHING if self._attempts.made else self._once, call.per_attempt))
        reservation = await self._let_through(counted)
        if self._attempts.made:
            self._graph.increment_retries(self.node)
        else:
            self._emit(CALL_STARTED, {})
        spent: Spent | None = None
        try:
            with self._attempts, self._calls.in_span(self.node):
                async with _within_time(call):
                    reply = await self._attempt()
            spent = reply.spent
            return reply
        except AttemptError as failure:
            spent = failure.spent
            raise
        finally:
            # Also runs on cancellation: then the usage is unknown and settled as an estimate.
            if spent is None:
                spent = self._lost() if call.lost is None else call.lost()
            used = sum_of((counted, spent.charge))
            reservation.settle(used)
            if self._turn is not None:
                self._turn.settle(spent.tokens)
            self._spent.add(spent)
            self._charged = sum_of((self._charged, used))

    def _lost(self) -> Spent:
        """Return the full estimate, the possible cost of an attempt whose response was lost."""
        estimate = self._estimate
        return estimate if estimate == FREE else replace(estimate, estimated=True)

    async def _reserved(self, counted: Charge) -> Reservation:
        """Reserve the maximum cost of an attempt; wait for other reservations if needed."""
        call = self._call
        try:
            if call.fit is None:
                hold = sum_of((counted, call.estimate.charge))
                return await reserved(self._scope, hold, tracked=False, waits=self._waits)
            fit, least = call.fit, call.fit(_no_room)
            self._estimate = least

            def wanted(room: Room) -> Charge:
                self._estimate = fit(room)
                return sum_of((counted, self._estimate.charge))

            hold = sum_of((counted, least.charge))
            return await reserved(self._scope, hold, wanted, tracked=False, waits=self._waits)
        finally:
            if self._waits_since_ms is not None:
                self._waited_ms += self._graph.now_ms() - self._waits_since_ms
                self._waits_since_ms = None
                self._graph.annotate(self.node, {WAITED_MS: self._waited_ms})

    def _waits(self) -> None:
        """Record the start of a wait for budget, store the trace, and yield the rate slot."""
        self._waits_since_ms = self._graph.now_ms()
        self._calls.journal.touch()
        if self._turn is not None:
            self._turn.step_aside()

    async def _reserved_in_turn(self, counted: Charge) -> Reservation:
        """Reserve the cost of an attempt and acquire its rate slot.

        The reservation is released while the call waits for the slot, so that it blocks no other
        call. Both must then be acquired again.
        """
        if self._call.turn is None:
            return await self._reserved(counted)
        turn = self._turn = self._call.turn()
        try:
            while True:
                reservation, taken = await self._reserved(counted), False
                try:
                    taken = await turn.take(self._estimate.tokens)
                finally:
                    if not taken:
                        reservation.settle()
                if taken:
                    return reservation
                await self._wait_for(turn)
        except BaseException:
            turn.leave()
            raise

    async def _wait_for(self, turn: RateSlot) -> None:
        since_ms = self._graph.now_ms()
        self._calls.journal.touch()
        try:
            await turn.wait()
        finally:
            self._waited_for_model_ms += self._graph.now_ms() - since_ms
            self._graph.annotate(self.node, {WAITED_FOR_MODEL_MS: self._waited_for_model_ms})

    async def _let_through(self, counted: Charge) -> Reservation:
        """Pass all checks before an attempt and return its reservation."""
        reservation = await self._reserved_in_turn(counted)
        try:
            # Order matters: the barrier makes the charge in flight durable before the call is made,
            # so that recovery charges the call even if this worker is lost right after it.
            self._note_in_flight(counted)
            await self._calls.journal.barrier(external=self._call.external)
            self._calls.token.check()
            self._calls.detached.check(self._call.key)
        except BaseException:
            reservation.settle()  # the attempt never started, so it costs nothing
            if self._turn is not None:
                self._turn.settle(0)  # the slot was acquired but not used
            raise
        return reservation

    def failed(self, failure: Exception, _: int) -> bool:
        """Journal the usage so far, and return whether the failure is retryable."""
        if not isinstance(failure, AttemptError):
            return False
        self._note(None, value=if_lost(self._spent))
        return failure.retryable

    def fail(self, failure: AttemptError) -> CallFailedError:
        """End the call with the failure of its last attempt; return the error to raise."""
        kind, message, attempts = failure.error_class, str(failure), self._attempts.made
        value = failure_entry(failure, attempts)
        self.end(CallOutcome.FAILURE, self._graph.mark_failure, kind, message, value=value)
        after = failure.retry_after_seconds
        return failed_call(value, self.node, retry_after_seconds=after)

    def annotate(self, metadata: Mapping[str, Any]) -> None:
        """Add to the metadata of the call's node."""
        if metadata:
            self._graph.annotate(self.node, metadata)

    @property
    def unknown(self) -> CallOutcome | None:
        """The outcome to journal for an interrupted call.

        None leaves a started call in flight: recovery then reads its outcome as unknown.
        """
        return None if self._attempts.made else CallOutcome.NOT_MADE

    def end(
        self,
        outcome: CallOutcome | None,
        mark: Callable[..., bool],
        *why: str,
        value: Any = None,
    ) -> None:
        """Journal the end and mark the node; keep the usage even if the run has already ended."""
        spent, usage = self._spent, self._spent.usage()
        if spent.estimated:
            self._graph.annotate(self.node, {ESTIMATED: spent.estimated})
        self._note(outcome, value=value)  # raises if the value is invalid: the call then fails
        if self._attempts.made:
            self._emit(*call_ended(why, self._attempts.made, spent.tokens_in, spent.tokens_out))
        # False: the node was closed before, because its work was abandoned.
        if not mark(self.node, *why, **usage) and self._spent != SpentSum():
            self._graph.add_late_usage(self.node, **usage)

    def _note_in_flight(self, counted: Charge) -> None:
        """Journal the call as in flight, with its maximum cost should its worker be lost."""
        lost = self._lost()
        usage = replace(self._spent, estimated=self._spent.estimated.copy())
        if lost != FREE:
            usage.add(lost)
            counted = sum_of((counted, lost.charge))
        self._note(None, counted, value=if_lost(usage))

    def _emit(self, kind: str, data: Mapping[str, Any]) -> None:
        events, call = self._calls.events, self._call
        if events is not None:
            about = {"kind": call.kind, "name": call.name, "model": call.model, **data}
            step_id = self._graph.step_of(self._parent)
            events.emit(Event(type=kind, step_id=step_id, node_id=self.node, data=about))

    def _note(
        self, outcome: CallOutcome | None, in_flight: Charge = NOTHING, *, value: Any = None
    ) -> None:
        """Journal the state of the call and its charge, including the charge in flight."""
        entry = Entry(
            call_key=self._call.key.text,
            request_hash=self._call.request_hash,
            charge=sum_of((self._charged, in_flight)),
            outcome=outcome,
            value=value,
        )
        self._calls.journal.note(self.node, entry)


@asynccontextmanager
async def _within_time(call: CallSpec) -> AsyncIterator[None]:
    """Apply the timeout of an attempt.

    A timeout, or the cancellation of an awaited task, becomes a failure of the attempt. A cancel of
    the current task itself is re-raised.
    """
    try:
        async with asyncio.timeout(call.timeout_seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        message, again = f"No answer within {call.timeout_seconds:g} seconds.", call.repeatable
        raise AttemptError(message, error_class="TimeoutError", retryable=again) from None
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        message = "It waited for something that was cancelled."
        raise AttemptError(message, error_class="CancelledError", retryable=False) from None


def _no_room(dimension: Dimension) -> Amount:
    return 0
