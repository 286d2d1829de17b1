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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

from caseworker.core.budget.accounts import Hold, HoldAnswer
from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import FreeAmounts, Reservation, Scope
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
from caseworker.engine.call import (
    FREE,
    Answered,
    AttemptError,
    AttemptLog,
    Backoff,
    Call,
    CallFailedError,
    OutcomeUnknownError,
    RateSlot,
    Reply,
    Spent,
    SpentSum,
    call_failed,
    recorded_result,
)
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

TURNS = 10
"""Number of event-loop iterations for which a run must be quiet before it is suspended or stopped.
A few iterations always pass between the end of one step and the start of the next."""

QUIET_SECONDS = 0.005
"""Interval, in seconds, at which a run with a delayed stop is checked."""

TOO_LARGE = "too_large"
"""Error class of a call whose result exceeds a size limit."""

_NO_SPAN = nullcontext()
_NOTHING_FREE = {Dimension.TOKENS: 0, Dimension.COST_USD: 0}


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
        progress = _CallInProgress(self, call, parent, scope)
        # An interrupted attempt of this run has already paid the charge per call.
        per_call_charge = call.per_call if before is None or before.imported else NOTHING
        activity.working[progress] = call.key
        try:
            while True:
                try:
                    reply = await progress.attempt(
                        checked(sum_of((per_call_charge, call.per_attempt)))
                    )
                    break
                except _HeldError:
                    progress.note_usage()
                    await activity.start(call.key)
                    continue
                except AttemptError as failure:
                    progress.note_usage()
                    delay = self._delay_after(failure, call, scope, progress.attempts.count)
                per_call_charge = NOTHING
                async with self.activity.waits(call.key):
                    await asyncio.sleep(delay)
            if reply.metadata:
                self.graph.annotate(progress.node, reply.metadata)
            progress.end(CallOutcome.RESULT, self.graph.mark_success, value=reply.value)
        except AttemptError as failure:
            raise progress.fail(failure) from None
        except ValueTooLargeError as error:
            large = AttemptError(str(error), error_class=TOO_LARGE, retryable=False)
            raise progress.fail(large) from None
        except Exception as error:
            message = message_of_error(error)
            progress.end(progress.unknown, self.graph.mark_failure, class_name(error), message)
            raise
        except BaseException as stop:
            reason = str(self.token.stop or stop) or type(stop).__name__
            progress.end(progress.unknown, self.graph.mark_halt, reason)
            raise
        finally:
            del activity.working[progress]
            activity.changed()
            if progress.attempts.count:
                self._called_in |= enclosing
        return Answered(reply.value, progress.node)

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

    @contextmanager
    def replaying(self, *, grace_seconds: float) -> Iterator[None]:
        """End the delay of stops at the end of the block, or before.

        A delayed stop takes effect once all recorded work is repeated, at the latest
        ``grace_seconds`` after it arrived.
        """
        if not self.token.is_delaying:
            yield
            return
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        def delayed() -> None:
            if not tasks:
                tasks.append(asyncio.create_task(self._release(grace_seconds), name="replay"))

        self.token.on_delay(lambda: loop.call_soon_threadsafe(delayed))
        try:
            yield
        finally:
            self.token.release()
            for task in tasks:
                task.cancel()

    async def _release(self, grace_seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + grace_seconds
        while clock() < until:
            if await self.are_quiet(lambda: self.activity.waiting):
                break
            await asyncio.sleep(QUIET_SECONDS)
        self.token.release()

    async def are_quiet(self, waiting: Callable[[], Collection[StepPath]]) -> bool:
        """Return whether all active work waits at the paths that ``waiting`` returns.

        This must hold for ``TURNS`` iterations of the event loop.
        """
        revision = self.graph.revision  # an unchanged trace proves that no step started in between
        for _ in range(TURNS):
            if not self._all_around(waiting()):
                return False
            await asyncio.sleep(0)  # other tasks run here and may start the next step
        return bool(waiting()) and self.graph.revision == revision

    def _all_around(self, waiting: Collection[StepPath]) -> bool:
        """Return whether every active step or call is cut off, or waits, or encloses a wait."""
        enclosing = {each.text for each in waiting}.union(
            *(each.enclosing_paths() for each in waiting)
        )
        cut_off = self.detached.covers_inside
        return all(
            path.text in enclosing or cut_off(path) for path in self.activity.working.values()
        )

    def _delay_after(
        self, failure: AttemptError, call: Call, scope: Scope, failed_attempts: int
    ) -> float:
        """Return the seconds until the next attempt; raise the failure if there is none.

        If the policy allows a retry whose back-off is too long, the message explains it.
        """
        if not failure.retryable:
            raise failure
        decision = self.backoff.decide(call.retry, scope, failure, failed_attempts)
        if isinstance(decision, GiveUp):
            if decision.explanation:
                failure.args = (f"{failure} {decision.explanation}",)
            raise failure
        return decision.delay_seconds

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


class _CallInProgress:
    """One call in the gateway: its node, its attempts, its usage and its journal entry."""

    def __init__(self, calls: Calls, call: Call, parent: str, scope: Scope) -> None:
        self._calls = calls
        self._call = call
        self._scope = scope
        self._graph = calls.graph
        self.node = calls.graph.begin_node(
            parent, call.kind, call.name, call.model, {"call_key": call.key.text, **call.metadata}
        )
        self._step_id = calls.graph.step_of(parent)
        if call.trace_request is not None:
            calls.journal.note_request(self.node, call.trace_request)
            call.trace_request = None  # the journal keeps it until it is stored
        self.attempts = AttemptLog(calls.graph, self.node)
        self._estimate = FREE
        self._spent = SpentSum()
        self._overrun: dict[str, float] = {}
        self._waits_since_ms: int | None = None
        self._waited_ms = self._waited_for_model_ms = 0
        self._slot: RateSlot | None = None

    async def attempt(self, counted: Charge) -> Reply:
        """Make one attempt as soon as the accounts above the run have capacity for it.

        ``counted`` is the charge in addition to the estimated usage.
        """
        if (accounts := self._calls.accounts) is None:
            return await self._attempt(counted)
        minimum = self._call.estimate(_NOTHING_FREE)
        if minimum == FREE and Dimension.API_CALLS not in counted:
            return await self._attempt(counted)
        position = accounts.queue_position()
        try:
            async with self._calls.activity.waits(self._call.key):
                await position.enter()
            while True:
                try:
                    return await self._attempt(counted, accounts, position)
                except _AccountFullError as full:
                    self.note_usage()  # the charge in flight is stored, but the call is not made
                    await self._wait_for_account(full.answer, minimum.charge(counted), position)
        finally:
            position.leave()

    async def _attempt(
        self,
        counted: Charge,
        accounts: RunAccounts | None = None,
        position: AccountQueuePosition | None = None,
    ) -> Reply:
        """Reserve the cost, acquire the rate slot, pass the barrier, make one attempt, settle it.

        ``queue_position`` is left once the call is reserved in ``accounts``.

        Raises:
            _AccountFullError: an account has no capacity; nothing is reserved.
            _HeldError: the run is held; nothing is reserved.
        """
        call, calls = self._call, self._calls
        reservation = await self._reserved_with_slot(counted)
        spent: Spent | None = FREE
        started, hold = False, None
        try:
            # Order matters: the barrier makes the charge in flight durable before the call is made,
            # so that recovery charges the call even if this worker is lost right after it.
            self._note_in_flight(counted)
            if accounts is None or position is None:
                await calls.journal.barrier(external=call.external)
            else:
                charge = self._estimate.charge(counted)
                hold = Hold.of_charge(self.node, self.attempts.count + 1, charge)
                answer = await accounts.barrier(hold)
                if not answer.granted:
                    hold = None
                    raise _AccountFullError(answer)
                position.leave()
            calls.check(call.key)
            if calls.activity.is_held:
                raise _HeldError
            if self.attempts.count:
                self._graph.increment_retries(self.node)
                calls.journal.touch()  # no event stores the attempt
            else:
                self._emit(CALL_STARTED, {})
            spent, started = None, True
            with self.attempts, calls.in_span(self.node):
                try:
                    async with asyncio.timeout(call.timeout_seconds) as limit:
                        reply = await call.send(self.attempts.count)
                except TimeoutError:
                    if not limit.expired():
                        raise
                    raise _timed_out(call) from None
                except asyncio.CancelledError:
                    if is_being_cancelled():
                        raise
                    message, kind = "It waited for something that was cancelled.", "CancelledError"
                    raise AttemptError(message, error_class=kind, retryable=False) from None
            spent = reply.spent
            return reply
        except AttemptError as failure:
            spent = failure.spent
            raise
        finally:
            # Also runs on cancellation: then the usage is unknown and settled as an estimate.
            if spent is None:
                spent = call.lost()
            used = NOTHING  # an attempt that does not start costs nothing
            if started:
                used = spent.charge(counted)
                self._spent.add(spent, counted)
                self._note_overrun(spent)
            reservation.settle(used)
            if accounts is not None and hold is not None:
                accounts.settle(hold, used)
            if self._slot is not None:
                self._slot.settle(spent.tokens)

    def _note_overrun(self, spent: Spent) -> None:
        """Mark the call if an attempt used more than was reserved for it."""
        reserved = self._estimate
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

    async def _reserved_with_slot(self, counted: Charge) -> Reservation:
        """Reserve the cost of an attempt and acquire its rate slot.

        The reservation is released while the call waits for the slot, so that it blocks no other
        call. Both must then be acquired again.
        """
        slot = self._slot = self._call.rate_slot()
        if slot is None:
            return await self._reserved(counted)
        try:
            while True:
                reservation, has_slot = await self._reserved(counted), False
                try:
                    has_slot = await slot.take(self._estimate.tokens)
                finally:
                    if not has_slot:
                        reservation.settle()
                if has_slot:
                    return reservation
                await self._wait_for(slot)
        except BaseException:
            slot.leave()
            raise

    async def _reserved(self, counted: Charge) -> Reservation:
        """Reserve the maximum cost of an attempt; wait for other reservations if needed."""
        accounts = self._calls.accounts

        def with_accounts(free: FreeAmounts) -> FreeAmounts:
            if accounts is None:
                return free
            in_accounts = accounts.free_amounts()
            return {
                **in_accounts,
                **{each: min(in_accounts.get(each, n), n) for each, n in free.items()},
            }

        def charge(free: FreeAmounts) -> Charge:
            free = with_accounts(free)
            self._estimate = self._call.estimate(free)
            if accounts is not None and _exceeds(self._estimate, free):
                self._estimate = self._call.estimate(_NOTHING_FREE)
            return self._estimate.charge(counted)

        def maximum(free: FreeAmounts) -> Charge | None:
            free = with_accounts(free)
            estimate = self._call.maximum(free)
            if estimate is None or (accounts is not None and _exceeds(estimate, free)):
                return None
            self._estimate = estimate
            return estimate.charge(counted)

        if (reservation := self._scope.reserve_now(maximum)) is not None:
            return reservation
        minimum = charge(_NOTHING_FREE)
        preferred = None if self._estimate == FREE else charge
        try:
            return await reserved(
                self._scope,
                minimum,
                preferred,
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

    async def _wait_for_account(
        self, answer: HoldAnswer, minimum: Charge, position: AccountQueuePosition
    ) -> None:
        """Wait until the accounts may have capacity for at least ``minimum``.

        Return at once if they have it now: the next attempt then requests less.

        Raises:
            BudgetExceededError: the call does not fit even without the reservations of other calls.
        """
        for limit in answer.limits:
            if not limit.allows(minimum, beside_reserved=False):
                raise limit.exceeded_by(minimum)
        if all(limit.allows(minimum, beside_reserved=True) for limit in answer.limits):
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

    def fail(self, failure: AttemptError) -> CallFailedError:
        """End the call with the failure of its last attempt; return the error to raise."""
        value = failure.to_json(self.attempts.count)
        kind, message = failure.error_class, str(failure)
        self.end(CallOutcome.FAILURE, self._graph.mark_failure, kind, message, value=value)
        return call_failed(value, self.node, failure.retry_after_seconds)

    @property
    def unknown(self) -> CallOutcome | None:
        """The outcome to journal for an interrupted call.

        None leaves a started call in flight: recovery then reads its outcome as unknown.
        """
        return None if self.attempts.count else CallOutcome.NOT_MADE

    def end(
        self,
        outcome: CallOutcome | None,
        mark: Callable[..., bool],
        *why: str,
        value: Any = None,
    ) -> None:
        """Journal the end and mark the node; keep the usage even if the run has already ended."""
        spent, attempts = self._spent, self.attempts.count
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
        self._note(self.unknown, self._spent.charge, self._spent.if_lost())

    def _note_in_flight(self, counted: Charge) -> None:
        """Journal the call as in flight, with its maximum cost should its worker be lost."""
        lost, total = self._estimate, replace(self._spent)
        total.add(lost if lost == FREE else replace(lost, estimated=True), counted)
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


class _AccountFullError(Exception):
    """An account above the run has no capacity for a call now."""

    def __init__(self, answer: HoldAnswer) -> None:
        super().__init__()
        self.answer = answer


class _HeldError(Exception):
    """The run is held, so that no attempt starts."""


def _exceeds(estimate: Spent, free: FreeAmounts) -> bool:
    """Return whether an estimate exceeds the free amounts, even by a rounding error."""
    charge = estimate.charge()
    return any(
        charge.get(dimension, 0) > free[dimension]
        for dimension in _NOTHING_FREE
        if dimension in free
    )


def _timed_out(call: Call) -> AttemptError:
    message = f"No answer within {call.timeout_seconds:g} seconds."
    return AttemptError(message, error_class="TimeoutError", retryable=call.repeatable)


async def reserved(
    scope: Scope,
    charge: Charge,
    preferred: Callable[[FreeAmounts], Charge] | None = None,
    *,
    tracked: bool = True,
    waits: Callable[[], object] = lambda: None,
    at: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> Reservation:
    """Reserve ``charge`` in a scope and all its ancestors, waiting until the capacity is free.

    Requests are served in order of arrival. Cancelling the task ends the wait. ``preferred`` and
    ``tracked`` are passed to ``Scope.ask``. ``waits`` is called once before waiting starts, so that
    the caller can release other resources for that time. ``at`` returns a context for the wait.

    Raises:
        BudgetExceededError: the charge does not fit even if only the caller's own reservations are
            held; names the scope and the dimension.
        ValueError: an amount is negative or not finite.
    """
    request = scope.ask(charge, preferred, tracked=tracked)
    if isinstance(request, Reservation):
        return request
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def wake() -> None:
        if not over.done():
            over.set_result(None)

    # Another thread may resolve the request.
    request.on_end(lambda: loop.call_soon_threadsafe(wake))
    waits()
    try:
        async with at():
            await over
    except BaseException:
        request.leave()  # also releases a reservation granted just before the cancel
        raise
    return request.reservation()
