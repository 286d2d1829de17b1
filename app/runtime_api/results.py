"""How a graph in Python ended, and what it produced."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.control.stops import Stop, StopKind
from app.engine.report import GraphOutcome
from app.kernel.graph import DEFAULT_HANDLE
from app.kernel.lifecycle import StepStatus
from app.trace.execution_graph import ExecutionGraph

Status = Literal["completed", "failed", "halted", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRun:
    """How a graph ended, with everything its steps have produced until then."""

    status: Status
    results: dict[str, Any]
    """By step; of a step that was cut off or failed, what it had so far."""
    steps: Mapping[str, str]
    """How each step stands: pending, completed, failed, cancelled or skipped."""
    error: Exception | None
    """What failed it."""
    stop: Stop | None
    """The limit, or the wish, that ended it."""
    calls: ExecutionGraph
    """Everything that was executed and called, as document 001 has it."""


def results_of(outputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return results as seed 000 has them: the one value of a step, or its values by handle."""
    return {
        step_id: values[DEFAULT_HANDLE]
        if len(values) == 1 and DEFAULT_HANDLE in values
        else dict(values)
        for step_id, values in outputs.items()
        if values
    }


_WORDS = {status: status.value for status in StepStatus}
"""Looked up once: for a thousand steps it is felt."""


def ended(outcome: GraphOutcome, calls: ExecutionGraph) -> GraphRun:
    """Return how a graph ended."""
    outputs = {step_id: report.outputs for step_id, report in outcome.steps.items()}
    return GraphRun(
        status=_status(outcome),
        results=results_of(outputs),
        steps={step_id: _WORDS[report.status] for step_id, report in outcome.steps.items()},
        error=outcome.error,
        stop=outcome.stop,
        calls=calls,
    )


def _status(outcome: GraphOutcome) -> Status:
    if outcome.stop is not None:
        return "cancelled" if outcome.stop.cause.kind is StopKind.CANCELLED else "halted"
    return "completed" if outcome.error is None else "failed"
