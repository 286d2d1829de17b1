"""Every type of step that graphs can be made of, and the one way from a graph's JSON to a graph."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from caseworker.engine.prepared import PreparedGraph
from caseworker.kernel.validation import Problem, Severity
from caseworker.llm.table import ModelTable
from caseworker.nodes.graph_reading import read
from caseworker.nodes.graph_spec import GraphSpec
from caseworker.nodes.nesting import DefinitionReference, references_in
from caseworker.nodes.node_type import NodeType

GRAPH = "graph"
"""The id of a graph that nobody has named."""


class GraphProblemsError(ValueError):
    """A graph that cannot be executed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        shown = "; ".join(f"{problem.place}: {problem.message}" for problem in errors[:3])
        more = len(errors) - 3
        super().__init__(shown + (f" and {more} more" if more > 0 else ""))
        self.problems = tuple(problems)
        """All of them, warnings included."""


class DuplicateTypeError(ValueError):
    """Two types of step have the same name."""


class NodeCatalog:
    """The types of step of a process; built once and never changed."""

    def __init__(self, types: Iterable[NodeType], models: ModelTable | None = None) -> None:
        """Take the types, or raise DuplicateTypeError for two of one name.

        ``models`` are those that may be named; None: any.
        """
        self._models = models
        self._types: dict[str, NodeType] = {}
        for kind in types:
            if kind.name in self._types:
                raise DuplicateTypeError(f"there are two step types named {kind.name!r}")
            self._types[kind.name] = kind
        self._nesting = frozenset(
            kind.name
            for kind in self._types.values()
            if {"graph", "agent"} & kind.data.model_fields.keys()
        )

    def examine(
        self, graph: Mapping[str, Any], allowed: Collection[str] | None = None
    ) -> tuple[PreparedGraph | None, tuple[Problem, ...]]:
        """Return a graph in its JSON form ready to be executed, unless it has errors.

        With it come all its problems, each with its place. Of the models only those that are
        ``allowed`` may be named.
        """
        models = None if self._models is None else self._models.restricted(allowed)
        found, problems = read(self._types, graph, GRAPH, models)
        return None if found is None else found.prepared, problems

    def prepare(self, graph: Mapping[str, Any], *, graph_id: str) -> PreparedGraph:
        """Return a graph ready to be executed, or raise GraphProblemsError."""
        found, problems = read(self._types, graph, graph_id, self._models)
        if found is None:
            raise GraphProblemsError(problems)
        return found.prepared

    def references(self, graph: Mapping[str, Any]) -> Sequence[DefinitionReference]:
        """Return the graphs and agents that stand inside a graph by name only."""
        return tuple(references_in(graph, self._nesting))

    def describe(self) -> list[dict[str, Any]]:
        """Return what can be said of each type, by name, as JSON."""
        return [self._types[name].describe() for name in sorted(self._types)]

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a graph; ``describe`` has those of the data of steps."""
        return GraphSpec.model_json_schema()
