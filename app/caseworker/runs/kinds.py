"""Rules that differ between the kinds of runs: the graph, its inputs and the finish reasons.

All other modules look up the rules of a kind in :data:`KINDS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.graph.validation import Problem
from caseworker.engine.context import Outputs
from caseworker.runs.graphs import Definition
from caseworker.runs.run import RunKind, RunRequest, RunStatus

CASE_STEP: Final = "case"
AGENT_STEP: Final = "agent"
EXTERNAL_STEP: Final = "external"

_FINISH_REASONS = {RunStatus.COMPLETED: "success", RunStatus.HALTED: "budget"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """Rules for executing runs of one kind and reporting their outcome."""

    kind: RunKind
    step: str | None = None
    """ID of the graph's only step, whose result becomes the result of the run. If None, the
    result consists of the outputs of all steps."""
    graph: Callable[[RunRequest], Mapping[str, Any]] = lambda request: request.graph or {}
    """Function that returns the graph that a run executes."""
    inputs: Callable[[RunRequest], Outputs] = attrgetter("inputs")
    """Function that returns the inputs for the first steps of the graph, by handle."""
    finish_reasons: Mapping[RunStatus, str] = field(default_factory=dict)
    """Finish reason of a run by its final status; a run with another status has none."""
    result_has_reason: bool = False
    """Whether the result contains a finish reason, which a failed run then uses as its own."""

    is_external: bool = False
    """Whether the work is done outside of the service. Such a run starts at once or is refused, and
    holds no run slot."""

    def graph_of(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the graph to execute for a definition; an agent becomes a graph with one step."""
        return content if self.step is None else _one_step(self.step, {self.step: content})

    def content_of(self, definition: Definition) -> Mapping[str, Any]:
        """Return the content of a definition; for an agent, with its name and version added."""
        if self.step is None:
            return definition.content
        return {
            **definition.content,
            "name": definition.head.name,
            "version": definition.head.version,
        }

    def at_home(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Return the problems with locations relative to the definition instead of the graph.

        An agent is executed as a step of a graph. The prefix of that step is removed from the
        locations.
        """
        if self.step is None:
            return problems
        prefix = f"steps.0.data.{self.step}."
        return [replace(one, place=one.place.removeprefix(prefix)) for one in problems]


def parent_of(request: RunRequest) -> str | None:
    """Return the ID of the run whose budget an external run shares; None if it shares none."""
    return _external(request, "parent")


def external_name(request: RunRequest) -> str | None:
    """Return the name of the agent of an external run; None if it has none."""
    return _external(request, "name")


def _external(request: RunRequest, setting: str) -> str | None:
    if request.kind is not RunKind.EXTERNAL or request.graph is None:
        return None
    value: str | None = request.graph["steps"][0]["data"][EXTERNAL_STEP].get(setting)
    return value


def _one_step(name: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"steps": [{"id": name, "type": name, "data": data}], "edges": []}


def _case_graph(request: RunRequest) -> Mapping[str, Any]:
    """Return the graph of a case; the question is an input, not part of the graph."""
    data = {
        "expected_tools": list(request.expected_tools),
        "gold_answer": request.gold_answer,
        "mode": request.mode,
    }
    return _one_step(CASE_STEP, data)


KINDS: Final[Mapping[str, KindRules]] = MappingProxyType(
    {
        rules.kind: rules
        for rules in (
            KindRules(
                kind=RunKind.CASE,
                step=CASE_STEP,
                graph=_case_graph,
                inputs=lambda request: {DEFAULT_HANDLE: request.input},
                finish_reasons=_FINISH_REASONS,
                result_has_reason=True,
            ),
            KindRules(kind=RunKind.GRAPH),
            KindRules(kind=RunKind.AGENT, step=AGENT_STEP),
            KindRules(kind=RunKind.EXTERNAL, step=EXTERNAL_STEP, is_external=True),
        )
    }
)
"""Rules for each kind of run or definition, by its name."""
