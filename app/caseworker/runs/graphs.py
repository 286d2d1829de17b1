"""Registered graphs and agents: their versions and limits.

A definition is a graph or an agent under a name; graphs and agents have separate namespaces. Every
change creates a new version. Versions never change, and version numbers are never reused. A
definition can contain references to definitions: ``{"name", "version"?}``. Without a version, the
newest one is used.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from caseworker.core.graph.graph import DEFAULT_HANDLE, Channel, Edge, GraphStep, StepGraph
from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import DefinitionRef


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Limits on the size of a graph, including everything that it contains."""

    max_bytes: int
    """Maximum size of the graph as JSON, in bytes."""
    max_steps: int
    max_edges: int
    max_depth: int
    """Maximum nesting depth; the outermost graph has depth 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionVersion:
    """Describes one version of a definition without its content.

    ``sha256`` and ``size_bytes`` refer to the canonical JSON of the content.
    """

    kind: DefinitionKind
    name: str
    version: int
    description: str | None
    sha256: str
    size_bytes: int
    created_at: datetime

    @property
    def ref(self) -> DefinitionRef:
        """Reference to exactly this version."""
        return DefinitionRef(self.name, self.version, self.kind)


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of a registered graph or agent, as its author wrote it."""

    head: DefinitionVersion
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunnableGraph:
    """A validated graph whose references have all been resolved."""

    graph: Mapping[str, Any]
    """The graph with its references resolved, as it is stored with a run."""
    prepared: PreparedGraph | None
    """The graph prepared for execution; None if the executor has to prepare it."""


@dataclass(frozen=True, slots=True)
class ResolvedDefinition:
    """A version of a registered graph or agent, ready to run."""

    head: DefinitionVersion
    runnable: RunnableGraph
    is_remembered: bool = False
    """Whether the version was not read again, so that a newer one may exist."""


class RunnableGraphs(Protocol):
    """Validates and prepares the graphs and agents that run requests contain or reference."""

    async def inline(
        self, tenant: str, content: Mapping[str, Any], kind: DefinitionKind
    ) -> RunnableGraph:
        """Validate and prepare an inline graph or agent.

        Raises:
            GraphRefusedError: the definition is invalid.
        """
        ...

    async def resolved(
        self,
        tenant: str,
        ref: DefinitionRef,
        changes: Mapping[str, Any] = ...,
        *,
        remembers: bool = False,
    ) -> ResolvedDefinition:
        """Load, validate and prepare a registered graph or agent, with ``changes`` of its fields.

        With ``remembers``, the newest version may be one that this process has cached.

        Raises:
            GraphRefusedError: the definition does not exist or is invalid.
        """
        ...

    async def require_models(
        self, kind: DefinitionKind, graph: Mapping[str, Any], allowed: Collection[str]
    ) -> None:
        """Check that the graph of a run only uses models in ``allowed``.

        Raises:
            GraphRefusedError: the graph uses other models; each problem has a location.
        """
        ...


def shape_of(graph: Mapping[str, Any]) -> StepGraph:
    """Return the structure of a stored graph; it is valid, because it was checked on acceptance."""
    entry = graph.get("entry")
    return StepGraph(
        id="",
        steps=tuple(
            GraphStep(id=step["id"], type=step["type"], data=step["data"])
            for step in graph.get("steps", ())
        ),
        edges=tuple(
            Edge(
                source=edge["source"],
                target=edge["target"],
                channel=Channel(edge["data"]["channel"]),
                source_handle=edge.get("source_handle", DEFAULT_HANDLE),
                target_handle=edge.get("target_handle", DEFAULT_HANDLE),
            )
            for edge in graph.get("edges", ())
        ),
        entry=None if entry is None else tuple(entry),
    )
