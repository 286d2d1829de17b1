"""Executes the node of a step: one attempt, or several as its error policy allows.

This is the only place that applies error policies to failures. A failure is an Exception. A stop is
a BaseException that passes through: it is never retried, skipped or replaced.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.budget.stops import Stop
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.engine.call import AttemptLog
from caseworker.engine.cancellation import is_being_cancelled
from caseworker.engine.context import FlowContext, Outputs
from caseworker.engine.events import LATE_RESULT, RESERVED, Event
from caseworker.engine.node import Execution, ExecutionResult, NodeEvent
from caseworker.engine.ports import step_entry
from caseworker.engine.prepared import BoundNode, PreparedStep
from caseworker.engine.report import (
    RecordedFailureError,
    StepBrokenError,
    StepReport,
    StepTimeoutError,
    class_of,
    detach_inside,
    failure_of,
)
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import detach, until_done
from caseworker.platform.logs.errors import message_of_error

log = structlog.get_logger(__name__)

_FINAL = "final"
"""Key in the journal value of a failed attempt: the policy does not retry this error class."""
_NEXT_BEGUN = "next_begun"
"""Key in the journal value of a failed attempt: the next attempt has started."""


def outputs_of(
    step: PreparedStep, inputs: Outputs, context: FlowContext, report: StepReport
) -> Coroutine[Any, Any, Outputs]:
    """Return a coroutine that executes the step and returns its outputs by handle.

    The coroutine raises the last failure if the error policy does not recover from it, or the stop
    that ended the step.
    """
    if step.policy is None:
        return _once(step.work, inputs, context)
    return _under_policy(step.policy, step, inputs, context, report)


async def _under_policy(
    policy: ErrorPolicy,
    step: PreparedStep,
    inputs: Outputs,
    context: FlowContext,
    report: StepReport,
) -> Outputs:
    if report.failed_before is None:
        try:
            failed = partial(_note_failed, policy, context, report, 1)
            return await _in_time(step.work, policy, inputs, context, failed)
        except Exception as error:
            failure = error
    else:
        failure = RecordedFailureError.of(report.failed_before)
    recovering = Recovery(step, policy, inputs, context, report).outputs(failure)
    del failure  # its traceback holds this frame, which must not keep it alive
    return await recovering


async def _once(
    work: BoundNode, inputs: Outputs, context: FlowContext, timeout_ms: int | None = None
) -> Outputs:
    """Execute a node once and return its outputs by handle; holds its lock, if any."""
    if work.lock is not None:
        async with work.lock.held():
            unlocked = BoundNode(work.node, work.data)
            return await _once(unlocked, inputs, context, timeout_ms)
    execution = begin(work, inputs, context, timeout_ms)
    if type(execution) is ExecutionResult:
        return execution.outputs
    return await end_of(execution, context)


def begin(
    work: BoundNode, inputs: Outputs, context: FlowContext, timeout_ms: int | None = None
) -> Execution:
    """Call a node's ``execute``, and return its result, coroutine or event stream.

    Raises:
        StepTimeoutError: a synchronous node took too long; it could not be interrupted.
    """
    begun = time.monotonic() if timeout_ms is not None else 0.0
    try:
        execution = work.node.execute(work.data, inputs, context)
    except BaseException as error:
        raise _meant_by(error)  # noqa: B904 - the same error, or one that sets its own cause
    if timeout_ms is None or type(execution) is not ExecutionResult:
        return execution
    if (time.monotonic() - begun) * 1000 > timeout_ms:
        raise StepTimeoutError.after(timeout_ms)
    return execution


async def end_of(execution: Execution, context: FlowContext) -> Outputs:
    """Wait for a node's coroutine or event stream to end, and return its outputs.

    Raises:
        StepBrokenError: the node returned no ExecutionResult, or violated the node interface.
    """
    try:
        if hasattr(execution, "__aiter__"):
            result = await _last_of(execution, context)
        else:
            result = await execution  # type: ignore[misc]
    except BaseException as error:
        raise _meant_by(error)  # noqa: B904
    if type(result) is not ExecutionResult:
        raise StepBrokenError("The step's node returned no ExecutionResult.")
    return result.outputs


def _meant_by(error: BaseException) -> BaseException:
    """Map an error of a node to a failure, a stop or a cancellation.

    Stops and cancels of this task pass through unchanged; other BaseExceptions become a
    StepBrokenError. The error is returned, not raised, because a traceback through this frame would
    form a reference cycle that keeps the run alive.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        if is_being_cancelled():
            return error
        return StepBrokenError("The step waited for something that was cancelled.")
    if isinstance(error, Stop | KeyboardInterrupt | GeneratorExit):
        return error
    stop = _stop_in(error)
    if stop is not None:
        stop.__suppress_context__ = True
        return stop
    broken = StepBrokenError(f"The step's node ended with {message_of_error(error)}.")
    broken.__cause__ = error
    return broken


