"""The graph that a run executes, and what its result is made of."""

from collections.abc import Mapping
from typing import Any

from app.engine.driver import GraphOutcome
from app.kernel.graph import Graph, Step
from app.runs.run import Run

CASE_STEP = "case"
RESULT = "result"


def graph_for(run: Run) -> Graph:
    """Return the graph of a run: a case is a graph of one step."""
    request = run.request
    data = {
        "input": request.input,
        "expected_tools": list(request.expected_tools),
        "gold_answer": request.gold_answer,
        "mode": request.mode,
        "seed": request.seed,
        "timezone": request.timezone,
        "now": run.created_at.isoformat(),
    }
    return Graph(id=run.kind.value, steps=(Step(id=CASE_STEP, type="case", data=data),))


def result_of(outcome: GraphOutcome) -> dict[str, Any] | None:
    """Return what the case came to, or had come to when it was ended."""
    result: Mapping[str, Any] | None = outcome.steps[CASE_STEP].outputs.get(RESULT)
    return None if result is None else dict(result)
