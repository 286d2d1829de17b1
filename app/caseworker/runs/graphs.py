"""Registered graphs and agents: what they are, what they need of a store and a catalog of nodes.

A definition is a graph or an agent under a name; the names of either kind are its own. Every
change is a new version; versions never change, and their numbers are never used again. A
definition may contain others, which it names: ``{"name", "version"?}``, where no version means the
newest one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from caseworker.engine.prepared import PreparedGraph
from caseworker.kernel.validation import Problem
from caseworker.nodes.nesting import DefinitionKind, DefinitionReference
from caseworker.runs.run import DefinitionRef


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """How large a graph may be, with all that it contains."""

    max_bytes: int
    """Of the graph written as JSON."""
    max_steps: int
    max_edges: int
    max_depth: int
    """Graphs inside one another, the outermost included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionVersion:
    """One version of a definition; digest and size are those of its canonical JSON."""

    kind: DefinitionKind
    name: str
    version: int
    description: str | None
    sha256: str
    size_bytes: int
    created_at: datetime

    @property
    def ref(self) -> DefinitionRef:
        """The name and the version."""
        return DefinitionRef(self.name, self.version, self.kind)


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of a registered graph or agent, as its author wrote it."""

    head: DefinitionVersion
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunnableGraph:
    """A graph with all that it contains, found valid."""

    graph: Mapping[str, Any]
    """As it is stored with a run."""
    prepared: PreparedGraph | None
    """Ready to be executed by this process; None has the executor prepare it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDefinition:
    """A graph or an agent that is about to be registered; it was found valid."""

    tenant: str
    kind: DefinitionKind
    name: str
    description: str | None
    content: Mapping[str, Any]
    sha256: str
    size_bytes: int
    uses: tuple[DefinitionRef, ...]
    """The definitions that it contains itself, as it names them."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What became of a definition that was to be registered."""

    head: DefinitionVersion
    created: bool
    """False if the newest version was the same already."""
    warnings: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class DefinitionPage:
    """Some versions of definitions of one kind."""

    heads: Sequence[DefinitionVersion]
    next_cursor: str | None


class GraphChecks(Protocol):
    """Knows what a graph is made of. Both methods are pure and may be called on any thread."""

    def examine(
        self, graph: Mapping[str, Any], allowed: Collection[str] | None = None
    ) -> tuple[PreparedGraph | None, tuple[Problem, ...]]:
        """Return a graph ready to be executed, unless it has errors, and all that is wrong with it.

        That is errors and warnings, each with its place. Keys ``name`` and ``version`` of a graph
        mean nothing to it. Only ``allowed`` models may be named; None: any that is configured.
        """
        ...

    def references(self, graph: Mapping[str, Any]) -> Sequence[DefinitionReference]:
        """Return the definitions that are given by name, also inside of those that stand inline.

        Whatever the graph is; what is wrong with it is for :meth:`examine` to say.
        """
        ...


class DefinitionStore(Protocol):
    """Keeps definitions. Every method is one transaction; tenants never meet.

    A cursor that is not one of ours is an ``InvalidRunError``.
    """

    async def add(self, new: NewDefinition) -> Registered:
        """Store a definition as the next version of its name.

        If the newest version is the same, that one is returned. Of several callers at once each
        gets a version of its own.

        Raises:
            ContainedDefinitionGoneError: one of ``new.uses`` does not exist any more.
        """
        ...

    async def get(self, tenant: str, ref: DefinitionRef) -> Definition | None:
        """Return a definition."""
        ...

    async def load(
        self, tenant: str, wanted: Iterable[DefinitionRef], *, max_bytes: int
    ) -> Mapping[DefinitionRef, Definition]:
        """Return those of some definitions that exist.

        Raises:
            DefinitionsTooLargeError: they are larger than ``max_bytes`` together, each counted
                once; none of them was read.
        """
        ...

    async def known(self, tenant: str, wanted: Iterable[DefinitionRef]) -> Set[DefinitionRef]:
        """Return those of some definitions that exist."""
        ...

    async def find(
        self, tenant: str, kind: DefinitionKind, *, limit: int, cursor: str | None
    ) -> DefinitionPage:
        """Return the newest version under each name, in the order of names."""
        ...

    async def versions(
        self, tenant: str, ref: DefinitionRef, *, limit: int, cursor: str | None
    ) -> DefinitionPage:
        """Return the versions under the name of ``ref``, newest first; none if there is none."""
        ...

    async def delete(self, tenant: str, ref: DefinitionRef) -> None:
        """Delete a version, or without one all versions under the name.

        Runs that were accepted with it are not touched.

        Raises:
            DefinitionNotFoundError: there is none.
            DefinitionInUseError: another definition contains the version, or contains the newest
                version under the name and would be left without any.
        """
        ...
