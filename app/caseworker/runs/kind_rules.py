"""Rules that differ between the kinds of runs: their graphs, inputs, options and outcomes."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from caseworker.core.graph.validation import Problem
from caseworker.engine.context import Outputs
from caseworker.runs.run import RunKind, RunRequest, RunStatus


def one_step(name: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a graph with one step, whose ID is its type."""
    return {"steps": [{"id": name, "type": name, "data": data}], "edges": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """Rules for executing runs of one kind and reporting their outcome.

    A package registers the rules of its kind in the entry point group ``caseworker.run_kinds``.
    """

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

    shared_graph: Callable[[RunRequest], Hashable | None] = lambda request: None
    """Function that returns a key if all requests with this key execute the same graph, so that it
    is prepared once; None for a graph of the request alone."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields that only requests of this kind have; requests of other kinds with such a field are
    rejected, and store these values, because the previous release reads them."""
    api: str = ""
    """Import path (``module:object``) of the kind's :class:`~caseworker.runs.http.kind.KindApi`."""
    package: str = ""
    """Name of the package that the kind needs and that is not installed. Stored runs of the kind
    are then shown and can be cancelled, but are neither accepted nor executed."""

    agent_name: Callable[[RunRequest], str | None] | None = None
    """Function that returns the name of the agent of a run that executes no registered one."""

    is_external: bool = False
    """Whether the work is done outside of the service. Such a run starts at once or is refused, and
    holds no run slot."""

    def graph_of(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the graph to execute for a definition; an agent becomes a graph with one step."""
        return content if self.step is None else one_step(self.step, {self.step: content})

    def at_home(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Return the problems with locations relative to the definition instead of the graph.

        An agent is executed as a step of a graph. The prefix of that step is removed from the
        locations.
        """
        if self.step is None:
            return problems
        prefix = f"steps.0.data.{self.step}."
        return [replace(one, place=one.place.removeprefix(prefix)) for one in problems]


_CASE: Final = "case"
OPTIONAL: Final[Mapping[RunKind, KindRules]] = {
    RunKind.CASE: KindRules(
        kind=RunKind.CASE,
        step=_CASE,
        graph=lambda request: one_step(_CASE, {}),
        finish_reasons={RunStatus.COMPLETED: "success", RunStatus.HALTED: "budget"},
        result_has_reason=True,
        options={"expected_tools": [], "gold_answer": None, "mode": None},
        package="caseworker-cases",
    )
}
"""Kinds of other packages: the rules that show and end stored runs without the package."""

DEFAULT_KIND: Final = RunKind.CASE
"""Kind of a run whose request names none."""
