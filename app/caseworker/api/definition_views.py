"""API schemas of registered graphs and agents, and of validation problems."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Self

from fastapi import Response

from caseworker.api.field_types import DocumentedAs, View
from caseworker.api.graph_shape import GraphShape
from caseworker.api.violations import words_of
from caseworker.core.graph.validation import Problem, Severity
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.graph_spec import GraphSpec
from caseworker.runs.graphs import Definition, DefinitionPage, DefinitionVersion, Registered


class DefinitionLinks(View):
    """Links of a version of a graph or agent."""

    self: str
    versions: str

    @classmethod
    def of(cls, head: DefinitionVersion, root: str) -> Self:
        """Return the links of a version; they start with the path prefix ``root``."""
        versions = f"{root}/{head.kind.value}s/{head.name}/versions"  # names need no quoting
        return cls(self=f"{versions}/{head.version}", versions=versions)


class ProblemView(View):
    """A problem found in a graph."""

    place: str
    """Location, such as ``steps.2.type``; empty for the graph as a whole."""
    message: str
    severity: Severity
    """An ``error`` prevents the graph from being run or registered, a ``warning`` does not."""

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Convert a problem; secrets in names are redacted."""
        return cls(place=problem.place, message=words_of(problem), severity=problem.severity)


class DefinitionSummary(View):
    """One version of a registered graph or agent, without its definition."""

    name: str
    version: int
    description: str | None
    sha256: str
    """Hash of the definition as canonical JSON: sorted keys, no whitespace, UTF-8."""
    size_bytes: int
    """Size of the canonical JSON."""
    created_at: datetime
    links: DefinitionLinks

    @classmethod
    def of(cls, head: DefinitionVersion, root: str) -> Self:
        """Convert a version."""
        return cls(**_members(head, root))


class RegisteredDefinition(DefinitionSummary):
    """The result of a registration; the version may have existed already."""

    warnings: list[ProblemView]
    """Problems that do not prevent it from being run."""

    @classmethod
    def answer(cls, registered: Registered, root: str, response: Response) -> Self:
        """Convert a registration; set the Location header, and status 200 if none was created."""
        warnings = [ProblemView.of(problem) for problem in registered.warnings]
        view = cls(**_members(registered.head, root), warnings=warnings)
        response.headers["Location"] = view.links.self
        if not registered.created:
            response.status_code = HTTPStatus.OK
        return view


class GraphDefinitionView(DefinitionSummary):
    """One version of a registered graph."""

    graph: Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
    """The graph as registered."""
    shape: GraphShape

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Convert a definition."""
        graph = definition.content
        return cls(**_members(definition.head, root), graph=graph, shape=GraphShape.of(graph))


class AgentDefinitionView(DefinitionSummary):
    """One version of a registered agent."""

    agent: Annotated[dict[str, Any], DocumentedAs(AgentDefinition)]
    """The agent as registered."""

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Convert a definition."""
        return cls(**_members(definition.head, root), agent=definition.content)


class GraphList(View):
    """A page of graph versions."""

    graphs: list[DefinitionSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: DefinitionPage, root: str) -> Self:
        """Convert a page."""
        return cls(graphs=_heads(page, root), next_cursor=page.next_cursor)


class AgentList(View):
    """A page of agent versions."""

    agents: list[DefinitionSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: DefinitionPage, root: str) -> Self:
        """Convert a page."""
        return cls(agents=_heads(page, root), next_cursor=page.next_cursor)


class Validation(View):
    """The validation result of a graph."""

    valid: bool
    """True if the graph can be run; there may still be warnings."""
    problems: list[ProblemView]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Self:
        """Convert the problems of a graph."""
        errors = any(problem.severity is Severity.ERROR for problem in problems)
        return cls(valid=not errors, problems=[ProblemView.of(problem) for problem in problems])


def _heads(page: DefinitionPage, root: str) -> list[DefinitionSummary]:
    return [DefinitionSummary.of(head, root) for head in page.heads]


def _members(head: DefinitionVersion, root: str) -> dict[str, Any]:
    return {
        "name": head.name,
        "version": head.version,
        "description": head.description,
        "sha256": head.sha256,
        "size_bytes": head.size_bytes,
        "created_at": head.created_at,
        "links": DefinitionLinks.of(head, root),
    }
