"""Registered graphs, and what is wrong with a graph, as callers see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from pydantic import ConfigDict

from app.api.violations import words_of
from app.kernel.validation import Problem, Severity
from app.runs.graphs import GraphDefinition, GraphPage, GraphVersion, Registered

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLinks:
    """Where to go from a version of a graph."""

    self: str
    versions: str

    @classmethod
    def of(cls, head: GraphVersion, root: str) -> Self:
        """Return the links of a version, below the path that the service is served under."""
        versions = f"{root}/graphs/{head.name}/versions"  # a name needs no quoting
        return cls(self=f"{versions}/{head.version}", versions=versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemView:
    """Something that is wrong with a graph."""

    __pydantic_config__ = _DOCUMENTED

    place: str
    """Where, such as ``steps.2.type``; empty for the graph as a whole."""
    message: str
    severity: Severity
    """An ``error`` keeps the graph from being run or registered, a ``warning`` does not."""

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the view of a problem."""
        return cls(place=problem.place, message=words_of(problem), severity=problem.severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """One version of a registered graph, without the graph itself."""

    __pydantic_config__ = _DOCUMENTED

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredGraph(GraphSummary):
    """A graph that was registered, or had been before."""

    __pydantic_config__ = _DOCUMENTED

    warnings: Sequence[ProblemView]
    """What is odd about it, but does not keep it from being run."""

    @classmethod
    def of_registered(cls, registered: Registered, root: str) -> Self:
        """Return the view of what was registered."""
        warnings = [ProblemView.of(problem) for problem in registered.warnings]
        return cls(**_members(registered.head, root), warnings=warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDefinitionView(GraphSummary):
    """One version of a registered graph."""

    __pydantic_config__ = _DOCUMENTED

    graph: Mapping[str, Any]
    """As its author wrote it."""

    @classmethod
    def of_definition(cls, definition: GraphDefinition, root: str) -> Self:
        """Return the view of a definition."""
        return cls(**_members(definition.head, root), graph=definition.graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphList:
    """Some versions of registered graphs."""

    __pydantic_config__ = _DOCUMENTED

    graphs: Sequence[GraphSummary]
    next_cursor: str | None
    """Ask for the next page with it; null on the last one."""

    @classmethod
    def of(cls, page: GraphPage, root: str) -> Self:
        """Return the view of a page."""
        graphs = [GraphSummary.of(head, root) for head in page.graphs]
        return cls(graphs=graphs, next_cursor=page.next_cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What is wrong with a graph."""

    __pydantic_config__ = _DOCUMENTED

    valid: bool
    """True if it could be run; there may be warnings all the same."""
    problems: Sequence[ProblemView]

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
