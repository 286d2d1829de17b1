"""Makes one attempt at a step: calls its node, within a time limit and under a lock.

A failure is raised as an Exception, and a stop as a BaseException that no error policy sees.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.budget.stops import Stop
from caseworker.engine.cancellation import is_being_cancelled
from caseworker.engine.context import (
    Execution,
    ExecutionResult,
    FlowContext,
    NodeEvent,
    Outputs,
)
from caseworker.engine.events import LATE_RESULT, RESERVED, Event
from caseworker.engine.prepared import BoundNode
from caseworker.engine.report import StepBrokenError, StepTimeoutError, detach_inside
from caseworker.engine.supervision import detach, until_done
from caseworker.platform.logs.errors import message_of_error

NO_RESULT = "The step's node returned no ExecutionResult."


async def attempt(
    work: BoundNode,
    policy: ErrorPolicy | None,
    inputs: Outputs,
    context: FlowContext,
    failed: Callable[[Exception], object],
) -> Outputs:
    """Execute a node once within the policy's timeout, and return its outputs by handle.

    On a timeout, ``failed`` journals the failure before the attempt is cancelled. So a worker loss
    during the cancellation does not repeat the attempt.

    Raises:
        StepTimeoutError: the attempt timed out.
    """
    if policy is None or policy.timeout_ms is None:
        return await _outputs_of(work, inputs, context)
    clock = asyncio.get_running_loop().time
    # Taken before ``_start``: the timeout includes the synchronous part of the node.
    ends = clock() + policy.timeout_ms / 1000
    execution: Execution | None = None
    if work.lock is None:
        execution = _start(work, inputs, context, policy.timeout_ms)
        if type(execution) is ExecutionResult:
            return execution.outputs  # already done: no task is needed to interrupt it
        working = _end_of(execution, context)
    else:
        working = _outputs_of(work, inputs, context, policy.timeout_ms)
    task = asyncio.create_task(working, name=f"step {context.path}")
    try:
        await asyncio.wait({task}, timeout=ends - clock())
    except asyncio.CancelledError:
        await _interrupt(task, execution, context)
        raise
    if task.done():
        return task.result()
    late = StepTimeoutError.after(policy.timeout_ms)
    failed(late)
    cancelled = await _interrupt(task, execution, context)
    raise late if cancelled is None else cancelled


async def _outputs_of(
    work: BoundNode, inputs: Outputs, context: FlowContext, timeout_ms: int | None = None
) -> Outputs:
    """Execute a node once; hold its lock, if it has one."""
    if work.lock is not None:
        activity = context.run.calls.activity
        async with work.lock.held(activity.waits(context.path)):
            await activity.start(context.path)
            unlocked = BoundNode(work.node, work.data)
            return await _outputs_of(unlocked, inputs, context, timeout_ms)
    execution = _start(work, inputs, context, timeout_ms)
    if type(execution) is ExecutionResult:
        return execution.outputs
    return await _end_of(execution, context)


def _start(
    work: BoundNode, inputs: Outputs, context: FlowContext, timeout_ms: int | None = None
) -> Execution:
    """Call a node's ``execute``, and return its result, coroutine or event stream.

    Raises:
        StepTimeoutError: a synchronous node took too long; it could not be interrupted.
    """
    started = time.monotonic() if timeout_ms is not None else 0.0
    try:
        execution = work.node.execute(work.data, inputs, context)
    except BaseException as error:
        raise meaning_of(error, context, _task())  # noqa: B904 - the same error, or one that sets its cause
    if timeout_ms is None or type(execution) is not ExecutionResult:
        return execution
    if (time.monotonic() - started) * 1000 > timeout_ms:
        raise StepTimeoutError.after(timeout_ms)
    return execution


async def _end_of(execution: Execution, context: FlowContext) -> Outputs:
    """Wait for a node's coroutine or event stream to end, and return its outputs.

    Raises:
        StepBrokenError: the node returned no ExecutionResult, or violated the node interface.
    """
    task = _task()
    try:
        if hasattr(execution, "__aiter__"):
            result = await last_of(execution, context)
        else:
            result = await execution  # type: ignore[misc]
    except BaseException as error:
        raise meaning_of(error, context, task)  # noqa: B904
    if type(result) is not ExecutionResult:
        raise StepBrokenError(NO_RESULT)
    return result.outputs


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # the garbage collector closes a coroutine outside of the event loop
        return None


def meaning_of(
    error: BaseException, context: FlowContext, task: asyncio.Task[Any] | None
) -> BaseException:
    """Map an error of a node to a failure, a stop or a cancellation.

    Stops and cancels of this task pass through unchanged, and so does the KeyboardInterrupt of a
    user outside of the service; other BaseExceptions become a StepBrokenError. The error is
    returned, not raised, because a traceback through this frame would form a reference cycle that
    keeps the run alive. ``task`` is the task that executes the node.
    """
    if isinstance(error, GeneratorExit) and _task() is not task:
        return error  # the coroutine that executes the node is being closed
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        if is_being_cancelled():
            return error
        return StepBrokenError("The step waited for something that was cancelled.")
    if isinstance(error, Stop) or (
        isinstance(error, KeyboardInterrupt) and context.run.journal is None
    ):
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
    pending = [error]
    while pending:
        error = pending.pop()
        if isinstance(error, Stop):
            return error
        if isinstance(error, BaseExceptionGroup):
            pending += reversed(error.exceptions)
    return None


async def last_of(stream: Any, context: FlowContext) -> ExecutionResult | None:
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


async def _interrupt(
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

    def end_detached() -> None:
        run.calls.detached.end(inside)
        run.on_abandoned_done()

    # Detach before cancelling: cleanup code must not start new steps or calls.
    run.calls.detached.begin(inside)
    attempt.cancel()
    cancelled = await until_done((attempt,), run.grace_seconds)
    # A coroutine that was never awaited would warn when it is collected. It can be closed only now:
    # while the attempt runs, it is executing.
    if attempt.cancelled() and asyncio.iscoroutine(execution):
        execution.close()
    if not attempt.done():
        # Only after the grace period, in which the attempt may still end its own calls.
        detach_inside(run, inside)
    # Last, because ``end_detached`` removes the mark from above, at once if the attempt has ended.
    detach(attempt, late, on_done=end_detached)
    error = None if not attempt.done() or attempt.cancelled() else attempt.exception()
    if isinstance(error, Stop):
        raise error
    return cancelled
