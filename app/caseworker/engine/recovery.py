"""Applies the error policy of a step after its first failure: retries, fallback, default value.

This is the only place that applies error policies to failures. A failure is an Exception. A stop is
a BaseException that passes through: it is never retried, skipped or replaced.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from caseworker.core.budget.retry import ErrorPolicy, GiveUp
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.engine.attempt import attempt
from caseworker.engine.call import AttemptLog
from caseworker.engine.context import FlowContext, Outputs
from caseworker.engine.prepared import BoundNode, PreparedStep
from caseworker.engine.report import RecordedFailureError, StepReport, class_of, failure_of
from caseworker.engine.step_path import StepPath
from caseworker.platform.logs.errors import message_of_error

log = structlog.get_logger(__name__)

_FINAL = "final"
"""Key in the journal value of a failed attempt: the policy does not retry this error class."""
_NEXT_STARTED = "next_begun"
"""Key in the journal value of a failed attempt: the next attempt has started."""


async def step_outputs(
    step: PreparedStep, inputs: Outputs, context: FlowContext, report: StepReport
) -> Outputs:
    """Execute a step under its error policy, and return its outputs by handle.

    Raises:
        Exception: the last failure, if the policy does not recover from it.
        Stop: the stop that ended the step.
    """
    policy = step.policy
    if policy is None:
        return await attempt(step.work, None, inputs, context, lambda _: None)
    if report.failed_before is None:
        try:
            failed = partial(note_failed, policy, context, report, 1)
            return await attempt(step.work, policy, inputs, context, failed)
        except Exception as error:
            failure = error
    else:
        failure = RecordedFailureError.of(report.failed_before)
    recovering = Recovery(step, policy, inputs, context, report).outputs(failure)
    del failure  # its traceback holds this frame, which must not keep it alive
    return await recovering


def note_failed(
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
        context.run.journal.note(context.trace_parent, report.entry(value=failed))
    return failed


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
        self._attempts = AttemptLog(context.run.trace, context.trace_parent)
        self._count = 1
        """Number of attempts so far, including those in earlier executions, without a fallback."""

    async def outputs(self, error: Exception) -> Outputs:
        """Retry the step, recover according to its policy, or raise the last failure.

        ``error`` is the failure of the last attempt so far.
        """
        waited, noted = False, self._report.failed_before
        if noted is None:
            node = self._context.run.trace.node(self._context.trace_parent)
            self._attempts.first_failed(error, node["start_ts_ms"])
        else:
            self._count = noted["failed_attempts"]
            # An earlier execution may have started the next attempt: then its back-off is over.
            waited = bool(noted.get(_NEXT_STARTED))
        try:
            while waited or await self._waited_after(error):
                waited = False
                self._count += 1
                try:
                    return await self._retry()
                except Exception as failure:
                    error = failure
            raise error
        except Exception as failure:
            return await self._recovered(failure)
        finally:
            del error  # its traceback holds this frame, which must not keep it alive

    async def _waited_after(self, error: Exception) -> bool:
        """Journal a failed attempt and wait for the back-off; return False if none may follow."""
        if not self._failed(error):
            return False
        scope, backoff = self._context.scope, self._context.calls.backoff
        decision = backoff.decide(self._policy.retry, scope, error, self._count)
        if isinstance(decision, GiveUp):
            return False
        calls, path = self._context.calls, self._context.path
        await calls.frontier(path)
        async with calls.activity.waits(path):
            await asyncio.sleep(decision.delay_seconds)
        return True

    async def _retry(self) -> Outputs:
        """Make a retry, and journal that its back-off is over."""
        await self._context.calls.activity.start(self._context.path)
        self._context.run.trace.increment_retries(self._context.trace_parent)
        if self._context.run.journal is not None:
            entry = self._report.entry(value={**self._last, _NEXT_STARTED: True})
            self._context.run.journal.note(self._context.trace_parent, entry)
        path = self._context.path.attempt(self._count)
        return await self._attempt(self._step.work, path, self._count)

    async def _attempt(
        self, work: BoundNode, path: StepPath, number: int, *, fallback: bool = False
    ) -> Outputs:
        context = replace(self._context, path=path)
        if not work.replays:
            await context.calls.frontier(path)
        context.calls.check(path)
        self._attempts.begin(number, fallback=fallback)
        try:
            outputs = await attempt(work, self._policy, self._inputs, context, self._failed)
        except BaseException as error:
            self._attempts.end(error)
            raise
        self._attempts.end(None)
        return outputs

    def _failed(self, error: Exception) -> bool:
        self._last = note_failed(self._policy, self._context, self._report, self._count, error)
        return _FINAL not in self._last

    async def _recovered(self, error: Exception) -> Outputs:
        """Return the fallback value or the fallback's outputs, or re-raise the failure."""
        report = self._report
        match self._policy.on_error:
            case "skip":
                self._attempts.add_first()
                partial = report.so_far()
                reported = partial.keys() & getattr(self._step.work.node, "reports", ())
                report.recovered_by, report.error = "skip", error
                about = {handle: partial[handle] for handle in reported}
                return {**about, DEFAULT_HANDLE: _copied(self._policy.fallback_value)}
            case "fallback" if self._step.fallback is not None:
                path = self._context.path.fallback()
                await self._context.calls.activity.start(self._context.path)
                report.attempts += 1
                try:
                    outputs = await self._attempt(
                        self._step.fallback, path, self._count + 1, fallback=True
                    )
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
