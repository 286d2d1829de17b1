"""The one gateway through which every LLM and tool call of a run passes.

A call lives like this: its **CallNode** is begun; it is **reserved** in its budget scope and in all
scopes around it; the journal's **barrier** makes everything that led to it durable and refuses it
if the run was asked to stop or belongs to another worker by now; it is **performed**, with retries;
it is **settled** at what it really cost. A refused call is a halted node with the reason, so a
trace shows what a limit kept from happening.

A call that an earlier execution of the run has finished is not made again: its result comes from
the journal, its node is the old one, and nothing is charged. One that was in flight when its worker
was lost is made again if that does no harm, and counts as the same logical call.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from app.control.budget import Dimension
from app.control.ledger import Scope
from app.control.usage import NOTHING, Charge
from app.engine.attempts import BROKEN, AttemptLog, Retries
from app.engine.call import (
    FREE,
    Attempt,
    AttemptError,
    CallFailedError,
    CallSpec,
    OutcomeUnknownError,
    Reply,
    Spent,
)
from app.engine.cancellation import CancellationToken, is_being_cancelled
from app.engine.ports import CallOutcome, Entry, Journal, Recorded
from app.engine.supervision import DetachedWork
from app.trace.execution_graph import ExecutionGraph


class Calls:
    """The gateway of one run."""

    def __init__(
        self,
        *,
        graph: ExecutionGraph,
        journal: Journal,
        token: CancellationToken,
        jitter: Callable[[], float],
        deadline_in: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Open the gateway.

        ``jitter`` draws from [-1, 1]; ``deadline_in`` returns the seconds until the run's deadline,
        if it has one.
        """
        self.graph = graph
        self.journal = journal
        self.token = token
        self.retries = Retries(jitter, deadline_in)
        self.detached = DetachedWork()

    async def perform(self, call: CallSpec, attempt: Attempt, *, parent: str, scope: Scope) -> Any:
        """Make a call, or take its result from the journal.

        ``attempt`` makes one try; ``parent`` is the CallNode that the call belongs to.

        Raises:
            CallFailedError: it failed, and its retries are used up or would not help.
            OutcomeUnknownError: an earlier try may have taken effect and cannot be repeated.
            Stop: a limit or a cancel request keeps it from being made, or ended it.
        """
        before = self._earlier_try_of(call)
        if before is not None and before.outcome is not CallOutcome.UNKNOWN:
            return _replay(before)
        if before is not None and not call.repeatable:
            raise OutcomeUnknownError("An earlier try may have taken effect.")
        self.token.check()
        self.detached.check(call.key)
        performance = _Performance(self, call, parent, scope, once=NOTHING if before else call.once)
        return await performance.run(attempt)

    def _earlier_try_of(self, call: CallSpec) -> Recorded | None:
        """Return what an earlier execution left of this very request, if it began to make it."""
        before = self.journal.recorded(call.key.text)
        if before is None or before.outcome is CallOutcome.NOT_MADE:
            return None
        return before if before.request_hash == call.request_hash else None


