"""The catalog of step types, which parses and validates graphs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from caseworker.core.graph.validation import Problem, Severity
from caseworker.engine.prepared import PreparedGraph
from caseworker.models.table import ModelTable
from caseworker.nodes.graph_parser import read
from caseworker.nodes.graph_spec import GraphSpec
from caseworker.nodes.nesting import DefinitionReference, definition_references_in
from caseworker.nodes.node_type import NodeType

GRAPH = "graph"
"""Default ID for a graph without a name."""


class GraphProblemsError(ValueError):
    """A graph has errors and cannot be executed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        text = "; ".join(f"{problem.place}: {problem.message}" for problem in errors[:3])
        more = len(errors) - 3
        super().__init__(text + (f" and {more} more" if more > 0 else ""))
        self.problems = tuple(problems)
        """All problems, including warnings."""


class DuplicateTypeError(ValueError):
    """Two step types have the same name."""


class NodeCatalog:
    """All step types of a process; built once and never modified."""

    def __init__(self, types: Iterable[NodeType], models: ModelTable | None = None) -> None:
        """Register the types; raise DuplicateTypeError if two have the same name.

        ``models`` are the models that graphs may name; None permits any.
        """
        self._models = models
        self._types: dict[str, NodeType] = {}
        for kind in types:
            if kind.name in self._types:
                raise DuplicateTypeError(f"two step types have the name {kind.name!r}")
            self._types[kind.name] = kind
        self._nesting = frozenset(
            kind.name
            for kind in self._types.values()
            if {"graph", "agent"} & kind.data.model_fields.keys()
        )

    @property
    def names(self) -> Collection[str]:
        """The names of all step types."""
        return self._types.keys()

    def examine(
        self, graph: Mapping[str, Any], allowed: Collection[str] | None = None
    ) -> tuple[PreparedGraph | None, tuple[Problem, ...]]:
        """Validate a graph; return it ready for execution (None if it has errors) and its problems.

        Each problem contains its position in the graph. ``allowed`` contains the names of the
        models that the graph may use; None permits all configured models.
        """
        models = None if self._models is None else self._models.restricted(allowed)
        graph_step, problems = read(self._types, graph, GRAPH, models)
        return None if graph_step is None else graph_step.prepared, problems

    def prepare(self, graph: Mapping[str, Any], *, graph_id: str) -> PreparedGraph:
        """Return a graph ready for execution, or raise GraphProblemsError."""
        graph_step, problems = read(self._types, graph, graph_id, self._models)
        if graph_step is None:
            raise GraphProblemsError(problems)
        return graph_step.prepared

    def references(self, graph: Mapping[str, Any]) -> Sequence[DefinitionReference]:
        """Return the references to registered graphs and agents in a graph."""
        return tuple(definition_references_in(graph, self._nesting))

    def describe(self) -> list[dict[str, Any]]:
        """Return the descriptions of all step types as JSON, sorted by name."""
        return [self._types[name].describe() for name in sorted(self._types)]

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a graph. ``describe`` returns the schemas of step data."""
        return GraphSpec.model_json_schema()