def _stop_in(error: BaseException) -> Stop | None:
    """Return the stop in an error or in an exception group of a task group, or None."""
    if isinstance(error, BaseExceptionGroup):
        found = (_stop_in(inner) for inner in error.exceptions)
        return next((stop for stop in found if stop is not None), None)
    return error if isinstance(error, Stop) else None


async def _last_of(stream: Any, context: FlowContext) -> ExecutionResult | None:
    """Emit the events of a stream and return its last item, the result; None if it has none."""
    result: ExecutionResult | None = None
    async with aclosing(stream) as items:
        async for item in items:
            if result is not None:
                raise StepBrokenError("The step's node continued after its result.")
            if isinstance(item, ExecutionResult):
                result = item
            else:
                _pass_on(item, context)
    return result


def _pass_on(item: Any, context: FlowContext) -> None:
    if not isinstance(item, NodeEvent):
        raise StepBrokenError("The step's node yielded an object that is not a NodeEvent.")
    if item.type in RESERVED:
        raise StepBrokenError(f"{item.type} is reserved for the engine.")
    if context.run.events is not None:
        context.run.events.emit(
            Event(
                type=item.type,
                step_id=context.path.text,
                node_id=context.trace_parent,
                data=item.data,
            )
        )


def _note_failed(
    policy: ErrorPolicy, context: FlowContext, report: StepReport, number: int, error: Exception
) -> dict[str, Any]:
    """Journal that ``number`` attempts failed, so that a resumed run does not repeat them.

    Return the journal value of the last failure.
    """
    report.attempts = number
    noted = report.failed_before if isinstance(error, RecordedFailureError) else None
    final = noted.get(_FINAL, False) if noted else not policy.retries(error)
    failed = failure_of(error, failed_attempts=number, **({_FINAL: True} if final else {}))
    if context.run.journal is not None:
        log.warning(
            "step.attempt_failed",
            step_id=context.path.text,
            node_id=context.trace_parent,
            attempt=number,
            error_class=class_of(error),
            error=message_of_error(error),
            exc_info=context.run.logged_with(error),
        )
        entry = step_entry(context.path, report.charge, value=failed)
        context.run.journal.note(context.trace_parent, entry)
    return failed


async def _in_time(
    work: BoundNode,
    policy: ErrorPolicy,
    inputs: Outputs,
    context: FlowContext,
    failed: Callable[[Exception], object],
) -> Outputs:
    """Execute a node once within the policy's timeout.

    On a timeout, ``failed`` journals the failure before the attempt is cancelled. So a worker loss
    during the cancellation does not repeat the attempt.

    Raises:
        StepTimeoutError: the attempt timed out.
    """
    if policy.timeout_ms is None:
        return await _once(work, inputs, context)
    clock = asyncio.get_running_loop().time
    # Taken before ``begin``: the timeout includes the synchronous part of the node.
    ends = clock() + policy.timeout_ms / 1000
    execution: Execution | None = None
    if work.lock is None:
        execution = begin(work, inputs, context, policy.timeout_ms)
        if type(execution) is ExecutionResult:
            return execution.outputs  # already done: no task is needed to interrupt it
        working = end_of(execution, context)
    else:
        working = _once(work, inputs, context, policy.timeout_ms)
    attempt = asyncio.create_task(working, name=f"step {context.path}")
    try:
        await asyncio.wait({attempt}, timeout=ends - clock())
    except asyncio.CancelledError:
        await _cut_off(attempt, execution, context)
        raise
    if attempt.done():
        return attempt.result()
    late = StepTimeoutError.after(policy.timeout_ms)
    failed(late)
    cancelled = await _cut_off(attempt, execution, context)
    raise late if cancelled is None else cancelled


