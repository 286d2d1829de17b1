"""Lets the node of a step work: one attempt, or as many as its policy allows.

A failure comes here as an Exception, and only here is it judged. A stop passes through: nothing
retries it, skips it or replaces it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from caseworker.control.retry import ErrorPolicy
from caseworker.control.stops import Stop
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
from caseworker.kernel.graph import DEFAULT_HANDLE
from caseworker.observability.errors import message_of_error

log = structlog.get_logger(__name__)

_FINAL = "final"
"""Key of the journaled failure of an attempt after whose class the policy makes no other one."""
_NEXT_BEGUN = "next_begun"
"""Key of the journaled failure of an attempt: whether the one after it has begun."""


def outputs_of(
    step: PreparedStep, inputs: Outputs, context: FlowContext, report: StepReport
) -> Coroutine[Any, Any, Outputs]:
    """Return the work of a step, to be awaited for what it produces, by handle.

    Awaiting it raises what failed the step in the end, or the stop that it met.
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
    recovering = Recovery(step, policy, inputs, context, report, failure).outputs()
    del failure  # its traceback holds this frame, which must not keep it alive
    return await recovering


async def _once(
    work: BoundNode, inputs: Outputs, context: FlowContext, timeout_ms: int | None = None
) -> Outputs:
    """Let a node work once and return what it produced, by handle."""
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
    """Let a node begin to work; most nodes have their result then.

    Raises:
        StepTimeoutError: it has, but too late: nothing could cut it off.
    """
    begun = time.monotonic() if timeout_ms is not None else 0.0
    try:
        execution = work.node.execute(work.data, inputs, context)
    except BaseException as error:
        raise _meant_by(error)  # noqa: B904 - it is the same, or says so itself
    if timeout_ms is None or type(execution) is not ExecutionResult:
        return execution
    if (time.monotonic() - begun) * 1000 > timeout_ms:
        raise StepTimeoutError.after(timeout_ms)
    return execution


async def end_of(execution: Execution, context: FlowContext) -> Outputs:
    """Wait for what a node has begun.

    Raises:
        StepBrokenError: it did not end as a node must.
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
    """Return what it means when a node ends with an error: a failure, or what passes through.

    It is returned, not raised: a frame that holds what was raised in it keeps both alive, and with
    them the run.
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
    """Return the stop that a task group of a node has wrapped, if there is one."""
    if isinstance(error, BaseExceptionGroup):
        found = (_stop_in(inner) for inner in error.exceptions)
        return next((stop for stop in found if stop is not None), None)
    return error if isinstance(error, Stop) else None


async def _last_of(stream: Any, context: FlowContext) -> ExecutionResult | None:
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
    if item.type in RESERVED:
        raise StepBrokenError(f"{item.type} is for the engine to tell.")
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
    """Journal that so many attempts of a step have failed, none of which is made again.

    Return the last failure as it is journaled.
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
    """Let a node work once, for as long as the policy allows.

    If that is not long enough, ``failed`` is called before anything is cut off.

    Raises:
        StepTimeoutError: it was not.
    """
    if policy.timeout_ms is None:
        return await _once(work, inputs, context)
    clock = asyncio.get_running_loop().time
    ends = clock() + policy.timeout_ms / 1000
    execution: Execution | None = None
    if work.lock is None:
        execution = begin(work, inputs, context, policy.timeout_ms)
        if type(execution) is ExecutionResult:
            return execution.outputs  # without a task, of which there is nothing to cut off
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
    """Cancel an attempt and drop what it comes to; return a cancel that came meanwhile.

    ``execution`` is what it waits for, if that has been begun: it may not have come to that. What
    ignores its cancellation for the grace period is abandoned.

    Raises:
        Stop: the attempt met one, even if its time was up by then.
    """
    run, inside = context.run, context.path.inside_attempt()

    def late(_: object) -> None:
        if run.events is not None:
            step_id = context.path.text
            run.events.emit(Event(type=LATE_RESULT, step_id=step_id, node_id=context.trace_parent))

    def over() -> None:
        run.calls.detached.end(inside)
        run.over()

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
    """What the policy of a step makes of its first failure."""

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
        self._last: Mapping[str, Any] = report.failed_before or {}
        """The last failure as it is journaled."""
        self._attempts = AttemptLog(
            context.run.trace, context.trace_parent, failures=Exception, said=message_of_error
        )
        if report.failed_before is None:
            self._attempts.first_failed(error)
        else:
            self._attempts.made = report.failed_before["failed_attempts"]

    async def outputs(self) -> Outputs:
        """Make further attempts, then do what the policy says, or raise the last failure."""
        first, self._first = self._first, None
        try:
            return await self._context.calls.retries.run(
                self._attempt,
                self._policy.retry,
                self._context.scope,
                failed=self._failed,
                before=self._made_before(first),
            )
        except Exception as error:
            return await self._recovered(error)
        finally:
            del first  # this frame is a part of it now, and must not keep it alive

    def _made_before(self, first: Exception | None) -> tuple[int, Exception | None] | None:
        """Return the attempts so far; an earlier execution may have begun the next one."""
        if first is None:
            return None
        noted = self._report.failed_before
        return self._attempts.made, None if noted and noted.get(_NEXT_BEGUN) else first

    async def _attempt(self, number: int) -> Outputs:
        """Make an attempt after the first, and note that the wait before it is over."""
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
        """Return what takes the place of a failed step's output, or raise its failure."""
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
    """Return a JSON value that nobody shares: the policy is that of other runs as well."""
    if type(value) is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if type(value) is list else value
