"""Registered graphs and agents, and what is wrong with a graph, as callers see them."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Self

from fastapi import Response

from caseworker.api.field_types import DocumentedAs, View
from caseworker.api.graph_shape import GraphShape
from caseworker.api.violations import words_of
from caseworker.kernel.validation import Problem, Severity
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.graph_spec import GraphSpec
from caseworker.runs.graphs import Definition, DefinitionPage, DefinitionVersion, Registered


class DefinitionLinks(View):
    """Where to go from a version of a graph or an agent."""

    self: str
    versions: str

    @classmethod
    def of(cls, head: DefinitionVersion, root: str) -> Self:
        """Return the links of a version, below the path that the service is served under."""
        versions = f"{root}/{head.kind.value}s/{head.name}/versions"  # a name needs no quoting
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


class DefinitionSummary(View):
    """One version of a registered graph or agent, without the definition itself."""

    name: str
    version: int
    description: str | None
    sha256: str
    """Of the definition as canonical JSON: keys sorted, no white space, UTF-8."""
    size_bytes: int
    """Of the same."""
    created_at: datetime
    links: DefinitionLinks

    @classmethod
    def of(cls, head: DefinitionVersion, root: str) -> Self:
        """Return the view of a version."""
        return cls(**_members(head, root))


class RegisteredDefinition(DefinitionSummary):
    """A graph or an agent that was registered, or had been before."""

    warnings: list[ProblemView]
    """What is odd about it, but does not keep it from being run."""

    @classmethod
    def answer(cls, registered: Registered, root: str, response: Response) -> Self:
        """Return the view of what was registered, and say in the response where and whether."""
        warnings = [ProblemView.of(problem) for problem in registered.warnings]
        view = cls(**_members(registered.head, root), warnings=warnings)
        response.headers["Location"] = view.links.self
        if not registered.created:
            response.status_code = HTTPStatus.OK
        return view


class GraphDefinitionView(DefinitionSummary):
    """One version of a registered graph."""

    graph: Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
    """As its author wrote it."""
    shape: GraphShape

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Return the view of a definition."""
        graph = definition.content
        return cls(**_members(definition.head, root), graph=graph, shape=GraphShape.of(graph))


class AgentDefinitionView(DefinitionSummary):
    """One version of a registered agent."""

    agent: Annotated[dict[str, Any], DocumentedAs(AgentDefinition)]
    """As its author wrote it."""

    @classmethod
    def of_definition(cls, definition: Definition, root: str) -> Self:
        """Return the view of a definition."""
        return cls(**_members(definition.head, root), agent=definition.content)


class GraphList(View):
    """Some versions of registered graphs."""

    graphs: list[DefinitionSummary]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: DefinitionPage, root: str) -> Self:
        """Return the view of a page."""
        return cls(graphs=_heads(page, root), next_cursor=page.next_cursor)


class AgentList(View):
    """Some versions of registered agents."""

    agents: list[DefinitionSummary]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: DefinitionPage, root: str) -> Self:
        """Return the view of a page."""
        return cls(agents=_heads(page, root), next_cursor=page.next_cursor)


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
