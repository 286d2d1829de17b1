"""The graph that a run executes, its inputs and its result."""

import asyncio
from collections.abc import Mapping
from typing import Any

from caseworker.core.graph.facts import StepStatus
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.engine.context import Outputs
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import GraphOutcome, StepReport, class_of
from caseworker.nodes.agent.execution import cut_off_result
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.node_type import RunFacts
from caseworker.platform.logs.errors import message_of_error
from caseworker.runs.definitions import AGENT_STEP
from caseworker.runs.run import Run, RunKind, RunRequest

CASE_STEP = "case"
RESULT = "result"


class RunGraphs:
    """Prepares the graphs of runs for execution; a case becomes a graph with one step."""

    def __init__(self, catalog: NodeCatalog) -> None:
        self._catalog = catalog
        self._usual: dict[str | None, PreparedGraph] = {}
        """Prepared graphs of cases without expected tools or gold answer, by mode."""

    async def prepared(self, run: Run) -> PreparedGraph:
        """Return the prepared graph of a run; a graph sent by a caller is prepared in a thread."""
        if run.request.kind is not RunKind.CASE:
            return await asyncio.to_thread(self.graph_for, run)
        return self.graph_for(run)

    def graph_for(self, run: Run) -> PreparedGraph:
        """Return the prepared graph of a run.

        Raises:
            GraphProblemsError: this process cannot execute the graph.
        """
        request = run.request
        if request.kind is not RunKind.CASE:
            return self._catalog.prepare(request.graph or {}, graph_id=run.key.run_id)
        if request.expected_tools or request.gold_answer is not None:
            return self._of_case(request)
        found = self._usual.get(request.mode)
        if found is None:
            found = self._usual[request.mode] = self._of_case(request)
        return found

    def _of_case(self, request: RunRequest) -> PreparedGraph:
        data = {  # the question is an input, not part of the graph
            "expected_tools": list(request.expected_tools),
            "gold_answer": request.gold_answer,
            "mode": request.mode,
        }
        step = {"id": CASE_STEP, "type": "case", "data": data}
        return self._catalog.prepare({"steps": [step], "edges": []}, graph_id=request.kind.value)


def inputs_of(request: RunRequest) -> Outputs:
    """Return the inputs for the first steps of a run's graph, by handle."""
    return {DEFAULT_HANDLE: request.input} if request.kind is RunKind.CASE else request.inputs


def facts_of(run: Run) -> RunFacts:
    """Return the facts about a run that its steps may use."""
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
    if run.request.kind is RunKind.GRAPH:
        return _graph_result(outcome)
    step_id = CASE_STEP if run.request.kind is RunKind.CASE else AGENT_STEP
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