async def _cut_off(
    attempt: "asyncio.Task[Outputs]", execution: Execution | None, context: FlowContext
) -> asyncio.CancelledError | None:
    """Cancel an attempt and drop its result; return a cancel of this task that arrived meanwhile.

    ``execution`` is the node's coroutine or stream, if created. It is closed because the attempt
    may have been cancelled before it awaited it. An attempt that ignores its cancellation for the
    grace period is abandoned.

    Raises:
        Stop: the attempt ended with a stop, which takes precedence over the timeout.
    """
    run, inside = context.run, context.path.inside_attempt()

    def late(_: object) -> None:
        if run.events is not None:
            step_id = context.path.text
            run.events.emit(Event(type=LATE_RESULT, step_id=step_id, node_id=context.trace_parent))

    def over() -> None:
        run.calls.detached.end(inside)
        run.over()

    # Detach before cancelling: cleanup code must not start new steps or calls.
    run.calls.detached.begin(inside)
    attempt.cancel()
    cancelled = await until_done((attempt,), run.grace_seconds)
    if attempt.cancelled() and asyncio.iscoroutine(execution):
        execution.close()
    if not attempt.done():
        detach_inside(run, inside)
    detach(attempt, late, over=over)
    error = None if not attempt.done() or attempt.cancelled() else attempt.exception()
    if isinstance(error, Stop):
        raise error
    return cancelled


class Recovery:
    """Applies the error policy of a step after its first failure."""

    def __init__(
        self,
        step: PreparedStep,
        policy: ErrorPolicy,
        inputs: Outputs,
        context: FlowContext,
        report: StepReport,
    ) -> None:
        self._step = step
        self._policy = policy
        self._inputs = inputs
        self._context = context
        self._report = report
        self._last: Mapping[str, Any] = report.failed_before or {}
        """The journal value of the last failure."""
        self._attempts = AttemptLog(
            context.run.trace, context.trace_parent, failures=Exception, said=message_of_error
        )

    async def outputs(self, error: Exception) -> Outputs:
        """Retry the step, recover according to its policy, or raise the last failure.

        ``error`` is the failure of the last attempt so far.
        """
        waited, noted = False, self._report.failed_before
        if noted is None:
            self._attempts.first_failed(error)
        else:
            self._attempts.made = noted["failed_attempts"]
            # An earlier execution may have started the next attempt: then its back-off is over.
            waited = bool(noted.get(_NEXT_BEGUN))
        made = self._attempts.made
        try:
            while waited or await self._waited_after(error, made):
                waited, made = False, made + 1
                try:
                    return await self._attempt(made)
                except Exception as failure:
                    error = failure
            raise error
        except Exception as failure:
            return await self._recovered(failure)
        finally:
            del error  # its traceback holds this frame, which must not keep it alive

    async def _waited_after(self, error: Exception, made: int) -> bool:
        """Journal a failed attempt and wait for the back-off; return False if none may follow."""
        if not self._failed(error, made):
            return False
        scope, backoff = self._context.scope, self._context.calls.backoff
        delay = backoff.delay(self._policy.retry, scope, error, made)
        if delay is None:
            return False
        await asyncio.sleep(delay)
        return True

    async def _attempt(self, number: int) -> Outputs:
        """Make a retry, and journal that its back-off is over."""
        self._context.run.trace.increment_retries(self._context.trace_parent)
        if self._context.run.journal is not None:
            begun = {**self._last, _NEXT_BEGUN: True}
            entry = step_entry(self._context.path, self._report.charge, value=begun)
            self._context.run.journal.note(self._context.trace_parent, entry)
        return await self._make(self._step.work, self._context.path.attempt(number), number)

    async def _make(self, work: BoundNode, path: StepPath, number: int) -> Outputs:
        context = replace(self._context, path=path)
        context.token.check()
        with self._attempts:
            return await _in_time(
                work, self._policy, self._inputs, context, lambda late: self._failed(late, number)
            )

    def _failed(self, error: Exception, number: int) -> bool:
        self._last = _note_failed(self._policy, self._context, self._report, number, error)
        return _FINAL not in self._last

    async def _recovered(self, error: Exception) -> Outputs:
        """Return the fallback value or the fallback's outputs, or re-raise the failure."""
        report = self._report
        match self._policy.on_error:
            case "skip":
                self._attempts.add_first()
                told = report.so_far()
                kept = told.keys() & getattr(self._step.work.node, "reports", ())
                report.recovered_by, report.error = "skip", error
                about = {handle: told[handle] for handle in kept}
                return {**about, DEFAULT_HANDLE: _copied(self._policy.fallback_value)}
            case "fallback" if self._step.fallback is not None:
                path, number = self._context.path.fallback(), self._attempts.made
                report.attempts += 1
                self._attempts.of_fallback = True
                try:
                    outputs = await self._make(self._step.fallback, path, number)
                except Exception as failed:
                    raise failed from error
                report.recovered_by, report.error = "fallback", error
                return outputs
            case _:
                raise error


def _copied(value: Any) -> Any:
    """Return a deep copy of a JSON value, because runs share the policy that holds it."""
    if type(value) is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if type(value) is list else value
