"""Values and errors of the registry of graphs and agents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caseworker.core.graph.validation import Problem
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.graphs import DefinitionVersion
from caseworker.runs.run import DefinitionRef


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
