"""The HTTP API of one kind of runs: its requests, its views and its examples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from caseworker.platform.http.bodies import BodyModel
from caseworker.runs.http.admission import Admission
from caseworker.runs.http.body import RunFields
from caseworker.runs.http.views import RunDetails
from caseworker.runs.run import RunKind

T = TypeVar("T")


class Services(Protocol):
    """The services and settings of a process, from which an :class:`Admission` is built."""

    @property
    def settings(self) -> Any:
        """The sections of the service's settings."""
        ...

    def service(self, of: type[T], /) -> T:
        """Return the service of type ``of``."""
        ...


MCP_BUDGET: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "Limits of the run, as in POST /runs, such as max_cost_usd or max_tool_calls.",
}
"""JSON Schema of the limits of a run, as an argument of a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool for MCP clients, whose calls are runs of one kind."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schemas of the arguments, which are fields of the body, by name."""
    required: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindApi:
    """The HTTP API of one kind of runs."""

    kind: RunKind
    body: type[RunFields]
    """Body of requests."""
    view: type[RunDetails]
    """View of runs, with the result."""
    admission: Callable[[Services], Admission]
    """Function that builds the admission, which validates bodies and converts them to runs."""
    resume: type[BodyModel] | None = None
    """Fields that only runs of this kind have and that replace those of the source run."""
    secret_fields: frozenset[str] = frozenset()
    """Fields that are hidden from callers who may not create runs."""
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Examples of requests for the OpenAPI document, by name: ``summary`` and ``value``."""
    mcp_tools: tuple[McpTool, ...] = ()
