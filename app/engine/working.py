"""Lets the node of a step work: one attempt, or as many as its policy allows.

A failure comes here as an Exception, and only here is it judged. A stop passes through: nothing
retries it, skips it or replaces it.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from app.control.policy import ErrorPolicy, GiveUp, Retry, verdict
from app.engine.attempts import AttemptLog
from app.engine.cancellation import is_being_cancelled
from app.engine.context import FlowContext, Outputs
from app.engine.events import LATE_RESULT, LIFECYCLE, Event
from app.engine.prepared import BoundNode, PreparedStep
from app.engine.report import StepBrokenError, StepReport, StepTimeoutError, said_of
from app.engine.results import ExecutionResult, NodeEvent
from app.engine.timing import OutOfTimeError, within
from app.kernel.graph import DEFAULT_HANDLE


async def once(work: BoundNode, inputs: Outputs, context: FlowContext) -> Outputs:
    """Let a node work once and return what it produced, by handle.

    Raises:
        StepBrokenError: it did not end as a node must.
    """
    if work.lock is not None:
        async with work.lock.held():
            return await once(BoundNode(work.node, work.data), inputs, context)
    try:
        execution = work.node.execute(work.data, inputs, context)
        if type(execution) is ExecutionResult:  # there was nothing to wait for
            return execution.outputs
        if hasattr(execution, "__aiter__"):
            result = await _end_of(execution, context)
        else:
            result = await execution  # type: ignore[misc]
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        raise StepBrokenError("The step waited for something that was cancelled.") from None
    if type(result) is not ExecutionResult:
        raise StepBrokenError("The step's node returned no ExecutionResult.")
    return result.outputs


async def _end_of(stream: Any, context: FlowContext) -> ExecutionResult | None:
    """Pass the events of a stream on and return the one result that must end it."""
    result: ExecutionResult | None = None
    async with aclosing(stream) as items:
        async for item in items:
            if result is not None:
                raise StepBrokenError("The step's node went on after its result.")
            if isinstance(item, ExecutionResult):
                result = item
            else:
                _pass_on(item, context)
    return result


def _pass_on(item: Any, context: FlowContext) -> None:
    if not isinstance(item, NodeEvent):
        raise StepBrokenError("The step's node told something that is no NodeEvent.")
    if item.type in LIFECYCLE:
        raise StepBrokenError(f"{item.type} is for the engine to tell.")
    if context.run.events is not None:
        context.run.events.emit(
            Event(
                type=item.type,
                step_id=context.path,
                node_id=context.trace_parent,
                data=item.data,
            )
        )


async def under_policy(
    step: PreparedStep,
    policy: ErrorPolicy,
    inputs: Outputs,
    context: FlowContext,
    report: StepReport,
) -> Outputs:
    """Let a step's node work until the step has outputs, or until its policy gives up.

    Raises:
        Exception: what failed it in the end.
    """
    try:
        if policy.timeout_ms is None:
            return await once(step.work, inputs, context)
        return await _in_time(step.work, policy, inputs, context)
    except Exception as error:
        return await _Recovery(step, policy, inputs, context, report, error).outputs()


async def _in_time(
    work: BoundNode, policy: ErrorPolicy, inputs: Outputs, context: FlowContext
) -> Outputs:
    """Let a node work once, for as long as the policy allows.

    Raises:
        StepTimeoutError: that was not long enough.
    """
    timeout_ms = policy.timeout_ms
    if timeout_ms is None:
        return await once(work, inputs, context)
    try:
        return await within(
            timeout_ms / 1000,
            once(work, inputs, context),
            name=f"step {context.path}",
            grace_seconds=context.run.grace_seconds,
            abandoned=lambda: context.calls.abandonment.of_attempt(context.path),
            late=_late_result(context),
        )
    except OutOfTimeError:
        raise StepTimeoutError(f"No result within {timeout_ms} ms.") from None


class _Recovery:
    """What happens to a step whose first attempt has failed."""

    def __init__(
        self,
        step: PreparedStep,
        policy: ErrorPolicy,
        inputs: Outputs,
        context: FlowContext,
        report: StepReport,
        error: Exception,
    ) -> None:
        self._step = step
        self._policy = policy
        self._inputs = inputs
        self._context = context
        self._report = report
        self._first: Exception | None = error
        self._number = 1
        self._ruling: Retry | GiveUp = GiveUp()
        self._attempts = AttemptLog(
            context.run.trace, context.trace_parent, failures=Exception, said=said_of
        )
        self._attempts.first_failed(error)

    async def outputs(self) -> Outputs:
        """Make further attempts, then do what the policy says.

        Raises:
            Exception: what failed the step in the end.
        """
        try:
            return await self._retrying()(self._attempt)
        except Exception as error:
            return await self._recovered(error)

    def _retrying(self) -> AsyncRetrying:
        return AsyncRetrying(
            wait=self._judge,
            stop=lambda _: isinstance(self._ruling, GiveUp),
            retry=retry_if_exception_type(Exception),
            sleep=asyncio.sleep,
            reraise=True,
        )

    def _judge(self, state: RetryCallState) -> float:
        """Judge the last failure; return the wait before the next attempt, if there is one."""
        run, scope = self._context.run, self._context.scope
        ends = (scope.remaining_seconds(), run.deadline_in())
        error = state.outcome.exception() if state.outcome else None
        self._ruling = verdict(
            self._policy,
            failed_attempts=state.attempt_number,
            jitter=run.jitter(),
            retry_after_seconds=getattr(error, "retry_after_seconds", None),
            seconds_left=min((left for left in ends if left is not None), default=math.inf),
        )
        return self._ruling.delay_seconds if isinstance(self._ruling, Retry) else 0.0

    async def _attempt(self) -> Outputs:
        """Make an attempt; what counts as the first one is the one that brought us here."""
        if self._first is not None:
            first, self._first = self._first, None
            raise first
        self._number += 1
        self._context.run.trace.increment_retries(self._context.trace_parent)
        context = replace(self._context, path=f"{self._context.path}~{self._number}")
        return await self._make(self._step.work, context)

    async def _make(self, work: BoundNode, context: FlowContext) -> Outputs:
        context.token.check()
        return await self._attempts.make(
            lambda: _in_time(work, self._policy, self._inputs, context)
        )

    async def _recovered(self, error: Exception) -> Outputs:
        """Return what takes the place of the output that a failed step owes.

        Raises:
            Exception: its failure, or that of its fallback.
        """
        report = self._report
        match self._policy.on_error:
            case "skip":
                self._attempts.add_first()
                report.recovered_by, report.error = "skip", error
                return {DEFAULT_HANDLE: self._policy.fallback_value}
            case "fallback" if self._step.fallback is not None:
                outputs = await self._fall_back(self._step.fallback, error)
                report.recovered_by, report.error = "fallback", error
                return outputs
            case _:
                raise error

    async def _fall_back(self, fallback: BoundNode, error: Exception) -> Outputs:
        context = replace(self._context, path=f"{self._context.path}~fallback")
        try:
            return await self._make(fallback, context)
        except Exception as failed:
            raise failed from error


def _late_result(context: FlowContext) -> Callable[[object], None]:
    """Return what records that abandoned work of a step came to an end after all."""

    def record(_: object) -> None:
        events = context.run.events
        if events is not None:
            events.emit(Event(type=LATE_RESULT, step_id=context.path, node_id=context.trace_parent))

    return record
