"""Registered graphs and agents: their versions, and the errors of the registry.

A definition is a graph or an agent under a name; graphs and agents have separate namespaces. Every
change creates a new version. Versions never change, and version numbers are never reused. A
definition can contain references to definitions: ``{"name", "version"?}``. Without a version, the
newest one is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from caseworker.core.graph.validation import Problem
from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import DefinitionRef


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDefinition:
    """A validated graph or agent that is about to be registered."""

    tenant: str
    kind: DefinitionKind
    name: str
    description: str | None
    content: Mapping[str, Any]
    sha256: str
    size_bytes: int
    uses: tuple[DefinitionRef, ...]
    """References to the definitions that it contains directly."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The response to a registration: the version, and whether it is new."""

    head: DefinitionVersion
    created: bool
    """Whether a new version was created; False if the newest version is identical."""
    warnings: Sequence[Problem] = ()


class DefinitionNotFoundError(LookupError):
    """The definition or version does not exist or belongs to another tenant."""

    def __init__(self, ref: DefinitionRef) -> None:
        super().__init__(ref.name)
        self.ref = ref


class DefinitionInUseError(Exception):
    """Other definitions contain the definition that was to be deleted."""

    def __init__(self, ref: DefinitionRef, users: Sequence[DefinitionRef]) -> None:
        super().__init__(f"{len(users)} definitions contain it")
        self.ref = ref
        self.users = tuple(users)


class ContainedDefinitionGoneError(Exception):
    """While a definition was being validated, one that it contains was deleted."""


class DefinitionsTooLargeError(Exception):
    """The total size of the definitions to load exceeds the limit."""
