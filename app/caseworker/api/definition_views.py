"""API schemas for registered graphs and agents, and for validation problems."""

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
    """URLs for a version of a registered graph or agent."""

    self: str
    versions: str

    @classmethod
    def of(cls, head: DefinitionVersion, root: str) -> Self:
        """Return the URLs for a version. ``root`` is their path prefix."""
        versions = f"{root}/{head.kind.value}s/{head.name}/versions"  # names need no quoting
        return cls(self=f"{versions}/{head.version}", versions=versions)


class ProblemView(View):
    """A problem found in a graph."""

    place: str
    """Location of the problem, such as ``steps.2.type``; empty for the graph as a whole."""
    message: str
    severity: Severity
    """Severity: an ``error`` prevents the graph from being run or registered, a ``warning`` does
    not."""

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the view of a problem, with secrets in quoted names redacted."""
        return cls(place=problem.place, message=words_of(problem), severity=problem.severity)


class DefinitionSummary(View):
    """One version of a registered graph or agent, without its definition."""

    name: str
    version: int
    description: str | None
    sha256: str
    """SHA-256 of the definition as canonical JSON (sorted keys, no whitespace, UTF-8), in
    hexadecimal."""
    size_bytes: int
    """Size of the definition as canonical JSON, in bytes."""
    created_at: datetime
    links: DefinitionLinks

    @classmethod
    def of(cls, head: DefinitionVersion, root: str) -> Self:
        """Return the view of a version. ``root`` is the path prefix for its URLs."""
        return cls(**_members(head, root))


class RegisteredDefinition(DefinitionSummary):
    """The registered version of a graph or agent, which may have existed already."""

    warnings: list[ProblemView]
    """Problems in the definition that do not prevent it from being run."""

    @classmethod
    def answer(cls, registered: Registered, root: str, response: Response) -> Self:
        """Return the response body for a registration, and set the response's Location header.

        If the version existed already, the status is set to 200 instead of 201.
        """
        warnings = [ProblemView.of(problem) for problem in registered.warnings]
        view = cls(**_members(registered.head, root), warnings=warnings)
        response.headers["Location"] = view.links.self
        if not registered.created:
            response.status_code = HTTPStatus.OK
        return view


class GraphDefinitionView(DefinitionSummary):
    """One version of a registered graph."""

    graph: Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
    """The graph definition as it was registered."""
    shape: GraphShape

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Return the view of a registered graph. ``root`` is the path prefix for its URLs."""
        graph = definition.content
        return cls(**_members(definition.head, root), graph=graph, shape=GraphShape.of(graph))


class AgentDefinitionView(DefinitionSummary):
    """One version of a registered agent."""

    agent: Annotated[dict[str, Any], DocumentedAs(AgentDefinition)]
    """The agent definition as it was registered."""

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Return the view of a registered agent. ``root`` is the path prefix for its URLs."""
        return cls(**_members(definition.head, root), agent=definition.content)


class DefinitionList(View):
    """A page of registered definitions: one item per version, without its definition."""

    @classmethod
    def of(cls, page: DefinitionPage, root: str) -> Self:
        """Return the view of a page of versions. ``root`` is the path prefix for their URLs."""
        items, cursor = cls.model_fields
        heads = [DefinitionSummary.of(head, root) for head in page.heads]
        return cls.model_validate({items: heads, cursor: page.next_cursor})


class GraphList(DefinitionList):
    """A page of registered graphs: one item per version, without its definition."""

    graphs: list[DefinitionSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


class AgentList(DefinitionList):
    """A page of registered agents: one item per version, without its definition."""

    agents: list[DefinitionSummary]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


class Validation(View):
    """Result of validating a graph."""

    valid: bool
    """Whether the graph can be run; if true, there may still be warnings."""
    problems: list[ProblemView]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Self:
        """Return the validation result for the problems found in a graph."""
        errors = any(problem.severity is Severity.ERROR for problem in problems)
        return cls(valid=not errors, problems=[ProblemView.of(problem) for problem in problems])


def _members(head: DefinitionVersion, root: str) -> dict[str, Any]:
    names = ("name", "version", "description", "sha256", "size_bytes", "created_at")
    members = {name: getattr(head, name) for name in names}
    return {**members, "links": DefinitionLinks.of(head, root)}
