"""What a person wants to know of the steps of an execution."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from app.trace.step_trace import StepTrace
from app.trace.wording import plain

_MOST: Final = 5
"""How many steps are named where only the weightiest count."""


def step_lines(steps: Sequence[StepTrace]) -> Iterator[str]:
    """Yield a line for each step as seed 000 has it, and below it what went wrong there."""
    for step in steps:
        yield plain(f"  {step.step_id} ({step.node_type}): {_ms(step.duration_ms)}")
        if step.error:
            yield plain(f"    Error: {step.error}")
        if troubles := list(_troubles(step)):
            yield plain(f"    {', '.join(troubles)}")


def insights(steps: Sequence[StepTrace]) -> Iterator[str]:
    """Yield where the time went, what the end waited for, and what stopped the execution."""
    outermost = [step for step in steps if "nested_in" not in step.metadata]
    if len(outermost) > 1:
        slowest = sorted(outermost, key=lambda step: -step.duration_ms)[:_MOST]
        yield f"Slowest: {_named(slowest, ', ')}"
    path = critical_path(outermost)
    if len(path) < len(outermost):
        longest = sorted(path, key=lambda step: -step.duration_ms)[: 2 * _MOST]
        yield f"Critical path: {_named(sorted(longest, key=_start), ' > ')}"
    halted = [step for step in steps if step.metadata.get("status") == "halt"]
    if halted:
        first = min(halted, key=_end)
        reason = first.metadata.get("stop_reason") or first.error or "no reason given"
        yield plain(f"Stopped at: {first.step_id}: {reason}")


def critical_path(steps: Sequence[StepTrace]) -> list[StepTrace]:
    """Return the steps that the end waited for, in the order in which they began.

    It is the step that ended last, before it the last one that had ended when it began, and so on.
    """
    path: list[StepTrace] = []
    for step in sorted(steps, key=lambda step: (_end(step), _start(step)), reverse=True):
        if not path or _end(step) <= _start(path[-1]):
            path.append(step)
    return path[::-1]


def _troubles(step: StepTrace) -> Iterator[str]:
    attempts = step.metadata.get("attempts")
    if isinstance(attempts, int) and attempts > 1:
        yield f"{attempts} attempts"
    if recovered_by := step.metadata.get("recovered_by"):
        yield f"recovered by {recovered_by}"


def _named(steps: Sequence[StepTrace], separator: str) -> str:
    return plain(separator.join(f"{step.step_id} {_ms(step.duration_ms)}" for step in steps))


def _ms(duration_ms: float) -> str:
    return f"{duration_ms:.0f}ms"


def _start(step: StepTrace) -> datetime:
    return step.start_time.astimezone(UTC)


def _end(step: StepTrace) -> datetime:
    return step.end_time.astimezone(UTC)
