"""Registered graphs, and what is wrong with a graph, as callers see them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Self

from app.api.field_types import DocumentedAs, View
from app.api.violations import words_of
from app.kernel.validation import Problem, Severity
from app.nodes.graph_spec import GraphSpec
from app.runs.graphs import GraphDefinition, GraphPage, GraphVersion, Registered


class GraphLinks(View):
    """Where to go from a version of a graph."""

    self: str
    versions: str

    @classmethod
    def of(cls, head: GraphVersion, root: str) -> Self:
        """Return the links of a version, below the path that the service is served under."""
        versions = f"{root}/graphs/{head.name}/versions"  # a name needs no quoting
        return cls(self=f"{versions}/{head.version}", versions=versions)


class ProblemView(View):
    """Something that is wrong with a graph."""

    place: str
    """Where, such as ``steps.2.type``; empty for the graph as a whole."""
    message: str
    severity: Severity
    """An ``error`` keeps the graph from being run or registered, a ``warning`` does not."""

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the view of a problem."""
        return cls(place=problem.place, message=words_of(problem), severity=problem.severity)


class GraphSummary(View):
    """One version of a registered graph, without the graph itself."""

    name: str
    version: int
    description: str | None
    sha256: str
    """Of the graph as canonical JSON: keys sorted, no white space, UTF-8."""
    size_bytes: int
    """Of the same."""
    created_at: datetime
    links: GraphLinks

    @classmethod
    def of(cls, head: GraphVersion, root: str) -> Self:
        """Return the view of a version."""
        return cls(**_members(head, root))


class RegisteredGraph(GraphSummary):
    """A graph that was registered, or had been before."""

    warnings: list[ProblemView]
    """What is odd about it, but does not keep it from being run."""

    @classmethod
    def of_registered(cls, registered: Registered, root: str) -> Self:
        """Return the view of what was registered."""
        warnings = [ProblemView.of(problem) for problem in registered.warnings]
        return cls(**_members(registered.head, root), warnings=warnings)


class GraphDefinitionView(GraphSummary):
    """One version of a registered graph."""

    graph: Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
    """As its author wrote it."""

    @classmethod
    def of_definition(cls, definition: GraphDefinition, root: str) -> Self:
        """Return the view of a definition."""
        return cls(**_members(definition.head, root), graph=definition.graph)


class GraphList(View):
    """Some versions of registered graphs."""

    graphs: list[GraphSummary]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: GraphPage, root: str) -> Self:
        """Return the view of a page."""
        graphs = [GraphSummary.of(head, root) for head in page.graphs]
        return cls(graphs=graphs, next_cursor=page.next_cursor)


class Validation(View):
    """What is wrong with a graph."""

    valid: bool
    """True if it could be run; there may be warnings all the same."""
    problems: list[ProblemView]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Self:
        """Return the view of what was found."""
        errors = any(problem.severity is Severity.ERROR for problem in problems)
        return cls(valid=not errors, problems=[ProblemView.of(problem) for problem in problems])


def _members(head: GraphVersion, root: str) -> dict[str, Any]:
    return {
        "name": head.name,
        "version": head.version,
        "description": head.description,
        "sha256": head.sha256,
        "size_bytes": head.size_bytes,
        "created_at": head.created_at,
        "links": GraphLinks.of(head, root),
    }
