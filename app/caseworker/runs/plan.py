"""The graph that a run executes, and its result."""

import asyncio
from collections.abc import Mapping
from typing import Any

from caseworker.core.graph.facts import StepStatus
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import GraphOutcome, StepReport, class_of
from caseworker.nodes.agent.execution import cut_off_result
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.node_type import RunFacts
from caseworker.platform.logs.errors import message_of_error
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import Run, RunKind

RESULT = "result"


class RunGraphs:
    """Prepares the graphs of runs for execution."""

    def __init__(self, catalog: NodeCatalog) -> None:
        self._catalog = catalog
        self._usual: dict[tuple[RunKind, str | None], PreparedGraph] = {}
        """Graphs of runs without a graph, expected tools or gold answer, by kind and mode."""

    async def prepared(self, run: Run) -> PreparedGraph:
        """Return the prepared graph of a run; a graph sent by a caller is prepared in a thread."""
        if run.request.graph is not None:
            return await asyncio.to_thread(self.graph_for, run)
        return self.graph_for(run)

    def graph_for(self, run: Run) -> PreparedGraph:
        """Return the prepared graph of a run.

        Raises:
            GraphProblemsError: this process cannot execute the graph.
        """
        request, key = run.request, (run.kind, run.request.mode)
        graph, answer = request.graph, request.gold_answer
        own = graph is not None or answer is not None or request.expected_tools
        found = None if own else self._usual.get(key)
        if found is None:
            graph = KINDS[request.kind].graph(request)
            found = self._catalog.prepare(graph, graph_id=run.key.run_id)
            if not own:
                self._usual[key] = found
        return found


def facts_of(run: Run) -> RunFacts:
    """Return the run's acceptance time, time zone and seed, for use by its steps."""
    request = run.request
    return RunFacts(now=run.created_at, timezone=request.timezone, seed=request.seed)


def result_of(run: Run, outcome: GraphOutcome) -> dict[str, Any] | None:
    """Return the result of a run from the outputs of its graph; it may be partial.

    If an answer was interrupted, the text that earlier executions streamed is included.
    """
    for (step_id, _), (turn, text) in run.streamed.items():
        report, ended = outcome.steps.get(step_id or ""), outcome.stop or outcome.error
        if report is not None and ended is not None and report.status is not StepStatus.COMPLETED:
            cut_off = cut_off_result(report.outputs.get(RESULT), turn, text, ended)
            report.outputs = {**report.outputs, RESULT: cut_off}
    step_id = KINDS[run.request.kind].step
    if step_id is None:
        return _graph_result(outcome)
    result: Mapping[str, Any] | None = outcome.steps[step_id].outputs.get(RESULT)
    return None if result is None else dict(result)


def _graph_result(outcome: GraphOutcome) -> dict[str, Any]:
    steps = outcome.steps
    return {
        "outputs": {
            step_id: dict(report.outputs) for step_id, report in steps.items() if report.outputs
        },
        "steps": {step_id: _standing(report) for step_id, report in steps.items()},
    }


def _standing(report: StepReport) -> dict[str, Any]:
    standing: dict[str, Any] = {"status": report.status.value}
    if report.error is not None:
        standing["error"] = message_of_error(report.error)
        standing["error_class"] = class_of(report.error)
        standing["attempts"] = report.attempts
    if report.recovered_by is not None:
        standing["recovered_by"] = report.recovered_by
    return standing