class _Performance:
    """One call on its way through the gateway."""

    def __init__(
        self, calls: Calls, call: CallSpec, parent: str, scope: Scope, *, once: Charge
    ) -> None:
        self._calls = calls
        self._call = call
        self._once = once
        self._scope = scope
        self._graph = calls.graph
        self._node = calls.graph.begin_node(
            parent, call.kind, call.name, call.model, {"call_key": call.key.text, **call.metadata}
        )
        self._attempts = AttemptLog(calls.graph, self._node)
        self._begun = 0
        self._spent = FREE
        self._charged: dict[Dimension, Any] = {}

    async def run(self, attempt: Attempt) -> Any:
        try:
            reply = await self._calls.retries.run(
                lambda _: self._try(attempt), self._call.retry, self._scope, failed=self._failed
            )
            return self._succeed(reply)
        except AttemptError as failure:
            self._fail(failure.error_class, str(failure))
            raise CallFailedError(
                str(failure),
                error_class=failure.error_class,
                attempts=self._begun,
                retry_after_seconds=failure.retry_after_seconds,
            ) from None
        except Exception as error:
            self._break(error)
            raise
        except BaseException as stop:
            self._halt(stop)
            raise

    def _failed(self, failure: Exception, _: int) -> bool:
        """Journal what was spent so far; return whether to try again, if the policy allows it."""
        if not isinstance(failure, AttemptError):
            return False
        self._note(None)
        return failure.retryable

    async def _try(self, attempt: Attempt) -> Reply:
        """Reserve, ask the barrier, perform one attempt, settle it."""
        call = self._call
        counted = _sum(NOTHING if self._begun else self._once, call.per_attempt)
        hold = _sum(counted, _charge_of(call.estimate))
        reservation = self._scope.reserve(hold)
        try:
            self._note(None, hold)
            await self._calls.journal.barrier(external=call.external)
            self._calls.token.check()
            self._calls.detached.check(call.key)
        except BaseException:
            reservation.settle()  # it never began
            raise
        if self._begun:
            self._graph.increment_retries(self._node)
        self._begun += 1
        spent = call.estimate
        try:
            reply = await self._attempts.make(lambda: self._within_time(attempt))
            spent = call.estimate if reply.spent is None else reply.spent
            return reply
        except AttemptError as failure:
            spent = call.estimate if failure.spent is None else failure.spent
            raise
        finally:
            used = _sum(counted, _charge_of(spent))
            reservation.settle(used)
            self._spent += spent
            self._charged = _sum(self._charged, used)

    async def _within_time(self, attempt: Attempt) -> Reply:
        seconds = self._call.timeout_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                return await attempt()
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"No answer within {seconds:g} seconds."
            raise AttemptError(
                message, error_class="TimeoutError", retryable=self._call.repeatable
            ) from None
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            message = "It waited for something that was cancelled."
            raise AttemptError(message, error_class="CancelledError", retryable=False) from None

    def _succeed(self, reply: Reply) -> Any:
        self._note(CallOutcome.RESULT, value=reply.value)
        self._ended(self._graph.mark_success(self._node, **self._usage()))
        return reply.value

    def _fail(self, error_class: str, reason: str) -> None:
        value = {"error_class": error_class, "message": reason, "attempts": self._begun}
        self._note(CallOutcome.FAILURE, value=value)
        self._ended(self._graph.mark_failure(self._node, error_class, reason, **self._usage()))

    def _break(self, error: Exception) -> None:
        """End with an error that no call should raise; its outcome is unknown."""
        self._note(None if self._begun else CallOutcome.NOT_MADE)
        self._ended(
            self._graph.mark_failure(self._node, type(error).__name__, BROKEN, **self._usage())
        )

    def _halt(self, stop: BaseException) -> None:
        given = self._calls.token.stop
        reason = str(given if given is not None else stop) or type(stop).__name__
        self._note(None if self._begun else CallOutcome.NOT_MADE)
        self._ended(self._graph.mark_halt(self._node, reason, **self._usage()))

    def _ended(self, marked: bool) -> None:
        """Keep what was spent even if the run had ended before: the call was abandoned."""
        if not marked and self._spent != FREE:
            self._graph.add_late_usage(self._node, **self._usage())

    def _usage(self) -> dict[str, Any]:
        spent = self._spent
        return {
            "cost_usd": spent.cost_usd,
            "tokens_in": spent.tokens_in,
            "tokens_out": spent.tokens_out,
        }

    def _note(
        self, outcome: CallOutcome | None, in_flight: Charge = NOTHING, *, value: Any = None
    ) -> None:
        """Journal how the call stands and what it has cost, or may cost while it is in flight."""
        call = self._call
        self._calls.journal.note(
            self._node,
            Entry(
                call_key=call.key.text,
                request_hash=call.request_hash,
                charge=_sum(self._charged, in_flight),
                outcome=outcome,
                value=value,
            ),
        )


def _replay(recorded: Recorded) -> Any:
    if recorded.outcome is CallOutcome.RESULT:
        return recorded.value
    failed = recorded.value
    raise CallFailedError(
        failed["message"], error_class=failed["error_class"], attempts=failed["attempts"]
    )


def _charge_of(spent: Spent) -> Charge:
    tokens = spent.tokens_in + spent.tokens_out
    if not tokens and not spent.cost_usd:
        return NOTHING
    return {Dimension.TOKENS: tokens, Dimension.COST_USD: spent.cost_usd}


def _sum(*charges: Charge) -> dict[Dimension, Any]:
    total: dict[Dimension, Any] = {}
    for charge in charges:
        for dimension, amount in charge.items():
            total[dimension] = total.get(dimension, 0) + amount
    return total
